"""What the scripted engine does beyond the contract: its queue, its cache and its faults, on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from parrot_server.clock import run_virtual
from parrot_server.core.model import Tier, Usage
from parrot_server.engines.base import Done, GenerateEvent, Request, Text
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_script import ROLE_TOKENS, Answer
from parrot_server.errors import EngineError, Fault
from tests.engines.contract import CONSTANT, ask, request


async def run(engine: FakeEngine, call: Request) -> list[GenerateEvent]:
    return [event async for event in engine.generate(call)]


def usage(events: list[GenerateEvent]) -> Usage:
    assert isinstance(events[-1], Done)
    return events[-1].usage


def test_a_full_batch_queues_by_priority_and_then_by_arrival() -> None:
    async def main() -> None:
        engine = FakeEngine(max_running=1, token_s=1.0)
        calls = [request(ask(str(at)), priority=priority) for at, priority in enumerate((0, 0, 5, 0, 9))]
        await asyncio.gather(*(run(engine, call) for call in calls))
        assert engine.starts == [calls[at].rid for at in (0, 4, 2, 1, 3)]
        assert asyncio.get_running_loop().time() == pytest.approx(60)

    run_virtual(main())


def test_a_call_waits_for_room_for_its_kv() -> None:
    async def main() -> None:
        engine = FakeEngine(kv_tokens=1000, token_s=1.0)
        both = [asyncio.create_task(run(engine, request(ask(name), max_tokens=600, ignore_eos=True))) for name in "ab"]
        await asyncio.sleep(5)
        load = await engine.load()
        assert (load.running, load.waiting) == (1, 1)
        await asyncio.gather(*both)
        assert asyncio.get_running_loop().time() == pytest.approx(1200)

    run_virtual(main())


def test_prefill_costs_what_is_not_cached() -> None:
    async def main() -> None:
        engine = FakeEngine(prefill_token_s=1.0)
        first = usage(await run(engine, request(ask("one", CONSTANT))))
        begun = asyncio.get_running_loop().time()
        assert begun == pytest.approx(first.prompt_tokens)
        second = usage(await run(engine, request(ask("two", CONSTANT))))
        assert second.cached_tokens == second.prompt_tokens - 5  # the value is 1 token and the assistant's role 4
        assert asyncio.get_running_loop().time() - begun == pytest.approx(5)

    run_virtual(main())


def test_a_pinned_prefix_survives_a_flood_and_goes_after_release_or_its_time() -> None:
    async def main() -> None:
        engine = FakeEngine(kv_tokens=600)
        prompt = ask("value", CONSTANT)
        prefix = prompt.prefixes[1]

        async def cached_after_a_flood() -> int:
            for at in range(8):
                await run(engine, request(ask(str(at), f"{at}" * 800)))
            return usage(await run(engine, request(prompt))).cached_tokens

        tokens = await engine.keep(prefix, prompt.head(prefix), "", "", Tier.DEVICE, 1000.0)
        assert engine.pinned == {prefix}
        assert await cached_after_a_flood() >= tokens
        await engine.keep(prefix, None, "", "", Tier.NONE, 0.0)
        assert await cached_after_a_flood() == ROLE_TOKENS  # which the flood begins with too
        await engine.keep(prefix, prompt.head(prefix), "", "", Tier.DEVICE, 1000.0)
        await asyncio.sleep(1001)
        assert engine.pinned == set()
        assert await cached_after_a_flood() == ROLE_TOKENS  # which the flood begins with too
        await engine.keep(prefix, prompt.head(prefix), "", "", Tier.HOST, 1000.0)
        assert await cached_after_a_flood() >= tokens

    run_virtual(main())


def test_an_engine_that_died_of_a_call_starts_anew_and_one_that_is_down_does_not() -> None:
    async def main() -> None:
        engine = FakeEngine(script=[Answer("long answer", delays_s=5.0), Answer("ab", then="crash")])
        bystander = asyncio.create_task(run(engine, request(ask("bystander"))))
        await asyncio.sleep(1)
        for task in (asyncio.create_task(run(engine, request(ask("poison")))), bystander):
            with pytest.raises(EngineError, match="died") as caught:
                await task
            assert caught.value.fault is Fault.ENGINE
        with pytest.raises(EngineError, match="gone"):
            await engine.load()
        await engine.start()
        assert (await engine.load()).used_tokens == 0
        engine.go_down()
        with pytest.raises(EngineError, match="gone"):
            await engine.start()

    run_virtual(main())


def test_scripted_chunks_delays_usage_and_hanging() -> None:
    async def main() -> None:
        said = Usage(7, 3, 99, estimated=True)
        engine = FakeEngine(
            script=[Answer(["a", "b", "c"], delays_s=(1.0, 10.0), usage=said), Answer("x", then="hang")]
        )
        seen = []
        async for event in engine.generate(request(ask("bird"))):
            if isinstance(event, Text):
                seen.append((event.text, asyncio.get_running_loop().time()))
            if isinstance(event, Done):
                assert event.usage == said
        assert seen == [("a", 1.0), ("b", 11.0), ("c", 21.0)]
        call = request(ask("bird"))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1000):
                await run(engine, call)
        assert engine.aborts == [call.rid]

    run_virtual(main())


def test_an_abort_keeps_its_place_until_the_engine_has_let_go() -> None:
    async def main() -> None:
        engine = FakeEngine(max_running=1, token_s=1.0, abort_s=3.0)
        victim = asyncio.create_task(run(engine, request(ask("victim"))))
        await asyncio.sleep(2)
        other = asyncio.create_task(run(engine, request(ask("other"), max_tokens=1)))
        victim.cancel()
        await other
        assert asyncio.get_running_loop().time() == pytest.approx(6)

    run_virtual(main())


def test_an_engine_without_salts_leaks_across_tenants() -> None:
    async def main() -> None:
        engine = FakeEngine(salted=False)
        await run(engine, request(ask("one", CONSTANT), salt="a"))
        assert usage(await run(engine, request(ask("one", CONSTANT), salt="b"))).cached_tokens > 0

    run_virtual(main())


def test_a_schema_is_met_where_the_engine_can() -> None:
    async def main() -> None:
        schema = (
            '{"type":"object","properties":{"name":{"type":"string"},"ages":{"type":"array","items":{"$ref":"#/$defs/a"}}},'
            '"$defs":{"a":{"type":"integer","minimum":3}}}'
        )
        events = await run(FakeEngine(), request(ask("bird"), schema=schema, max_tokens=100))
        assert "".join(e.text for e in events if isinstance(e, Text)) == '{"name": "text", "ages": [3]}'

    run_virtual(main())
