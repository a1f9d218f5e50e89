"""What work costs on this machine, measured at start-up in less than a second."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from parrot_server.core.model import CostModel
from parrot_server.engines.embedded.paged_model import PagedModel, row_of
from parrot_server.engines.embedded.settings import BLOCK_TOKENS

_PROMPT_TOKENS = 256
_BATCH = 8
_LONG_TOKENS = 2048
_REPEATS = 5
_MOVED_BLOCKS = 16


def measure(model: PagedModel) -> CostModel:
    """Run a prompt, and decode in batches of one and eight, with little and with much in the cache.

    The blocks that it writes must be free; what it leaves in them is never read. The tables name blocks several times, so
    that a long context needs no memory.
    """
    blocks = min(_MOVED_BLOCKS, model.blocks)
    long_tokens = _LONG_TOKENS - 1
    prefill_s = _seconds(lambda: _step(model, blocks, 1, 0, min(_PROMPT_TOKENS, blocks * BLOCK_TOKENS)), repeats=2)
    one_s = _seconds(lambda: _step(model, blocks, 1, BLOCK_TOKENS, 1))
    many_s = _seconds(lambda: _step(model, blocks, _BATCH, BLOCK_TOKENS, 1))
    long_s = _seconds(lambda: _step(model, blocks, _BATCH, long_tokens, 1))
    moved = np.arange(blocks, dtype=np.int32)
    saved = model.read_blocks(moved)
    out_s = _seconds(lambda: model.read_blocks(moved))
    back_s = _seconds(lambda: model.write_blocks(moved, saved, 0))
    sequence_s = max(many_s - one_s, 0.0) / (_BATCH - 1)
    return CostModel(
        prefill_token_s=prefill_s / min(_PROMPT_TOKENS, blocks * BLOCK_TOKENS),
        step_s=max(one_s - sequence_s, 0.0),
        sequence_s=sequence_s,
        resident_token_s=max(long_s - many_s, 0.0) / (_BATCH * (long_tokens - BLOCK_TOKENS)),
        offload_token_s=max(out_s, back_s) / (blocks * BLOCK_TOKENS),
    )


def _step(model: PagedModel, blocks: int, batch: int, past_tokens: int, tokens: int) -> None:
    ids = np.full(tokens, 1, np.int32)
    table = np.resize(np.arange(blocks, dtype=np.int32), -(-(past_tokens + tokens) // BLOCK_TOKENS))
    model.step([row_of(ids, past_tokens, table, sampled=True)] * batch)


def _seconds(work: Callable[[], object], repeats: int = _REPEATS) -> float:
    """The least time of some work, after once for nothing: the first run of a shape compiles, and what else is busy only adds."""
    work()
    times = []
    for _ in range(repeats):
        began_s = time.perf_counter()
        work()
        times.append(time.perf_counter() - began_s)
    return min(times)
