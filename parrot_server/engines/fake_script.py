"""What the scripted engine answers: an `Answer` from the test's own script, or one made from the prompt."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from parrot_server.core.model import PieceKind, Prompt, Usage
from parrot_server.engines.base import Request
from parrot_server.errors import EngineError

WORDS = " the", " blue", " bird", " sang", " over", " a", " quiet", " green", " field", " and", " then", " slept"
DEFAULT_TOKENS = 12
ROLE_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Answer:
    """One scripted answer.

    Args:
        chunks: the text, one chunk an output token; bytes may split a character. A string is cut into chunks of 4
            characters.
        delays_s: seconds before each chunk: one number for all, or one a chunk (the last holds for the rest).
        then: what follows: the answer is whole, or an error is raised, or nothing ever comes, or the engine dies of it.
        after: how many chunks come before `then`; None: all.
        usage: what the engine says it used; None: what it did use.
    """

    chunks: str | Sequence[str | bytes] = ()
    delays_s: float | Sequence[float] = 0.0
    then: Literal["done", "hang", "crash"] | EngineError = "done"
    after: int | None = None
    usage: Usage | None = None

    def pieces(self) -> Sequence[str | bytes]:
        """The chunks that come out before `then`."""
        if isinstance(self.chunks, str):
            return [self.chunks[at : at + 4] for at in range(0, len(self.chunks), 4)][: self.after]
        return self.chunks[: self.after]

    def delay_s(self, chunk: int) -> float:
        """Seconds to wait before a chunk."""
        if isinstance(self.delays_s, int | float):
            return self.delays_s
        return self.delays_s[min(chunk, len(self.delays_s) - 1)] if self.delays_s else 0.0


Script = Callable[[Request], Answer | str | None] | list[Answer | str | None]
"""A function of the request, or answers in the order in which calls start. None, or an empty list: the default."""


def prompt_text(prompt: Prompt) -> str:
    """A prompt as text: constants and values byte for byte, each role on a line of its own as in a template."""
    lines = (f"\n[{piece.text}]\n" if piece.kind is PieceKind.ROLE else piece.text for piece in prompt.pieces)
    return "".join(lines).removeprefix("\n" if prompt.chat else "")


def default_answer(request: Request, schemas: bool) -> Answer:
    """Text that follows from prompt and sampling alone; JSON that fits the schema where the engine enforces schemas."""
    sampling = request.sampling
    digest = hashlib.sha256(f"{prompt_text(request.prompt)}\0{sampling.seed}".encode()).digest()
    if schemas and sampling.choices:
        return Answer(sampling.choices[digest[0] % len(sampling.choices)])
    if schemas and sampling.schema is not None:
        schema = json.loads(sampling.schema)
        return Answer(json.dumps(_instance(schema, schema)))
    length = sampling.max_tokens if sampling.ignore_eos else DEFAULT_TOKENS
    return Answer([digest.hex()[:8], *(WORDS[digest[at % 32] % len(WORDS)] for at in range(1, length))][:length])


def _instance(schema: Any, root: Any) -> Any:
    """The plainest value that a JSON schema allows, for the keywords that typed functions produce."""
    if not isinstance(schema, dict):
        return None
    if "$ref" in schema:
        target = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        return _instance(target, root)
    for keyword in ("anyOf", "oneOf", "allOf"):
        if keyword in schema:
            return _instance(schema[keyword][0], root)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return schema["enum"][0]
    match schema.get("type"):
        case "object":
            return {name: _instance(part, root) for name, part in schema.get("properties", {}).items()}
        case "array":
            return [_instance(schema.get("items", {}), root)] * max(1, schema.get("minItems", 1))
        case "string":
            return "text".ljust(schema.get("minLength", 0), "x")[: schema.get("maxLength", 10**6)]
        case "integer" | "number":
            return schema.get("minimum", schema.get("exclusiveMinimum", 0) + 1)
        case "boolean":
            return True
        case _:
            return None
