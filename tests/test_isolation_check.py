"""Engines are shared by tenants only where one cannot tell what another asked."""

from __future__ import annotations

import asyncio

import pytest

from parrot_server.config import Settings
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_http import FakeServer, FlavourName
from parrot_server.engines.openai import OpenAIEngine
from parrot_server.errors import SetupError
from parrot_server.runtime import Runtime, RuntimeSettings

ONE = Settings(api_keys={"k1": "ada", "k2": "ada"}).runtime()
TWO = Settings(api_keys={"k1": "ada", "k2": "bob"}).runtime()


def comes_up(settings: RuntimeSettings, flavour: FlavourName = "vllm", salted: bool = True) -> bool:
    """Bring up a runtime on a server of this kind, and say whether its engine is used. Raises what keeps it from that."""

    async def main() -> bool:
        async with (
            asyncio.timeout(20),
            FakeServer(flavour, engine=FakeEngine(salted=salted)) as server,
            Runtime([OpenAIEngine("shared", server.url)], settings) as runtime,
        ):
            await runtime.engines_up()
            return [engine.up for engine in runtime.scheduler.engines()] == [True]

    return asyncio.run(main())


def test_an_engine_that_mixes_tenants_is_not_used_by_several() -> None:
    with pytest.raises(SetupError, match=r"shared.*several tenants.*salts do not separate.*an engine a tenant"):
        comes_up(TWO, salted=False)


def test_one_that_knows_no_salts_is_not_used_by_several() -> None:
    with pytest.raises(SetupError, match=r"shared.*several tenants.*salts do not separate"):
        comes_up(TWO, "llama.cpp")


def test_it_is_used_by_one() -> None:
    assert comes_up(ONE, salted=False)


def test_an_engine_that_keeps_them_apart_is_used_by_several(caplog: pytest.LogCaptureFixture) -> None:
    assert comes_up(TWO)
    assert "tenants" not in caplog.text


def test_where_nobody_knows_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    assert comes_up(TWO, "openai")
    assert "engine shared is to be shared by several tenants, but nobody knows" in caplog.text
