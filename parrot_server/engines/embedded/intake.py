"""From what was asked to a sequence that can be computed: tokenised, checked, its grammar compiled."""

from __future__ import annotations

from parrot_server.core.model import Prompt, Sampling
from parrot_server.engines.base import Request
from parrot_server.engines.embedded.grammar import Grammars
from parrot_server.engines.embedded.messages import Keep
from parrot_server.engines.embedded.sequence import Generation, Sequence
from parrot_server.engines.tokens import PromptTokenizer, PromptTokens
from parrot_server.errors import EngineError, Fault


class Intake:
    """Checks and prepares calls. It runs beside the steps and holds the GIL only briefly.

    Args:
        model: the one name that is served.
        tokenizer: the model's.
        grammars: compiles schemas and choices for it.
        context_tokens: the most that a prompt and its answer may take together.
    """

    def __init__(self, model: str, tokenizer: PromptTokenizer, grammars: Grammars, context_tokens: int) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._grammars = grammars
        self._context_tokens = context_tokens
        self._longest_token_bytes = max(map(len, tokenizer.token_bytes))

    def generation(self, request: Request) -> Generation:
        """A call that wants tokens. Raises EngineError; all its faults are the call's own."""
        sampling = request.sampling
        if request.model not in ("", self._model):
            raise EngineError(Fault.CALL, "unknown_model", f"this engine serves {self._model}, not {request.model!r}")
        if sampling.max_tokens < 1:
            raise EngineError(Fault.CALL, "invalid_sampling", "max_tokens must be at least 1")
        prompt = self._encode(request.prompt)
        if not prompt.ids:
            raise EngineError(Fault.CALL, "empty_prompt", "the prompt is empty: there is nothing to go on from")
        self._check_length(len(prompt.ids), sampling.max_tokens)
        matcher = self._grammars.matcher(sampling)
        return Generation(request, prompt, self._tokenizer.token_bytes, self._tokenizer.end_ids, matcher)

    def check(self, sampling: Sampling) -> None:
        """Compile what binds an output. Raises EngineError when that cannot be done."""
        self._grammars.matcher(sampling)

    def warm_up(self, keep: Keep) -> Sequence:
        """The prefix that is to be kept, up to where every prompt that begins with it is the same. Raises EngineError."""
        if keep.prompt is None:
            raise EngineError(Fault.CALL, "empty_prompt", "a prefix can only be kept with its text")
        ids, covered = self._encode(keep.prompt)
        if not covered or not covered[-1]:
            raise EngineError(Fault.CALL, "empty_prompt", "the prefix is empty: there is nothing to keep")
        self._check_length(covered[-1], 0)
        return Sequence(keep.rid, keep.salt, PromptTokens(ids[: covered[-1]], covered), keep.prompt.prefixes, None)

    def _encode(self, prompt: Prompt) -> PromptTokens:
        text_bytes = sum(len(piece.text) for piece in prompt.pieces)
        if text_bytes > self._context_tokens * self._longest_token_bytes:  # no need to count
            raise self._overflow("the prompt", f"{text_bytes} characters")
        return self._tokenizer.encode(prompt)

    def _check_length(self, prompt_tokens: int, max_tokens: int) -> None:
        if prompt_tokens + max_tokens > self._context_tokens:
            wanted = f"{prompt_tokens} tokens" + (f" and max_tokens {max_tokens}" if max_tokens else "")
            raise self._overflow("the prompt", wanted)

    def _overflow(self, what: str, size: str) -> EngineError:
        return EngineError(
            Fault.CALL,
            "context_overflow",
            f"{what} has {size}; {self._model} has room for {self._context_tokens} tokens in all on this engine",
        )
