"""A real SGLang that we launch: ready with the flags that we need, and stopped with all that it started."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from parrot_server.engines.base import Done
from parrot_server.engines.sglang_launch import LaunchedSGLang
from tests.engines.contract import ask, request
from tests.engines.test_sglang_launch import group_members

pytestmark = [pytest.mark.sglang, pytest.mark.anyio]
ON_CPU = (
    *("--served-model-name", "smollm2-135m", "--device", "cpu", "--attention-backend", "torch_native"),
    *("--sampling-backend", "pytorch", "--grammar-backend", "none", "--disable-overlap-schedule"),
    *("--skip-server-warmup", "--sleep-on-idle", "--max-total-tokens", "4096", "--max-running-requests", "4"),
)
OFFLINE = {"SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_launched_and_stopped(kit: str, tmp_path: Path) -> None:
    engine = LaunchedSGLang(
        "own",
        f"{kit}/model",
        python=f"{kit}/venv/bin/python",
        arguments=ON_CPU,
        environment=OFFLINE,
        log=tmp_path / "sglang.log",
    )
    try:
        async with asyncio.timeout(240):
            spec = await engine.start()
        process = engine.process_id
        assert process is not None
        assert (spec.models, spec.max_running, spec.can_pin) == (("smollm2-135m",), 4, True)
        assert isinstance([event async for event in engine.generate(request(ask("a bird")))][-1], Done)
        missing = {finding.ability for finding in await engine.doctor() if not finding.can}
        assert missing == {"grammar", "seeds"}
    finally:
        await engine.close()
    assert group_members(process) == []
