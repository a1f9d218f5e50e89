"""A model small enough to compute by hand: its next token is a hash of all tokens before it, read through the block tables.

So a block that is wrong, stale, shared when it must not be, or not brought back shows up as a wrong token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from parrot_server.engines.embedded.block_pool import Blocks
from parrot_server.engines.embedded.paged_model import HostBlocks, Row
from parrot_server.engines.embedded.settings import BLOCK_TOKENS

VOCABULARY = 50


def next_token(context: Sequence[int]) -> int:
    """What the toy says after these tokens."""
    state = 7
    for token in context:
        state = (state * 31 + int(token) + 1) % 1_000_003
    return state % VOCABULARY


class ToyModel:
    """Has what `StepLoop` and `KvCache` need of a `PagedModel`; its KV of a token is the token."""

    vocabulary = VOCABULARY

    def __init__(self) -> None:
        self.computed_tokens = 0
        self.steps: list[list[int]] = []  # how many tokens each row had
        self._kv: NDArray[np.int32] = np.empty((0, BLOCK_TOKENS), np.int32)

    def allocate(self, blocks: int) -> None:
        """Memory full of nonsense."""
        self._kv = np.full((blocks, BLOCK_TOKENS), -1_000, np.int32)

    def step(self, rows: Sequence[Row]) -> NDArray[np.float32]:
        """Write the tokens where the tables say, then read everything back through them."""
        self.steps.append([len(row.ids) for row in rows])
        for row in rows:
            for i, token in enumerate(row.ids, row.past_tokens):
                self._kv[row.table[i // BLOCK_TOKENS], i % BLOCK_TOKENS] = token
        self.computed_tokens += sum(len(row.ids) for row in rows)
        logits = np.zeros((sum(row.sampled for row in rows), VOCABULARY), np.float32)
        for i, row in enumerate([row for row in rows if row.sampled]):
            context = self._kv[row.table].ravel()[: row.past_tokens + len(row.ids)]
            logits[i, next_token(context.tolist())] = 1.0
        return logits

    def copy_block(self, source: int, target: int) -> None:
        """As in `PagedModel`."""
        self._kv[target] = self._kv[source]

    def read_blocks(self, blocks: Blocks) -> HostBlocks:
        """As in `PagedModel`."""
        return [self._kv[blocks]]

    def write_blocks(self, blocks: Blocks, saved: HostBlocks, first: int) -> None:
        """As in `PagedModel`."""
        data: Any = saved[0]
        self._kv[blocks] = data[first : first + len(blocks)]
