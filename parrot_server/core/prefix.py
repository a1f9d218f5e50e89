"""The structural identity of prompts' beginnings, and how many calls will still use each.

A prefix is the chain of the identities of its pieces, by content and salted by tenant and model, so two functions share a system
text, and two tenants share nothing. A call that is not scheduled yet counts as one pin on every prefix of its prompt that is
known: the constant head from the start, all of it once its inputs are set.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

from parrot_sdk.template import Input, Output, Role, Text
from parrot_server.core.cost import estimate_tokens
from parrot_server.core.graph import function_of
from parrot_server.core.model import Binding, Piece, PieceKind, Prompt, Ref, Value
from parrot_server.core.program import Function, Program, Step


def chain_id(parent: str, kind: str, text: str) -> str:
    """The identity of a prefix: SHA-256 over the parent's identity and the piece, each framed by its length."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(b"%b %b %d:%b" % (parent.encode(), kind.encode(), len(data), data)).hexdigest()


@lru_cache(maxsize=1024)
def _root_id(tenant: str, model: str) -> str:
    """Where the prefixes of a tenant on a model begin."""
    return chain_id(chain_id("", "tenant", tenant), "model", model)


def build_prompt(step: Step, *, head_only: bool = False) -> Prompt:
    """The prompt of a generating step, or its beginning up to the first value that is not set yet.

    Without `head_only` every input must be set.
    """
    function = function_of(step)
    pieces: list[Piece] = []
    whole = _collect(step, function, pieces)
    assert whole or head_only, f"{step.key}: built before its inputs are set"
    identity = _root_id(step.program.tenant, step.call.model)
    identities = []
    in_head = True
    for piece in pieces:
        in_head = in_head and piece.kind is not PieceKind.VALUE
        identity = _head_id(function, identity, piece) if in_head else chain_id(identity, piece.kind, piece.text)
        identities.append(identity)
    return Prompt(tuple(pieces), tuple(identities), function.chat)


def _head_id(function: Function, parent: str, piece: Piece) -> str:
    """The identity of a beginning without values. It comes again with each call of the function, and is gone with it."""
    name = (parent, piece.kind, piece.text)
    if name not in function.heads:
        function.heads[name] = chain_id(*name)
    return function.heads[name]


def _collect(step: Step, function: Function, pieces: list[Piece]) -> bool:
    """Gather the prompt piece by piece. False: a value is not set, and the pieces end before it."""
    implied = function.chat and not function.template.has_roles
    if implied:
        pieces.append(Piece(PieceKind.ROLE, "user"))
    variables = dict(step.call.outputs)
    counts = iter(function.spec.text_tokens or ())
    for segment in function.template.segments:
        match segment:
            case Text(text):
                pieces.append(Piece(PieceKind.CONSTANT, text, next(counts, None) or estimate_tokens(text)))
            case Role(role):
                pieces.append(Piece(PieceKind.ROLE, role))
            case Input(name):
                if not _add_values(step.program, step.inputs[name], function.joins[name], pieces):
                    return False
            case Output(name):
                if implied:
                    pieces.append(Piece(PieceKind.ROLE, "assistant"))
                    implied = False
                if name == step.output:
                    return True
                if not _add_values(step.program, Ref(variables[name]), "", pieces):
                    return False
    return True


def _add_values(program: Program, binding: Binding, join: str, pieces: list[Piece]) -> bool:
    """Add the values of a binding; empty texts are no pieces. False: one is not set."""
    between = Piece(PieceKind.CONSTANT, join, estimate_tokens(join))
    for index, part in enumerate(binding if isinstance(binding, tuple) else (binding,)):
        if index and join:
            pieces.append(between)
        value = part if isinstance(part, Value) else program.variables[part.name].outcome
        if not isinstance(value, Value):
            return False
        if value.items is None:
            if value.text:
                pieces.append(Piece(PieceKind.VALUE, value.text, value.tokens))
            continue
        for place, item in enumerate(value.items):
            if place and join:
                pieces.append(between)
            if item:
                pieces.append(Piece(PieceKind.VALUE, item, estimate_tokens(item)))
    return True


@dataclass(slots=True)
class Prefix:
    """One prefix that calls will use. `pins`: how many calls not yet scheduled begin with it; `ready`: how many of them could run now."""

    pins: int = 0
    ready: int = 0


class PrefixTable:
    """All prefixes with pins. One without pins is forgotten: its identity comes back with the next call that has it."""

    def __init__(self) -> None:
        self._prefixes: dict[str, Prefix] = {}

    def pin(self, step: Step, prompt: Prompt) -> None:
        """Count a step as a user of every prefix of its prompt; replaces what it counted for before."""
        before, was_ready = step.pinned, step.pins_ready
        ready = prompt is step.prompt
        for identity in prompt.prefixes:
            prefix = self._prefixes.get(identity)
            if prefix is None:
                prefix = self._prefixes[identity] = Prefix()
            prefix.pins += 1
            prefix.ready += ready
        step.pinned, step.pins_ready = prompt.prefixes, ready
        self._release(before, was_ready)

    def unpin(self, step: Step) -> list[str]:
        """Stop counting a step. Returns the prefixes that nobody will use any more."""
        before, step.pinned = step.pinned, ()
        return self._release(before, step.pins_ready)

    def _release(self, identities: Iterable[str], ready: bool) -> list[str]:
        gone = []
        for identity in identities:
            prefix = self._prefixes[identity]
            prefix.pins -= 1
            prefix.ready -= ready
            if prefix.pins == 0:
                del self._prefixes[identity]
                gone.append(identity)
        return gone

    def pins(self, identity: str) -> int:
        """How many calls not yet scheduled will use a prefix."""
        prefix = self._prefixes.get(identity)
        return prefix.pins if prefix else 0

    def ready(self, identity: str) -> int:
        """How many calls that will use a prefix could run now."""
        prefix = self._prefixes.get(identity)
        return prefix.ready if prefix else 0

    def longest_shared(self, prompt: Prompt, least_tokens: int, users: int = 2) -> str | None:
        """The longest prefix of a prompt that so many calls will use, if it is worth a warm call."""
        tokens, best = 0, None
        for identity, piece in zip(prompt.prefixes, prompt.pieces, strict=True):
            prefix = self._prefixes.get(identity)
            if prefix is None or prefix.pins < users:
                break
            tokens += piece.tokens
            if tokens >= least_tokens and piece.kind is not PieceKind.ROLE:
                best = identity
        return best

    def validate(self, open_steps: Iterable[Step]) -> None:
        """Recount all pins. Raises AssertionError."""
        counts: dict[str, Prefix] = {}
        for step in open_steps:
            for identity in step.pinned:
                prefix = counts.setdefault(identity, Prefix())
                prefix.pins += 1
                prefix.ready += step.pins_ready
        assert counts == self._prefixes, "pins do not match the calls that hold them"
