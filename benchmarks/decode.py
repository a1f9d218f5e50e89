"""Decoding: our step loop beside the same compiled model driven bare; the same work by our process, over HTTP, and on others' servers.

The loop and the bare model take turns in one process, since machines differ and are busy.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from statistics import median

from benchmarks.loop import LoopBench, random_prompt
from benchmarks.servers import OURS, TOKENS, over_http, through_the_process
from parrot_server.engines.embedded.model_files import DEFAULT_MODEL
from parrot_server.engines.embedded.paged_model import PagedModel, row_of
from parrot_server.engines.embedded.sequence import Generation

ALTERNATIONS = 7
STEPS = 16
PROMPT_TOKENS = 128
BATCHES = (1, 4, 8, 16)
BOUNDS = {1: 0.9, 8: 0.95, 16: 0.95}


@dataclass(frozen=True)
class DecodeRate:
    """Decoding at one batch size, in tokens a second, and the share of the bare rate that our loop reaches."""

    batch: int
    bare: float
    loop: float
    ratio: float


def decode_rate(bench: LoopBench, batch: int) -> DecodeRate:
    """Our loop against `infer()` and an argmax with the inputs set beforehand: same model, process and threads.

    The two take turns at every step, so that whatever else the machine does hits both alike.
    """
    calls = [
        bench.call(random_prompt(PROMPT_TOKENS, seed), max_tokens=4 * ALTERNATIONS * STEPS) for seed in range(batch)
    ]
    while not all(call.output_tokens for call in calls):
        bench.step()
    bare, loop = [], []
    for _ in range(ALTERNATIONS):
        bare_s = loop_s = 0.0
        for _ in range(STEPS):
            bare_s += _bare_step_s(bench.model, calls)
            began_s = time.perf_counter()
            bench.step()
            loop_s += time.perf_counter() - began_s
        bare.append(bare_s / STEPS)
        loop.append(loop_s / STEPS)
    bench.abort(calls)
    ratio = median(b / o for b, o in zip(bare, loop, strict=True))
    return DecodeRate(batch, batch / median(bare), batch / median(loop), ratio)


def _bare_step_s(model: PagedModel, calls: list[Generation]) -> float:
    """The time to compute the last computed token of each call once more, which changes nothing."""
    rows = []
    for call in calls:
        assert call.seat is not None
        past = call.computed - 1
        rows.append(row_of(call.ids[past : past + 1], past, call.seat.table, sampled=True))
    request = model.set_inputs(rows)
    began_s = time.perf_counter()
    request.infer(share_outputs=True)
    request.get_output_tensor(0).data[:, 0, :].argmax(axis=1)
    return time.perf_counter() - began_s


def main() -> None:
    """Print every ratio with the raw figures."""
    bench = LoopBench()
    print(f"decode, {DEFAULT_MODEL}, measured costs: {bench.loaded.spec.cost}")
    print("  tokens/s        bare      loop  loop/bare  at least")
    for batch in BATCHES:
        rate = decode_rate(bench, batch)
        bound = BOUNDS.get(batch)
        wanted = f"{bound:8.2f}: {rate.ratio >= bound}" if bound else ""
        print(f"  batch {batch:2}    {rate.bare:8.1f}  {rate.loop:8.1f}  {rate.ratio:9.3f}  {wanted}")
    print(
        f"the same model by processes and servers, tokens/s while all decode ({TOKENS} tokens each after {PROMPT_TOKENS} or so)"
    )
    process = [asyncio.run(through_the_process(batch)) for batch in BATCHES]
    print(f"  {'batch':24}" + "".join(f"{batch:9}" for batch in BATCHES))
    print(f"  {'our engine process':24}" + "".join(f"{rate:9.1f}" for rate in process))
    for name, rates in over_http(BATCHES):
        line = rates if isinstance(rates, str) else "".join(f"{rate:9.1f}" for rate in rates)
        print(f"  {name:24}{line}")
        if name == OURS and not isinstance(rates, str):
            print(f"  {'  of the process':24}" + "".join(f"{a / b:9.2f}" for a, b in zip(rates, process, strict=True)))


if __name__ == "__main__":
    main()
