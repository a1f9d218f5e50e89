"""The prefixes whose KV is there: a tree with one block of tokens an edge, so that prompts which begin alike share blocks.

A node names the block that holds the KV of its tokens, given those of its ancestors. Most nodes are of a whole block; where
a declared prefix or a finished call ends inside a block, a node of fewer tokens says so, and a call that goes on from there
copies that one block. Tokens are compared, not their hashes, so what is found is what was asked for.

Source: the tree is that of Zheng et al., "SGLang: Efficient Execution of Structured Language Model Programs" (2024),
section 3, at the granularity of Kwon et al., "Efficient Memory Management ... with PagedAttention" (2023), section 4.3.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from parrot_server.engines.embedded.block_pool import BlockPool
from parrot_server.engines.embedded.settings import BLOCK_TOKENS

_EVICT_AT_ONCE = 16
_TOKEN_BYTES = 4

Ids = NDArray[np.int32]


class Node:
    """One block, or part of one, on the way from the root; `key` is its tokens as bytes."""

    __slots__ = ("block", "children", "key", "parent")

    def __init__(self, key: bytes, block: int, parent: Node | None) -> None:
        self.key = key
        self.block = block
        self.parent = parent
        self.children: dict[bytes, Node] = {}

    @property
    def tokens(self) -> int:
        """How many tokens of the block are this node's."""
        return len(self.key) // _TOKEN_BYTES


class PrefixTree:
    """All prefixes, by salt. What nobody holds may go, that which was used longest ago first.

    Args:
        pool: counts the nodes' references.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self._roots: dict[str, Node] = {}
        self._by_age: OrderedDict[Node, None] = OrderedDict()  # a node is older than its ancestors

    def __iter__(self) -> Iterator[Node]:
        return iter(self._by_age)

    def match(self, salt: str, ids: Ids) -> list[Node]:
        """The longest known beginning of `ids`: nodes of whole blocks, the last one perhaps of fewer tokens."""
        node = self._roots.get(salt)
        path: list[Node] = []
        position = 0
        while node is not None:
            node = self.child(node, ids[position : position + BLOCK_TOKENS])
            if node is None:
                break
            path.append(node)
            position += node.tokens
        return path

    def child(self, parent: Node, ids: Ids) -> Node | None:
        """The child that is the longest beginning of at most one block of tokens."""
        if not parent.children:
            return None
        key = ids.tobytes()
        for size in range(len(key), 0, -_TOKEN_BYTES):
            if (node := parent.children.get(key[:size])) is not None:
                return node
        return None

    def add(self, salt: str, parent: Node | None, ids: Ids, block: int) -> Node:
        """Name a held block as the KV of `ids` after `parent` (None: the root); a node that is there already stays."""
        if parent is None:
            parent = self._roots.setdefault(salt, Node(salt.encode(), -1, None))
        key = ids.tobytes()
        node = parent.children.get(key)
        if node is None:
            node = parent.children[key] = Node(key, block, parent)
            self._by_age[node] = None
            self._pool.cache(block)
        return node

    def touch(self, path: Iterable[Node]) -> None:
        """These nodes, from the root down, were used now."""
        for node in reversed(list(path)):
            self._by_age.move_to_end(node)

    def demote(self, path: list[Node]) -> None:
        """The end of this path from the root, as far up as nothing else goes on from it, is the first to go."""
        begin = len(path)
        while begin and len(path[begin - 1].children) <= (begin < len(path)):
            begin -= 1
        for node in path[begin:]:
            self._by_age.move_to_end(node, last=False)

    def evict(self, blocks: int) -> int:
        """Give up blocks that nobody holds, oldest first, until so many are free or there are none; returns how many."""
        wanted, freed = max(blocks, _EVICT_AT_ONCE), 0
        needed: list[Node] = []
        while freed < wanted and self._by_age:
            node, _ = self._by_age.popitem(last=False)
            if node.children or self._pool.is_held(node.block):
                needed.append(node)
            else:
                freed += self._unlink(node)
        self._put_back(needed)
        return freed

    def _put_back(self, oldest: list[Node]) -> None:
        for node in reversed(oldest):
            self._by_age[node] = None
            self._by_age.move_to_end(node, last=False)

    def _unlink(self, node: Node) -> bool:
        parent = node.parent
        assert parent is not None
        del parent.children[node.key]
        if parent.parent is None and not parent.children:
            del self._roots[parent.key.decode()]
        return self._pool.uncache(node.block)
