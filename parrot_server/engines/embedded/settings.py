"""What an embedded engine is set to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Mode = Literal["fast", "exact"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How the engine process runs a model. None leaves a choice to the machine.

    `fast` computes in what the processor does best (bf16 where it can) and keeps KV in 8 bits: near-ties between tokens may
    fall either way with the batch. `exact` computes in float32 and keeps KV in float16: a prompt's KV is the same bit for
    bit whether its beginning was shared, computed in chunks, or offloaded and brought back, so a greedy call that runs
    alone always gives the same text. Neither promises the same text beside other calls.

    Args:
        folder: the prepared model.
        name: what the model is called in requests.
        threads: of the computation; None: one a physical core.
        context_tokens: longest prompt and answer together; None: the model's own.
        kv_tokens: room for KV; None: eight contexts, or a quarter of the free memory if that is less.
        host_tokens: room for KV that was moved out to the host; None: as much as `kv_tokens`; 0: no offloading.
        chunk_tokens: prompt tokens computed in a step beside running decodes: more makes prompts faster, decodes slower.
        idle_chunk_tokens: the same in a step without decodes; it bounds how long an abort waits.
        max_running: calls in one batch.
        reuse: whether computed blocks are kept for other calls that begin alike.
    """

    folder: str
    name: str
    threads: int | None = None
    context_tokens: int | None = None
    kv_tokens: int | None = None
    host_tokens: int | None = None
    chunk_tokens: int = 64
    idle_chunk_tokens: int = 512
    max_running: int = 32
    mode: Mode = "fast"
    reuse: bool = True
