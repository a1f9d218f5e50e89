"""KV that was moved out to the host: whole prefixes, by name, within a budget."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

import numpy as np

from parrot_server.engines.embedded.block_pool import blocks_for
from parrot_server.engines.embedded.paged_model import HostBlocks
from parrot_server.engines.embedded.prefix_tree import Ids

PrefixKey = tuple[str, str]
"""A prefix's salt and name."""


@dataclass(frozen=True, slots=True)
class Saved:
    """The tokens of a prefix and the KV of all its blocks, the last one perhaps not full."""

    ids: Ids
    blocks: HostBlocks


class HostStore:
    """Saved prefixes; when there is no more room, that which was saved longest ago goes.

    Args:
        size: how many blocks it may hold.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.used = 0
        self._saved: OrderedDict[PrefixKey, Saved] = OrderedDict()

    def __len__(self) -> int:
        return len(self._saved)

    def get(self, key: PrefixKey) -> Saved | None:
        """What is saved of a prefix."""
        return self._saved.get(key)

    def make_room(self, key: PrefixKey, tokens: int) -> list[PrefixKey] | None:
        """Forget what gives way to a prefix, and say what that was; None, and nothing lost, when it is larger than the whole store."""
        blocks = blocks_for(tokens)
        if blocks > self.size:
            return None
        self.remove(key)
        gone: list[PrefixKey] = []
        while self.used + blocks > self.size:
            gone.append(next(iter(self._saved)))
            self.remove(gone[-1])
        return gone

    def put(self, key: PrefixKey, saved: Saved) -> None:
        """Save a prefix for which room was made."""
        self._saved[key] = saved
        self.used += blocks_for(len(saved.ids))

    def remove(self, key: PrefixKey) -> None:
        """Forget a prefix, if it is there."""
        if (saved := self._saved.pop(key, None)) is not None:
            self.used -= blocks_for(len(saved.ids))


def begins_with(ids: Ids, saved: Saved) -> bool:
    """Whether these tokens go on from a saved prefix."""
    return len(ids) >= len(saved.ids) and np.array_equal(ids[: len(saved.ids)], saved.ids)
