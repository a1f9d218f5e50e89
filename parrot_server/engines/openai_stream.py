"""What a streamed answer of OpenAI's API comes to, chunk by chunk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from parrot_server.core.model import Usage
from parrot_server.engines.http import Body
from parrot_server.engines.http_errors import broken
from parrot_server.errors import EngineError, Fault


@dataclass
class StreamedAnswer:
    """One answer so far. Reasoning is told apart from it and counted, not shown.

    Args:
        engine: the engine's name.
        estimated_prompt_tokens: what to say of the prompt if the server does not.
    """

    engine: str
    estimated_prompt_tokens: int
    finish: str | None = None
    output_tokens: int = 0
    usage: Usage | None = None
    tells_prefill: bool = False  # the prompt's cached tokens are known ahead of the text

    def take(self, chunk: Body) -> str:
        """Take a chunk; returns the text that it adds. Raises EngineError."""
        choices = chunk.get("choices") or []
        text = ""
        if choices:
            choice = choices[0]
            delta = choice.get("delta") or {}
            text = delta.get("content") or choice.get("text") or ""
            if text or delta.get("reasoning_content") or delta.get("reasoning"):
                self.output_tokens += 1  # about; a usage object that comes is exact
            self.finish = choice.get("finish_reason") or self.finish
        if isinstance(usage := chunk.get("usage"), dict):
            self.tells_prefill = self.finish is None and "prompt_tokens_details" in usage
            self._count(usage)
        return text

    def _count(self, usage: dict[str, Any]) -> None:
        """The last usage object holds: those before it are of the answer so far, or repeat it."""
        details = usage.get("prompt_tokens_details") or {}
        cached = details.get("cached_tokens") or usage.get("prompt_cache_hit_tokens") or 0
        self.usage = Usage(usage.get("prompt_tokens") or 0, cached, usage.get("completion_tokens") or 0)
        self.output_tokens = max(self.output_tokens, self.usage.output_tokens)

    def total(self) -> Usage:
        """What was used, as the server counted it, else estimated."""
        if self.usage is not None and self.usage.prompt_tokens:
            return self.usage
        return Usage(self.estimated_prompt_tokens, 0, self.output_tokens, estimated=True)

    def check_whole(self) -> None:
        """Raises EngineError unless the server said that the answer is whole, and why it ended."""
        if self.finish is None:
            raise broken(self.engine, "it gave no reason for its end")
        if self.finish == "content_filter":
            message = f"the content filter of engine {self.engine} stopped the answer"
            raise EngineError(Fault.CALL, "content_filter", message)
        if self.finish in ("abort", "error"):
            raise broken(self.engine, "the engine gave it up")
