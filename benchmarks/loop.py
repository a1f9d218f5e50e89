"""A step loop in this process, on the real model: what benchmarks of the engine's inside drive."""

from __future__ import annotations

from itertools import accumulate, chain
from pathlib import Path

import numpy as np

from parrot_server.core.model import Piece, PieceKind, Prompt, Sampling
from parrot_server.engines.base import Request
from parrot_server.engines.embedded.loading import Loaded, load_engine
from parrot_server.engines.embedded.messages import Reports, from_child
from parrot_server.engines.embedded.model_files import DEFAULT_MODEL, prepare
from parrot_server.engines.embedded.paged_model import PagedModel
from parrot_server.engines.embedded.sequence import Generation
from parrot_server.engines.embedded.settings import Settings
from parrot_server.engines.tokens import PromptTokenizer, PromptTokens


def random_prompt(tokens: int, seed: int) -> list[int]:
    """Plain token ids."""
    return list(map(int, np.random.default_rng(seed).integers(100, 40_000, tokens)))


class LoopBench:
    """Sends calls to the loop and steps it."""

    def __init__(self, kv_tokens: int = 65_536) -> None:
        folder = prepare(DEFAULT_MODEL)
        settings = Settings(folder=str(folder), name=DEFAULT_MODEL, kv_tokens=kv_tokens)
        self.loaded: Loaded = load_engine(settings, "bench", Path(folder))
        self.model: PagedModel = self.loaded.loop._model
        self.token_bytes = PromptTokenizer.from_folder(folder).token_bytes
        self._calls = 0

    def call(self, *parts: list[int], max_tokens: int, salt: str = "") -> Generation:
        """Send a call. The parts of its prompt are its constants, in order, and then its own tokens."""
        self._calls += 1
        ids, ends = list(chain(*parts)), tuple(accumulate(map(len, parts)))
        names = (*map(str, ends[:-1]), f"p{self._calls}")
        prompt = Prompt((Piece(PieceKind.VALUE, ""),) * len(parts), names, chat=False)
        sampling = Sampling(max_tokens=max_tokens, ignore_eos=True)
        request = Request(f"r{self._calls}", "", prompt, sampling, salt)
        call = Generation(request, PromptTokens(ids, ends), self.token_bytes, frozenset(), None)
        self.loaded.loop.add(call)
        return call

    def step(self) -> bytes:
        """A step as the engine process does it, up to the bytes for the pipe."""
        self.loaded.loop.step()
        return from_child(Reports(self.loaded.loop.drain_reports()))

    def abort(self, calls: list[Generation]) -> None:
        """Let calls go."""
        for call in calls:
            self.loaded.loop.abort(call.rid)
        self.loaded.loop.drain_reports()
