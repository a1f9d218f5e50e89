"""How much room an embedded engine takes when nobody says: on a small machine, and on a large one."""

from __future__ import annotations

import pytest

from parrot_server.engines.embedded.loading import kv_blocks_for
from parrot_server.engines.embedded.settings import BLOCK_TOKENS
from parrot_server.errors import SetupError

CONTEXT_TOKENS = 8_192
SMALL_MODEL_BYTES, LARGE_MODEL_BYTES = 400_000, 4_194_304  # of a block
GIB = 2**30


@pytest.mark.parametrize(
    ("block_bytes", "free_bytes", "tokens"),
    [
        (SMALL_MODEL_BYTES, 2 * GIB, 1342 * BLOCK_TOKENS),  # two cores: a quarter of what is free
        (SMALL_MODEL_BYTES, 200 * GIB, 8 * CONTEXT_TOKENS),  # 64 cores: eight contexts
        (LARGE_MODEL_BYTES, 2 * GIB, 128 * BLOCK_TOKENS),  # less than one context: that is cut then
        (LARGE_MODEL_BYTES, 200 * GIB, 8 * CONTEXT_TOKENS),
    ],
)
def test_room_for_kv_by_the_machine(block_bytes: int, free_bytes: int, tokens: int) -> None:
    blocks = kv_blocks_for(None, CONTEXT_TOKENS, block_bytes, free_bytes)
    assert blocks * BLOCK_TOKENS == tokens
    assert blocks * block_bytes <= free_bytes / 4


def test_what_was_asked_for_is_taken() -> None:
    assert kv_blocks_for(4_096, CONTEXT_TOKENS, LARGE_MODEL_BYTES, GIB) * BLOCK_TOKENS == 4_096


def test_no_room_for_a_block_is_said() -> None:
    with pytest.raises(SetupError, match="no room for KV"):
        kv_blocks_for(None, CONTEXT_TOKENS, LARGE_MODEL_BYTES, 8_000_000)
