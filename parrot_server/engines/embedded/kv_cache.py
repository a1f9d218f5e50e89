"""The KV memory: seats for running calls, shared beginnings, pins, and copies on the host."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from parrot_server.engines.embedded.block_pool import BlockPool, Blocks, blocks_for
from parrot_server.engines.embedded.host_store import HostStore, PrefixKey, Saved, begins_with
from parrot_server.engines.embedded.paged_model import PagedModel
from parrot_server.engines.embedded.prefix_tree import Ids, Node, PrefixTree
from parrot_server.engines.embedded.sequence import Seat, Sequence
from parrot_server.engines.embedded.settings import BLOCK_TOKENS


@dataclass(frozen=True, slots=True)
class Pin:
    """The blocks of a prefix that is held, and until when."""

    blocks: Blocks
    until_s: float


class KvCache:
    """Hands out the blocks of one model's KV memory and never more than there are.

    Args:
        model: its memory is allocated here.
        kv_blocks: how many blocks to use.
        host_blocks: how many may be moved out to the host.
        reuse: whether computed blocks are kept for other calls.
    """

    def __init__(self, model: PagedModel, kv_blocks: int, host_blocks: int, reuse: bool) -> None:
        model.allocate(kv_blocks)
        self._model = model
        self._reuse = reuse
        self._pool = BlockPool(kv_blocks)
        self._tree = PrefixTree(self._pool)
        self._host = HostStore(host_blocks)
        self._pins: dict[PrefixKey, Pin] = {}
        self._lost: list[str] = []

    @property
    def used_tokens(self) -> int:
        """Room that calls and pins hold; what is cached beyond that gives way when room is wanted."""
        return self._pool.held * BLOCK_TOKENS

    @property
    def size(self) -> int:
        """How many blocks there are."""
        return self._pool.size

    # ---- seats of calls --------------------------------------------------------------------------------------------

    def match(self, sequence: Sequence) -> list[Node]:
        """The nodes that hold the beginning of a call's tokens."""
        if not self._reuse:
            return []
        # The last token is computed again for its logits, and with it the one before: a step of one token uses another
        # kernel, whose results differ in the last bits.
        least = 2 if sequence.max_tokens else 0
        return self._tree.match(sequence.salt, sequence.ids[: max(sequence.length - least, 0)])

    def seat(self, sequence: Sequence) -> bool:
        """Have a call own blocks for all its tokens, with what is known of them in place; False when there is no room."""
        return self._sit_down(sequence) if sequence.seat is None else self._grow(sequence, sequence.seat)

    def _sit_down(self, sequence: Sequence) -> bool:
        self._restore(sequence)
        path = self.match(sequence)
        whole = [node for node in path if node.tokens == BLOCK_TOKENS]
        shared = _blocks_of(path)
        self._pool.hold(shared)
        missing = sequence.blocks - len(whole)
        if not self.make_room(missing):
            self._pool.drop(shared)
            return False
        own = self._pool.take(missing)
        if len(path) > len(whole):
            self._model.copy_block(path[-1].block, int(own[0]))
            self._pool.drop(shared[-1:])
        self._tree.touch(path)
        sequence.computed = sum(node.tokens for node in path)
        sequence.seat = Seat(np.concatenate([shared[: len(whole)], own]), whole)
        return True

    def _grow(self, sequence: Sequence, seat: Seat) -> bool:
        missing = sequence.blocks - len(seat.table)
        if missing > 0:
            if not self.make_room(missing):
                return False
            seat.table = np.concatenate([seat.table, self._pool.take(missing)])
        return True

    def record(self, sequence: Sequence, since: int) -> None:
        """Let others share what a call computed since it had `since` tokens: whole blocks, and where its prefixes end."""
        seat = sequence.seat
        if seat is None or not self._reuse:
            return
        while (len(seat.path) + 1) * BLOCK_TOKENS <= sequence.computed:
            node = self._name(sequence, seat, (len(seat.path) + 1) * BLOCK_TOKENS)
            self._share(seat, len(seat.path), node.block)
            seat.path.append(node)
        for _, end in sequence.prefixes:
            if since < end <= sequence.computed and end % BLOCK_TOKENS:
                self._name(sequence, seat, end)
        self._tree.touch(seat.path)

    def leave(self, sequence: Sequence) -> None:
        """Take a call's seat away. What it computed stays as long as the room is not wanted."""
        seat = sequence.seat
        if seat is None:
            return
        self.record(sequence, sequence.computed)
        if self._reuse and sequence.computed % BLOCK_TOKENS:
            self._name(sequence, seat, sequence.computed)
        self._pool.drop(seat.table)
        sequence.seat = None
        sequence.computed = 0

    def make_room(self, blocks: int) -> bool:
        """Have so many blocks free, at the cost of what nobody holds; False, and nothing lost, when that is not enough."""
        if self._pool.free + self._pool.evictable < blocks:
            return False
        while self._pool.free < blocks and self._tree.evict(blocks - self._pool.free):
            pass
        return self._pool.free >= blocks

    def _share(self, seat: Seat, index: int, block: int) -> None:
        """Use the tree's block in place of the call's own, where another call has computed the same tokens."""
        if block != seat.table[index]:
            own = seat.table[index : index + 1].copy()
            seat.table[index] = block
            self._pool.hold(seat.table[index : index + 1])
            self._pool.drop(own)

    def _name(self, sequence: Sequence, seat: Seat, end: int) -> Node:
        begin = (end - 1) // BLOCK_TOKENS
        parent = seat.path[begin - 1] if begin else None
        return self._tree.add(sequence.salt, parent, sequence.ids[begin * BLOCK_TOKENS : end], int(seat.table[begin]))

    # ---- prefixes that are held, moved out and let go --------------------------------------------------------------

    def pin(self, key: PrefixKey, ids: Ids, until_s: float) -> int:
        """Hold what is there of a prefix on the device; returns how many tokens that is."""
        path = self._tree.match(key[0], ids)
        blocks = _blocks_of(path)
        self._pool.hold(blocks)
        self.unpin(key)
        self._pins[key] = Pin(blocks, until_s)
        self._tree.touch(path)
        return sum(node.tokens for node in path)

    def unpin(self, key: PrefixKey) -> None:
        """Hold a prefix no longer; it stays as long as its room is not wanted."""
        if (pin := self._pins.pop(key, None)) is not None:
            self._pool.drop(pin.blocks)

    def release(self, key: PrefixKey) -> int:
        """Let a prefix go wherever it is; returns 0, for so much is held of it then."""
        self.unpin(key)
        self._host.remove(key)
        return 0

    def drain_lost(self) -> tuple[str, ...]:
        """What was pinned, or moved out, and had to go since this was last asked."""
        lost, self._lost = tuple(self._lost), []
        return lost

    def unpin_newest(self) -> bool:
        """Give up the pin that was made last, which `drain_lost` tells; False when there is none."""
        if not self._pins:
            return False
        key = next(reversed(self._pins))
        self.unpin(key)
        self._lost.append(key[1])
        return True

    def expire(self, now_s: float) -> None:
        """Let go of what was to be held until now."""
        for key in [key for key, pin in self._pins.items() if pin.until_s <= now_s]:
            self.unpin(key)

    def offload(self, key: PrefixKey, ids: Ids) -> int:
        """Move what is there of a prefix out to the host; returns how many tokens are there then."""
        path = self._tree.match(key[0], ids)
        tokens = sum(node.tokens for node in path)
        gone = self._host.make_room(key, tokens) if tokens else None
        self.unpin(key)
        if gone is None:
            return 0
        self._host.put(key, Saved(ids[:tokens].copy(), self._model.read_blocks(_blocks_of(path))))
        self._lost += (prefix for _, prefix in gone)
        self._tree.demote(path)
        return tokens

    def _restore(self, sequence: Sequence) -> None:
        """Bring the longest beginning back from the host that is longer than what is on the device, if there is room."""
        there = sum(node.tokens for node in self.match(sequence)) if len(self._host) else 0
        for prefix, _ in reversed(sequence.prefixes):
            key = (sequence.salt, prefix)
            saved = self._host.get(key)
            if saved is not None and len(saved.ids) > there and begins_with(sequence.ids[: sequence.length], saved):
                if self._put_back(sequence.salt, saved):
                    self._host.remove(key)
                return

    def _put_back(self, salt: str, saved: Saved) -> bool:
        path = [node for node in self._tree.match(salt, saved.ids) if node.tokens == BLOCK_TOKENS]
        present = _blocks_of(path)
        self._pool.hold(present)
        missing = blocks_for(len(saved.ids)) - len(path)
        room = self.make_room(missing)
        if room:
            blocks = self._pool.take(missing)
            self._model.write_blocks(blocks, saved.blocks, len(path))
            for block in blocks:
                begin = len(path) * BLOCK_TOKENS
                path.append(
                    self._tree.add(
                        salt, path[-1] if path else None, saved.ids[begin : begin + BLOCK_TOKENS], int(block)
                    )
                )
            self._pool.drop(blocks)
            self._tree.touch(path)
        self._pool.drop(present)
        return room

    def check(self, sequences: list[Sequence]) -> None:
        """Raise AssertionError unless every block is accounted for by these calls, the pins and the tree; for tests."""
        tables = [sequence.seat.table for sequence in sequences if sequence.seat is not None]
        self._pool.check([*tables, *(pin.blocks for pin in self._pins.values())], [node.block for node in self._tree])


def _blocks_of(path: list[Node]) -> Blocks:
    return np.array([node.block for node in path], np.int32)
