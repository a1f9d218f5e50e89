"""Prompts as exact token ids, for engines that take them over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from parrot_server.core.model import Prompt
from parrot_server.engines.tokens import PromptTokenizer, PromptTokens
from parrot_server.errors import EngineError, Fault, SetupError

INLINE_CHARACTERS = 8_000  # about 4 ms of work; more is done in a thread, so that the event loop goes on
SAMPLE = "The quick brown fox, 1234.5 Grüße 日本語 🦜\n\n    x = [1, 2]  # done"


async def encode(tokenizer: PromptTokenizer, prompt: Prompt) -> PromptTokens:
    """The ids of a prompt. Raises EngineError, as `PromptTokenizer.encode` does."""
    if sum(len(piece.text) for piece in prompt.pieces) < INLINE_CHARACTERS:
        return tokenizer.encode(prompt)
    return await asyncio.to_thread(tokenizer.encode, prompt)


def check_fits(engine: str, prompt_tokens: int, max_tokens: int, context_tokens: int) -> None:
    """Raises EngineError when a prompt and the longest answer to it exceed the context."""
    if prompt_tokens + max_tokens > context_tokens:
        raise EngineError(
            Fault.CALL,
            "context_overflow",
            f"the prompt has {prompt_tokens} tokens and may be answered by {max_tokens}: "
            f"more than the context of {context_tokens} of engine {engine}",
        )


def check_same_tokenizer(engine: str, tokenizer: PromptTokenizer, ids_there: Sequence[int]) -> None:
    """Raises SetupError when the engine makes other ids of `SAMPLE`: wrong ids are wrong text, or end the engine."""
    if tokenizer.encode_text(SAMPLE) != list(ids_there):
        raise SetupError(
            f"engine {engine} serves a model with another tokenizer than the one that was given: "
            "give the folder with that model's own tokenizer.json"
        )
