"""The roofline engine's KV memory: prompts' pieces as nodes that calls share, a bound in tokens, and what goes when it is full.

A node is the last piece of a prefix. Nodes in use, by a call or a pin, stay; the others are evicted, least recently used first, and a
prompt's end before its beginning.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from parrot_server.core.model import Piece, Tier


@dataclass(slots=True)
class _Node:
    tokens: int
    users: int = 0
    tier: Tier = Tier.DEVICE


class KvMemory:
    """What of which prompts is in memory.

    Args:
        capacity_tokens: how much fits on the device.
        shares: whether calls reuse what others have computed. Without it only pinned prefixes are shared.
    """

    def __init__(self, capacity_tokens: int, shares: bool) -> None:
        self.capacity_tokens = capacity_tokens
        self.used_tokens = 0  # on the device
        self.evicted_tokens = 0  # in all
        self._shares = shares
        self._nodes: dict[str, _Node] = {}
        self._idle: OrderedDict[str, None] = OrderedDict()  # nodes that nobody uses, least recently used first
        self._pins: dict[str, tuple[str, ...]] = {}  # a pinned prefix, and the nodes that it holds
        self._pinned: dict[str, int] = {}

    @property
    def free_tokens(self) -> int:
        """Room without evicting anything."""
        return self.capacity_tokens - self.used_tokens

    def names(self, prefixes: tuple[str, ...], owner: str) -> tuple[str, ...]:
        """The nodes of a prompt: those of its prefixes, or its owner's own where nothing is shared."""
        if self._shares:
            return prefixes
        return tuple(name if name in self._pinned else f"{name} {owner}" for name in prefixes)

    def admit(self, names: Sequence[str], pieces: Sequence[Piece], more_tokens: int = 0) -> tuple[int, int] | None:
        """Hold a prompt's nodes for a user, and make room for so many tokens beside them.

        Returns how much of the prompt's beginning was on the device and on the host already; None: there is no room.
        """
        known = 0
        held = {Tier.DEVICE: 0, Tier.HOST: 0}
        for name in names:
            node = self._nodes.get(name)
            if node is None:
                break
            held[node.tier] += node.tokens
            known += 1
        missing = sum(piece.tokens for piece in pieces[known:])
        self._use(names[:known], pieces)
        if not self.make_room(missing + more_tokens):
            self.let_go(names[:known])
            return None
        self._use(names[known:], pieces[known:])
        self.used_tokens += more_tokens
        return held[Tier.DEVICE], held[Tier.HOST]

    def _use(self, names: Sequence[str], pieces: Sequence[Piece]) -> None:
        for name, piece in zip(names, pieces, strict=False):
            node = self._nodes.get(name)
            if node is None:
                node = self._nodes[name] = _Node(piece.tokens)
                self.used_tokens += piece.tokens
            elif node.tier is Tier.HOST:
                node.tier = Tier.DEVICE
                self.used_tokens += node.tokens
            self._take(name, node)

    def _take(self, name: str, node: _Node) -> None:
        if node.users == 0:
            self._idle.pop(name, None)
        node.users += 1

    def let_go(self, names: Sequence[str]) -> None:
        """A user needs its nodes no more. The end of a prompt becomes idle before its beginning."""
        for name in reversed(names):
            node = self._nodes[name]
            node.users -= 1
            if node.users == 0 and self._shares and node.tier is Tier.DEVICE:
                self._idle[name] = None
            elif node.users == 0:
                self._drop(name)

    def grow(self, tokens: int) -> None:
        """Running calls have written so many tokens more."""
        self.used_tokens += tokens

    def shrink(self, tokens: int) -> None:
        """A call's own tokens are gone."""
        self.used_tokens -= tokens

    def keep_output(self, name: str, tokens: int) -> None:
        """A call has ended: what it wrote stands behind its prompt, until room is needed."""
        if self._shares and name not in self._nodes:
            self._nodes[name] = _Node(tokens)
            self._idle[name] = None
        else:
            self.used_tokens -= tokens

    def make_room(self, tokens: int) -> bool:
        """Evict what is idle until so many tokens are free. False: there is not that much to evict."""
        while self.free_tokens < tokens and self._idle:
            name = next(iter(self._idle))
            del self._idle[name]
            self.evicted_tokens += self._nodes[name].tokens
            self._drop(name)
        return self.free_tokens >= tokens

    def pin(self, prefix: str, names: tuple[str, ...]) -> None:
        """Keep what a user holds for its prefix, until `unpin`; in the place of an earlier pin, which was moved to the host."""
        earlier = self._pins.pop(prefix, ())
        self._pins[prefix] = names
        for name in names:
            self._pinned[name] = self._pinned.get(name, 0) + 1
        self._unhold(earlier)

    def is_pinned(self, prefix: str) -> bool:
        """Whether a prefix is pinned on the device."""
        names = self._pins.get(prefix)
        return names is not None and all(self._nodes[name].tier is Tier.DEVICE for name in names)

    @property
    def newest_pin(self) -> str | None:
        """The prefix that was pinned last."""
        return next(reversed(self._pins), None)

    def unpin(self, prefix: str) -> None:
        """Let a pinned prefix go; it stays until room is needed."""
        self._unhold(self._pins.pop(prefix, ()))

    def _unhold(self, names: tuple[str, ...]) -> None:
        for name in names:
            self._pinned[name] -= 1
            if not self._pinned[name]:
                del self._pinned[name]
        self.let_go(names)

    def offload(self, prefix: str, prefixes: tuple[str, ...]) -> int:
        """Move a beginning to the host, but for what others hold. Returns how many tokens that were.

        Args:
            prefix: what it is called, until `unpin`.
            prefixes: of its pieces; it need not be pinned if it is there still.
        """
        if prefix not in self._pins and self._shares and all(name in self._nodes for name in prefixes):
            for name in prefixes:
                self._take(name, self._nodes[name])
            self.pin(prefix, prefixes)
        moved = 0
        for name in self._pins.get(prefix, ()):
            node = self._nodes[name]
            if node.users == 1 and node.tier is Tier.DEVICE:
                node.tier = Tier.HOST
                moved += node.tokens
        self.used_tokens -= moved
        return moved

    def _drop(self, name: str) -> None:
        node = self._nodes.pop(name)
        if node.tier is Tier.DEVICE:
            self.used_tokens -= node.tokens

    def validate(self) -> None:
        """State every invariant. Raises AssertionError."""
        on_device = sum(node.tokens for node in self._nodes.values() if node.tier is Tier.DEVICE)
        assert on_device <= self.used_tokens
        idle = {name for name, node in self._nodes.items() if node.users == 0}
        assert idle == set(self._idle)
