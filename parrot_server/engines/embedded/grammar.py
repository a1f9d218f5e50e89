"""Answers that must fit a JSON Schema or be one of some choices, enforced token by token."""

from __future__ import annotations

import json

import llguidance
import numpy as np
from numpy.typing import NDArray

from parrot_server.core.model import Sampling
from parrot_server.errors import EngineError, Fault

_MAX_GRAMMAR_BYTES = 64 * 1024
_MAX_DEPTH = 32
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


class Matcher:
    """Where one answer stands in its grammar."""

    def __init__(self, matcher: llguidance.LLMatcher) -> None:
        self._matcher = matcher

    def forbid(self, logits: NDArray[np.float32]) -> None:
        """Make every token impossible that cannot come next, in place. Raises EngineError when the grammar is too complex."""
        allowed = np.unpackbits(np.frombuffer(self._matcher.compute_bitmask(), np.uint8), bitorder="little")
        self._check()
        logits[allowed[: logits.size] == 0] = -np.inf
        logits[allowed.size :] = -np.inf

    def take(self, token: int) -> bool:
        """Go on by a token; whether the answer is whole and nothing can follow. Raises EngineError as `forbid`."""
        self._matcher.consume_token(token)
        self._check()
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise EngineError(Fault.CALL, "schema_too_complex", f"the schema is too complex: {_reason(self._matcher)}")


class Grammars:
    """Compiles grammars for one model.

    Args:
        tokenizer_json: the text of its `tokenizer.json`, control tokens marked as special.
        end_ids: tokens that end an answer.
        vocabulary: how many logits a row has.
    """

    def __init__(self, tokenizer_json: str, end_ids: frozenset[int], vocabulary: int) -> None:
        self._tokenizer = llguidance.LLTokenizer(tokenizer_json, n_vocab=vocabulary, eos_token=sorted(end_ids) or None)
        # The defaults of llguidance bound each step; these bound the whole as well.
        self._limits = llguidance.LLParserLimits(
            initial_lexer_fuel=500_000, step_lexer_fuel=100_000, max_lexer_states=50_000, max_grammar_size=200_000
        )

    def matcher(self, sampling: Sampling) -> Matcher | None:
        """What enforces the schema or the choices of an output; None when it has neither. Takes milliseconds, without the GIL.

        Raises:
            EngineError: it cannot be compiled, or is too large; the call's fault.
        """
        if sampling.schema is not None:
            grammar = self._of_schema(sampling.schema)
        elif sampling.choices is not None:
            # In Lark's grammar a JSON string is a terminal of just that text.
            grammar = "start: " + " | ".join(json.dumps(choice, ensure_ascii=False) for choice in sampling.choices)
        else:
            return None
        if len(grammar.encode()) > _MAX_GRAMMAR_BYTES:
            raise EngineError(Fault.CALL, "schema_too_complex", f"a schema may take {_MAX_GRAMMAR_BYTES} bytes")
        matcher = llguidance.LLMatcher(self._tokenizer, grammar, log_level=0, limits=self._limits)
        if matcher.is_error():
            raise EngineError(Fault.CALL, "invalid_schema", f"the schema cannot be enforced: {_reason(matcher)}")
        return Matcher(matcher)

    def _of_schema(self, schema: str) -> str:
        if len(schema.encode()) > _MAX_GRAMMAR_BYTES:
            raise EngineError(Fault.CALL, "schema_too_complex", f"a schema may take {_MAX_GRAMMAR_BYTES} bytes")
        try:
            if _depth(json.loads(schema)) > _MAX_DEPTH:
                raise EngineError(Fault.CALL, "schema_too_complex", f"a schema may nest {_MAX_DEPTH} deep")
            return str(llguidance.LLMatcher.grammar_from_json_schema(schema, defaults=_COMPACT))
        except (ValueError, RecursionError):
            raise EngineError(Fault.CALL, "invalid_schema", "the schema is no JSON object") from None


def _depth(value: object) -> int:
    deepest, level = 0, [value]
    while level:
        deepest += 1
        inner = [v.values() if isinstance(v, dict) else v for v in level if isinstance(v, dict | list)]
        level = [element for elements in inner for element in elements]
    return deepest


def _reason(matcher: llguidance.LLMatcher) -> str:
    lines = str(matcher.get_error()).strip().splitlines()
    return lines[0][:200] if lines else "no reason given"
