"""Ten thousand calls through the embedded engine: nothing grows, nothing is left."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from parrot_server.core.model import Tier
from parrot_server.engines.base import Stalled
from parrot_server.engines.embedded import EmbeddedEngine
from tests.engines.contract import CONSTANT, ask, request

pytestmark = [pytest.mark.model, pytest.mark.soak]
CALLS = 10_000
WARM_UP_CALLS = 1_000
AT_ONCE = 32
GROWTH_BYTES_A_CALL = 1_024


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")
def test_memory_is_flat_and_only_pins_stay() -> None:
    async def run() -> None:
        engine = EmbeddedEngine(kv_tokens=8_192)
        await engine.start()
        assert engine.pid is not None
        pinned = ask("x", CONSTANT)
        prefix = pinned.prefixes[1]
        await engine.keep(prefix, pinned.head(prefix), "", "", Tier.DEVICE, 36_000.0)
        used = (await engine.load()).used_tokens
        slots = asyncio.Semaphore(AT_ONCE)

        async def call(i: int) -> None:
            async with slots:
                prompt = ask(f"bird {i}", CONSTANT if i % 2 else "Say: " * (1 + i % 5))
                one = request(prompt, salt=f"tenant-{i % 7}" if i % 3 else "", max_tokens=1 + i % 3, ignore_eos=True)
                stream = engine.generate(one)
                async for event in stream:
                    if isinstance(event, Stalled):
                        await engine.resume(one.rid, None)
                    if i % 11 == 0:
                        break
                await stream.aclose()

        async def answered(text: str, constant: str = "") -> None:
            salt = "" if constant else text
            async for _ in engine.generate(request(ask(text, constant), salt=salt, max_tokens=1, ignore_eos=True)):
                pass

        # The library keeps about 1 MB for each size of a step, of which there are fifty: have it see them all.
        for words in range(8, 528, 16):
            await answered("bird " * words)
        # It keeps room for the largest batch too, 9 MB: calls of few own tokens that come while a long prompt is computed make one.
        await asyncio.gather(answered("bird " * 480), *(answered(f"bird {i}", CONSTANT) for i in range(AT_ONCE)))
        await asyncio.gather(*(call(i) for i in range(WARM_UP_CALLS)))
        before = resident_bytes(engine.pid), resident_bytes(os.getpid())
        for begin in range(WARM_UP_CALLS, CALLS, 1_000):
            await asyncio.gather(*(call(i) for i in range(begin, begin + 1_000)))
        after = resident_bytes(engine.pid), resident_bytes(os.getpid())
        load = await engine.load()
        assert (load.running, load.waiting, load.used_tokens) == (0, 0, used)
        await engine.close()
        for b, a in zip(before, after, strict=True):
            assert a - b < GROWTH_BYTES_A_CALL * (CALLS - WARM_UP_CALLS)

    asyncio.run(run())
