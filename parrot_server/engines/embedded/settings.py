"""What an embedded engine is set to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BLOCK_TOKENS = 32
"""How many tokens' KV makes a block: what OpenVINO's CPU kernels are laid out for."""

Mode = Literal["fast", "exact"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How the engine process runs a model. None leaves a choice to the machine.

    `fast` computes in what the processor does best (bf16 where it can) and keeps KV in 8 bits; `exact` computes in float32
    and keeps KV in float16. In both a prompt's KV is the same bit for bit whether its beginning was shared, computed in
    chunks, or offloaded and brought back, so that a greedy or seeded call that runs alone always gives the same text; in
    `fast` that holds on processors whose kernels keep to it, as those with AVX-512 do. Neither promises the same text
    beside other calls: the batch's size decides how sums are grouped.

    Args:
        folder: the prepared model.
        name: what the model is called in requests.
        threads: of the computation; None: one a physical core.
        context_tokens: longest prompt and answer together; None: the model's own.
        kv_tokens: room for KV; None: eight contexts, or a quarter of the free memory if that is less.
        host_tokens: room for KV that was moved out to the host; None: as much as `kv_tokens`; 0: no offloading.
        chunk_tokens: tokens computed in a step in which calls decode, theirs included: the rest is for prompts, so more
            makes prompts faster and decodes slower.
        idle_chunk_tokens: prompt tokens in a step in which none decodes; it bounds how long an abort waits.
        max_running: calls in one batch.
        reuse: whether computed blocks are kept for other calls that begin alike.

    Raises:
        ValueError: one of them is out of its range.
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

    def __post_init__(self) -> None:
        least = {
            "threads": 1,
            "context_tokens": 2,
            "kv_tokens": BLOCK_TOKENS,
            "host_tokens": 0,
            "chunk_tokens": BLOCK_TOKENS,
            "idle_chunk_tokens": BLOCK_TOKENS,
            "max_running": 1,
        }
        for name, bound in least.items():
            value = getattr(self, name)
            if value is not None and value < bound:
                raise ValueError(f"{name} is {value}; it must be at least {bound}")
        if self.mode not in ("fast", "exact"):
            raise ValueError(f"mode is {self.mode!r}; it must be 'fast' or 'exact'")
