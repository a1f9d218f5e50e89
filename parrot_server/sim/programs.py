"""Programs as people write them, by shape: map-reduce, chain, chat, agent, multi-agent with review rounds, document questions."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Literal

from parrot_server.sim.workload import CallShape, ProgramShape

Heads = tuple[tuple[str, int], ...]


def map_reduce(
    name: str,
    maps: int = 16,
    prompt_tokens: int = 6000,
    output_tokens: int | Sequence[int] = 250,
    reduce_tokens: int = 200,
    reduce_output_tokens: int = 400,
    at_s: float = 0.0,
    critical: bool = False,
    tenant: str = "",
) -> ProgramShape:
    """Calls side by side, and one that reads all their answers.

    Args:
        output_tokens: of each map, or of all.
        reduce_tokens: of the last call's prompt beside the answers.
        critical: every map is marked as critical for latency, as a client would that sends requests one by one.
    """
    lengths = [output_tokens] * maps if isinstance(output_tokens, int) else list(output_tokens)
    criterion: Literal["latency"] | None = "latency" if critical else None
    calls = [
        CallShape(f"map_{i}", prompt_tokens, length, function="map", criterion=criterion)
        for i, length in enumerate(lengths)
    ]
    names = tuple(call.id for call in calls)
    last = CallShape("reduce", reduce_tokens, reduce_output_tokens, function="reduce", reads=names)
    return ProgramShape(name, (*calls, last), kind="map-reduce", at_s=at_s, tenant=tenant)


def chain(name: str, lengths: Sequence[tuple[int, int]], at_s: float = 0.0, kind: str = "chain") -> ProgramShape:
    """Calls in a row: each reads the answer before it, and a part of its own. `lengths` pairs own prompts and answers."""
    calls = [
        CallShape(f"step_{i}", own, output, function=kind, reads=(f"step_{i - 1}",) if i else ())
        for i, (own, output) in enumerate(lengths)
    ]
    return ProgramShape(name, tuple(calls), kind=kind, at_s=at_s)


def conversation(
    name: str,
    turns: Sequence[tuple[int, int, float]],
    heads: Heads = (),
    at_s: float = 0.0,
    kind: str = "chat",
    tenant: str = "",
    max_tokens: int = 0,
    live: bool = True,
) -> ProgramShape:
    """A chat or an agent: each call goes on with all that was said before.

    Args:
        turns: what comes in, what is answered, and how long the person or the tool before it takes.
        heads: what the first prompt begins with, as other conversations do.
        max_tokens: the declared bound of each answer; 0: the truth.
        live: see `ProgramShape`.
    """
    calls = [
        CallShape(
            f"turn_{i}",
            own,
            output,
            max_tokens=max_tokens,
            function=kind,
            heads=() if i else heads,
            extends=f"turn_{i - 1}" if i else "",
            stall_s=stall_s if i else 0.0,
        )
        for i, (own, output, stall_s) in enumerate(turns)
    ]
    return ProgramShape(name, tuple(calls), kind=kind, at_s=at_s, tenant=tenant, live=live)


def multi_agent(name: str, branches: int, rounds: int, rng: Random, at_s: float = 0.0) -> ProgramShape:
    """A design, files that are written side by side, and rounds in which each is reviewed and then written anew.

    Source: the MetaGPT workload of Parrot (OSDI'24, section 8.4).
    """
    role: Heads = (("architect", 400),)
    calls = [CallShape("design", 300, rng.randint(300, 600), function="design", heads=role)]
    for branch in range(branches):
        calls.append(_file(f"code_{branch}_0", ("design",), "code", rng))
    for turn in range(rounds):
        for branch in range(branches):
            others = tuple(f"code_{other}_{turn}" for other in range(branches))
            calls.append(_file(f"review_{branch}_{turn}", ("design", *others), "review", rng))
        for branch in range(branches):
            reads = (f"code_{branch}_{turn}", f"review_{branch}_{turn}")
            calls.append(_file(f"code_{branch}_{turn + 1}", reads, "code", rng))
    files = tuple(f"code_{branch}_{rounds}" for branch in range(branches))
    calls.append(CallShape("answer", 100, 100, function="answer", reads=files))
    return ProgramShape(name, tuple(calls), kind="multi-agent", at_s=at_s)


def _file(name: str, reads: tuple[str, ...], function: str, rng: Random) -> CallShape:
    lengths = (80, 200) if function == "review" else (200, 500)
    return CallShape(name, 60, rng.randint(*lengths), 600, function, heads=((function, 500),), reads=reads)


def document_questions(
    name: str, document_tokens: int, questions: Sequence[tuple[int, int]], at_s: float = 0.0
) -> ProgramShape:
    """Questions to one document, side by side: a system text, then the document, then what is asked."""
    heads: Heads = (("questions", 600), (f"document of {name}", document_tokens))
    calls = [
        CallShape(f"question_{i}", own, output, function="question", heads=heads)
        for i, (own, output) in enumerate(questions)
    ]
    return ProgramShape(name, tuple(calls), kind="document-qa", at_s=at_s)
