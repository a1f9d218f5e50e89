"""How much KV the prompts that are in use on an engine take: a beginning that several share counts once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from parrot_server.core.model import Prompt


@dataclass(slots=True)
class KvUse:
    """Prompts in use, by running calls or by pins. `tokens` is what they take together."""

    tokens: int = 0
    _nodes: dict[str, list[int]] = field(default_factory=dict)  # of each prefix: users, and tokens of its last piece

    def missing_tokens(self, prompt: Prompt) -> int:
        """How much more it would be with this prompt."""
        nodes = self._nodes
        pairs = zip(prompt.prefixes, prompt.pieces, strict=True)
        return sum(piece.tokens for prefix, piece in pairs if prefix not in nodes)

    def add(self, prompt: Prompt) -> None:
        """A prompt is in use."""
        nodes = self._nodes
        for prefix, piece in zip(prompt.prefixes, prompt.pieces, strict=True):
            node = nodes.get(prefix)
            if node is None:
                nodes[prefix] = [1, piece.tokens]
                self.tokens += piece.tokens
            else:
                node[0] += 1

    def remove(self, prompt: Prompt) -> None:
        """A prompt that was in use is not any more."""
        nodes = self._nodes
        for prefix in prompt.prefixes:
            node = nodes[prefix]
            node[0] -= 1
            if not node[0]:
                del nodes[prefix]
                self.tokens -= node[1]

    def validate(self, prompts: Iterable[Prompt]) -> None:
        """Recount. Raises AssertionError."""
        counts = Counter(prefix for prompt in prompts for prefix in prompt.prefixes)
        assert counts == {prefix: users for prefix, (users, _) in self._nodes.items()}, "wrong users of prefixes"
        assert self.tokens == sum(tokens for _, tokens in self._nodes.values()), "wrong sum of tokens"
