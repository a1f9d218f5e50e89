"""Prompts as messages or text, for engines whose tokenizer is not at hand. Values that could be taken for control are refused."""

from __future__ import annotations

import re
from collections.abc import Sequence

from parrot_server.core.model import Piece, PieceKind, Prompt
from parrot_server.errors import EngineError, Fault

# How the common model families write their control tokens.
FAMILIES = re.compile(
    r"<\|[^|<>\s]{1,64}\|>"  # ChatML, Llama 3, Phi, GPT-OSS
    r"|<｜[^｜<>\s]{1,64}｜>"  # DeepSeek
    r"|</?s>|<(?:bos|eos|pad|unk|mask)>"  # Llama 2, Mistral, Gemma
    r"|<(?:start|end)_of_(?:turn|image)>"  # Gemma
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|<</?SYS>>"  # Mistral, Llama 2
    r"|\[g?MASK\]|</?think>|</?tool_call>"
)


def control_pattern(control_tokens: Sequence[str] | None) -> re.Pattern[str] | None:
    """What no value may hold: these tokens, or, if None, those of all families. None: anything goes."""
    if control_tokens is None:
        return FAMILIES
    return re.compile("|".join(map(re.escape, control_tokens))) if control_tokens else None


def messages(prompt: Prompt) -> list[dict[str, str]]:
    """The turns of a chat. An assistant's turn that is to be written from its begin is not among them."""
    turns: list[dict[str, str]] = []
    for piece in prompt.pieces:
        if piece.kind is PieceKind.ROLE:
            turns.append({"role": piece.text, "content": ""})
        else:
            turns[-1]["content"] += piece.text
    if turns and turns[-1] == {"role": "assistant", "content": ""}:
        turns.pop()
    return turns


def text(prompt: Prompt) -> str:
    """A prompt without turns."""
    return "".join(piece.text for piece in prompt.pieces)


def refuse_control(engine: str, prompt: Prompt, pattern: re.Pattern[str] | None) -> None:
    """Raises EngineError when a value, alone or with what stands beside it, makes something that looks like a control token."""
    if pattern is None:
        return
    for content in _contents(prompt):
        joined = "".join(piece.text for piece in content)
        spans = [match.span() for match in pattern.finditer(joined)]
        at = 0
        for piece in content if spans else ():
            end = at + len(piece.text)
            if piece.kind is PieceKind.VALUE and any(begin < end and at < stop for begin, stop in spans):
                raise EngineError(
                    Fault.CALL,
                    "control_token",
                    f"a value holds what engine {engine} may take for a control token of its model. Give that engine the "
                    "model's tokenizer (the folder with its tokenizer.json), and values are sent as plain tokens instead",
                )
            at = end


def _contents(prompt: Prompt) -> list[list[Piece]]:
    """The pieces of each turn."""
    contents: list[list[Piece]] = [[]]
    for piece in prompt.pieces:
        if piece.kind is PieceKind.ROLE:
            contents.append([])
        else:
            contents[-1].append(piece)
    return contents
