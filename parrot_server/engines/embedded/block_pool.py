"""The KV memory in blocks of fixed size, and who refers to each."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from parrot_server.engines.embedded.settings import BLOCK_TOKENS

Blocks = NDArray[np.int32]


def blocks_for(tokens: int) -> int:
    """How many blocks so many tokens take."""
    return -(-tokens // BLOCK_TOKENS)


class BlockPool:
    """Counts references to blocks. A block is held by tables of calls and by pins, and cached by nodes of the prefix tree.

    One that is neither is free; one that is only cached is evictable: the tree may give it up.

    Args:
        size: how many blocks there are.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.evictable = 0
        self._free = list(range(size - 1, -1, -1))  # a stack: what was used last is used next, so memory stays warm
        self._held: Blocks = np.zeros(size, np.int32)
        self._cached: Blocks = np.zeros(size, np.int32)

    @property
    def free(self) -> int:
        """Blocks that nobody refers to."""
        return len(self._free)

    @property
    def held(self) -> int:
        """Blocks that some call or pin needs."""
        return self.size - self.free - self.evictable

    def take(self, count: int) -> Blocks:
        """Hold free blocks. Raises IndexError when there are not so many: make room first."""
        if count > len(self._free):
            raise IndexError(f"{count} blocks wanted, {len(self._free)} free")
        blocks = np.array([self._free.pop() for _ in range(count)], np.int32)
        self._held[blocks] = 1
        return blocks

    def hold(self, blocks: Blocks) -> None:
        """Refer to blocks, each named once, that are held or cached already."""
        self.evictable -= int(np.count_nonzero(self._held[blocks] == 0))
        self._held[blocks] += 1

    def drop(self, blocks: Blocks) -> None:
        """Refer to blocks no longer."""
        self._held[blocks] -= 1
        dropped = blocks[self._held[blocks] == 0]
        cached = self._cached[dropped] > 0
        self.evictable += int(np.count_nonzero(cached))
        self._free.extend(dropped[~cached].tolist())

    def cache(self, block: int) -> None:
        """A node of the tree names a held block."""
        self._cached[block] += 1

    def uncache(self, block: int) -> bool:
        """A node of the tree goes; whether that made the block free."""
        self._cached[block] -= 1
        if self._cached[block] or self._held[block]:
            return False
        self.evictable -= 1
        self._free.append(block)
        return True

    def is_held(self, block: int) -> bool:
        """Whether some call or pin needs the block."""
        return bool(self._held[block])

    def check(self, tables: Iterable[Blocks], cached: Iterable[int]) -> None:
        """Raise AssertionError unless the counts are those of these tables and nodes, for tests."""
        held = np.zeros(self.size, np.int32)
        for table in tables:
            held[table] += 1
        named = np.zeros(self.size, np.int32)
        for block in cached:
            named[block] += 1
        assert np.array_equal(held, self._held)
        assert np.array_equal(named, self._cached)
        assert sorted(self._free) == np.flatnonzero((held == 0) & (named == 0)).tolist()
        assert self.evictable == np.count_nonzero((held == 0) & (named > 0))
