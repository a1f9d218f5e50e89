"""One call in the engine process: its tokens, where its KV is, and what is to be made of the tokens it gets."""

from __future__ import annotations

from collections.abc import Sequence as Series

import numpy as np

from parrot_server.core.model import Sampling
from parrot_server.engines.base import Request
from parrot_server.engines.embedded.block_pool import Blocks, blocks_for
from parrot_server.engines.embedded.grammar import Matcher
from parrot_server.engines.embedded.prefix_tree import Ids, Node
from parrot_server.engines.stops import StopFilter
from parrot_server.engines.tokens import Detokenizer, PromptTokens


class Seat:
    """A call's place in the KV memory: its block table, and the tree's nodes for the whole blocks at its beginning."""

    def __init__(self, table: Blocks, path: list[Node]) -> None:
        self.table = table
        self.path = path


class Sequence:
    """One call, from its prompt to its last token. A warm-up is one that wants no tokens.

    `ids[:length]` are its tokens, of which the KV of the first `computed` is there while it has a `seat`.

    Args:
        rid: the call's name.
        salt: separates tenants' prefixes.
        prompt: its ids and where its prefixes end.
        prefixes: their names.
        sampling: how tokens are chosen; None: a warm-up.
    """

    def __init__(
        self, rid: str, salt: str, prompt: PromptTokens, prefixes: Series[str], sampling: Sampling | None
    ) -> None:
        self.rid = rid
        self.salt = salt
        self.prefixes = tuple(zip(prefixes, prompt.covered, strict=True))
        self.prompt_tokens = len(prompt.ids)
        self.max_tokens = sampling.max_tokens if sampling else 0
        self.ids: Ids = np.full(self.prompt_tokens + self.max_tokens, -1, np.int32)
        self.ids[: self.prompt_tokens] = prompt.ids
        self.length = self.prompt_tokens
        self.computed = 0
        self.cached_tokens = 0
        self.seat: Seat | None = None
        self.priority = 0
        self.arrival = 0
        self.grant_tokens: int | None = None
        self.taken = False
        self.prefilled = False

    @property
    def order(self) -> tuple[int, int]:
        """Lower goes first."""
        return (-self.priority, self.arrival)

    @property
    def left(self) -> int:
        """Tokens whose KV is not there yet."""
        return self.length - self.computed

    @property
    def blocks(self) -> int:
        """Blocks that its tokens take."""
        return blocks_for(self.length)


class Generation(Sequence):
    """A call that wants tokens.

    Args:
        request: what was asked.
        prompt: its ids and where its prefixes end.
        token_bytes: the bytes of each token id.
        end_ids: tokens that end an answer.
        matcher: enforces the call's schema or choices, if it has any.
    """

    def __init__(
        self,
        request: Request,
        prompt: PromptTokens,
        token_bytes: Series[bytes],
        end_ids: frozenset[int],
        matcher: Matcher | None,
    ) -> None:
        sampling = request.sampling
        super().__init__(request.rid, request.salt, prompt, request.prompt.prefixes, sampling)
        self.priority = request.priority
        self.grant_tokens = request.grant_tokens
        self.sampling = sampling
        self.matcher = matcher
        self.random = np.random.Generator(np.random.Philox(sampling.seed))
        self.finish: str | None = None
        self._end_ids = frozenset() if sampling.ignore_eos else end_ids
        self._detokenizer = Detokenizer(token_bytes)
        self._stops = StopFilter(sampling.stop, sampling.keep_stop)

    @property
    def output_tokens(self) -> int:
        """Tokens it got so far."""
        return self.length - self.prompt_tokens

    @property
    def stop(self) -> str | None:
        """The stop string that ended it."""
        return self._stops.fired

    def append(self, token: int) -> str:
        """Take the next token; returns the text that can be given out. Sets `finish` when it was the last one."""
        self.ids[self.length] = token
        self.length += 1
        if self.grant_tokens is not None:
            self.grant_tokens -= 1
        ended = token in self._end_ids
        text = "" if ended else self._stops.feed(self._detokenizer.feed(token))
        if self.matcher is not None and not ended:
            ended = self.matcher.take(token)
        if self.stop is not None:
            self.finish = "stop"
        elif ended or self.output_tokens >= self.max_tokens:
            text += self._stops.feed(self._detokenizer.flush())
            text += self._stops.flush()
            self.finish = "stop" if ended or self.stop is not None else "length"
        return text
