"""The scripted engine's KV cache: it knows prompts by their structural prefixes and evicts the least recently used."""

from __future__ import annotations

from collections import OrderedDict

from parrot_server.core.model import Piece, PieceKind, Prompt
from parrot_server.engines.fake_script import ROLE_TOKENS

Key = tuple[str, str]  # salt, prefix


def piece_tokens(piece: Piece) -> int:
    """A piece's length: what the prompt says, else about four characters a token."""
    return piece.tokens or (ROLE_TOKENS if piece.kind is PieceKind.ROLE else -(-len(piece.text) // 4))


def prompt_tokens(prompt: Prompt) -> int:
    """A prompt's length."""
    return sum(map(piece_tokens, prompt.pieces))


class PrefixCache:
    """Which prefixes are in the cache, each under its tenant's salt.

    Args:
        capacity_tokens: how much it holds; pinned prefixes stay even beyond that.
        salted: whether salts separate tenants. False is a fault that real engines had.
    """

    def __init__(self, capacity_tokens: int, salted: bool = True) -> None:
        self._capacity_tokens = capacity_tokens
        self._salted = salted
        self._tokens: OrderedDict[Key, int] = (
            OrderedDict()
        )  # of the last piece of each prefix, least recently used first
        self._pins: dict[Key, tuple[frozenset[Key], float]] = {}  # what a pin holds, and until when
        self._hosted: set[Key] = set()
        self._used_tokens = 0

    @property
    def used_tokens(self) -> int:
        """Tokens on the device."""
        return self._used_tokens

    def cached_tokens(self, prompt: Prompt, salt: str) -> int:
        """How much of a prompt's beginning is there. The last token is always computed anew, as engines do."""
        found = 0
        for key in self._keys(prompt, salt):
            if key not in self._tokens:
                break
            found += self._tokens[key]
        return min(found, max(0, prompt_tokens(prompt) - 1))

    def insert(self, prompt: Prompt, salt: str, now_s: float, in_use_tokens: int = 0) -> None:
        """A prompt was read: all its prefixes are there, and others may have to go."""
        keys = self._keys(prompt, salt)
        for key, piece in reversed(list(zip(keys, prompt.pieces, strict=True))):
            if key not in self._hosted:
                self._used_tokens -= self._tokens.get(key, 0)
            self._hosted.discard(key)
            self._tokens[key] = piece_tokens(piece)
            self._used_tokens += self._tokens[key]
            self._tokens.move_to_end(key)  # a beginning is used later than what follows it, so it is evicted later
        self._evict(now_s, in_use_tokens)

    def pin(self, prefix: str, prompt: Prompt, salt: str, until_s: float) -> None:
        """Hold a prefix against eviction until a time."""
        self._pins[self._key(prefix, salt)] = frozenset(self._keys(prompt, salt)), until_s

    def unpin(self, prefix: str, salt: str) -> None:
        """Let a prefix go; unknown ones are ignored."""
        self._pins.pop(self._key(prefix, salt), None)

    def offload(self, prefix: str, prompt: Prompt, salt: str) -> None:
        """Move a prefix out to the host: it stays cached and takes no room on the device."""
        self.unpin(prefix, salt)
        moved = {key for key in self._keys(prompt, salt) if key in self._tokens} - self._hosted
        self._used_tokens -= sum(self._tokens[key] for key in moved)
        self._hosted |= moved

    def pinned(self, now_s: float) -> set[str]:
        """The prefixes that are pinned now."""
        self._pins = {key: pin for key, pin in self._pins.items() if pin[1] > now_s}
        return {prefix for _, prefix in self._pins}

    def clear(self) -> None:
        """Forget everything, as an engine that started anew."""
        self._tokens.clear()
        self._pins.clear()
        self._hosted.clear()
        self._used_tokens = 0

    def _evict(self, now_s: float, in_use_tokens: int) -> None:
        excess = self.used_tokens + in_use_tokens - self._capacity_tokens
        if excess <= 0:
            return
        self.pinned(now_s)
        held = frozenset[Key]().union(*(keys for keys, _ in self._pins.values())) | self._hosted
        for key in [key for key in self._tokens if key not in held]:
            if excess <= 0:
                return
            tokens = self._tokens.pop(key)
            self._used_tokens -= tokens
            excess -= tokens

    def _key(self, prefix: str, salt: str) -> Key:
        return (salt if self._salted else "", prefix)

    def _keys(self, prompt: Prompt, salt: str) -> list[Key]:
        return [self._key(prefix, salt) for prefix in prompt.prefixes]
