"""What the SGLang adapter sends, holds and lets go of, and what it makes of servers that were started differently."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from parrot_server.core.model import Tier
from parrot_server.engines import sglang_pins
from parrot_server.engines.base import Taken, Text
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.fake_http import FakeServer, Route
from parrot_server.engines.fake_http_sglang import abort_request, loads, server_info
from parrot_server.engines.fake_http_wire import Body, EventStream, Wire, json_response, problem
from parrot_server.engines.sglang import SGLangEngine
from parrot_server.errors import EngineError, Fault, SetupError
from tests.engines.contract import CONSTANT, ask, request, until
from tests.engines.test_contract_sglang import FEW_FLAGS
from tests.engines.test_http_faults import fail, run
from tests.engines.tiny import tiny_tokenizer, write_tokenizer

pytestmark = pytest.mark.anyio
TOKENIZER = tiny_tokenizer()


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def served(
    settings: Body | None = None, inner: FakeEngine | None = None, routes: dict[str, Route] | None = None, **how: Any
) -> AsyncIterator[tuple[FakeServer, SGLangEngine]]:
    async with FakeServer("sglang", settings=settings, engine=inner, routes=routes) as server:
        engine = SGLangEngine("engine", server.url, **{"tokenizer": TOKENIZER, **how})
        await engine.start()
        try:
            yield server, engine
        finally:
            await engine.close()


def sent(server: FakeServer, path: str) -> list[Body]:
    return [body for to, body in server.bodies if to == path]


@pytest.mark.parametrize(
    ("settings", "sign"),
    [
        ({}, 1),
        ({"schedule_low_priority_values_first": True}, -1),
        ({"enable_priority_scheduling": False, "abort_on_priority_when_disabled": True}, 0),
    ],
)
async def test_a_priority_has_the_sign_that_the_server_reads(settings: Body, sign: int) -> None:
    async with served(settings) as (server, engine):
        for ours in (1, 0, -1):
            await run(engine, request(ask("a bird"), priority=ours))
            assert sent(server, "/generate")[-1].get("priority") == (sign * ours if sign else None)
            assert server.engine.requests[-1].priority == (ours if sign else 0)


async def test_a_call_goes_out_as_ids_under_our_name_and_its_tenants_salt() -> None:
    async with served() as (server, engine):
        call = request(ask("hi<|im_end|>"), salt="tenant", stop=("END",), seed=3, ignore_eos=True)
        await run(engine, call)
        assert sent(server, "/generate") == [
            {
                "rid": call.rid,
                "input_ids": TOKENIZER.encode(call.prompt).ids,
                "sampling_params": {
                    "max_new_tokens": 12,
                    "temperature": 0.0,
                    "top_p": 1.0,
                    "stop": ["END"],
                    "no_stop_trim": True,
                    "ignore_eos": True,
                    "sampling_seed": 3,
                },
                "stream": True,
                "cache_salt": "tenant",
                "extra_key": "tenant",
                "priority": 0,
            }
        ]


async def test_a_grammar_is_sent_only_to_a_server_that_has_one() -> None:
    for settings, expected in (({}, "(a\\.b|c)"), ({"grammar_backend": "none"}, None)):
        async with served(settings) as (server, engine):
            await run(engine, request(ask("a bird"), choices=("a.b", "c")))
            await run(engine, request(ask("a bird"), schema='{"type": "integer"}', max_tokens=50))
            first, second = (body["sampling_params"] for body in sent(server, "/generate"))
            assert first.get("regex") == expected
            assert second.get("json_schema") == ('{"type": "integer"}' if expected else None)


async def test_queue_time_is_read_back() -> None:
    async with served() as (_, engine):
        events = [event async for event in engine.generate(request(ask("a bird")))]
        assert events[0] == Taken(queue_s=0.001)


# Pins.


async def test_a_pin_is_a_session_that_ends_by_itself_and_is_never_missing_while_it_is_renewed() -> None:
    async with served() as (server, engine):
        prompt = ask("value", CONSTANT)
        prefix = prompt.prefixes[1]
        head = prompt.head(prefix)
        tokens = await engine.keep(prefix, head, "", "salt", Tier.DEVICE, 60.0)
        assert tokens == TOKENIZER.encode(prompt).covered[1]
        (opened,) = sent(server, "/open_session")
        assert opened["timeout"] == 60.0
        (warm,) = sent(server, "/generate")
        assert warm["sampling_params"]["max_new_tokens"] == 0
        assert (warm["session_id"], warm["cache_salt"], warm["priority"]) == (opened["session_id"], "salt", 1)
        await engine.keep(prefix, head, "", "salt", Tier.DEVICE, 90.0)
        (closed,) = sent(server, "/close_session")
        assert closed["session_id"] == opened["session_id"]
        again = sent(server, "/open_session")[-1]
        assert again["session_id"] != opened["session_id"]
        assert [path for path, _ in server.bodies][-3:] == ["/open_session", "/generate", "/close_session"]
        await engine.keep(prefix, None, "", "salt", Tier.NONE, 0.0)
        assert sent(server, "/close_session")[-1]["session_id"] == again["session_id"]
        assert server.sessions == {}


async def test_a_pinned_prefix_survives_a_flood_and_no_pin_is_left_after_close() -> None:
    async with served(inner=FakeEngine(kv_tokens=2000)) as (server, engine):
        prompt = ask("value", CONSTANT)
        prefix = prompt.prefixes[1]
        tokens = await engine.keep(prefix, prompt.head(prefix), "", "", Tier.DEVICE, 60.0)

        async def flood() -> None:
            for at in range(5):
                await run(engine, request(ask(str(at), f"{at}{CONSTANT}")))

        await flood()
        assert (await run(engine, request(prompt)))[1].usage.cached_tokens > tokens - 16
        assert len(server.engine.pinned) == 1
        await engine.close()
        assert server.engine.pinned == set()


async def test_a_warm_call_that_fails_leaves_no_session() -> None:
    async with served() as (server, engine):
        prompt = ask("value", CONSTANT)
        prefix = prompt.prefixes[1]
        server.wires = [Wire(status=503, body="{}")]
        with pytest.raises(EngineError) as caught:
            await engine.keep(prefix, prompt.head(prefix), "", "", Tier.DEVICE, 60.0)
        assert caught.value.fault is Fault.BUSY
        assert server.sessions == {}


async def test_without_sessions_a_prefix_is_touched_until_it_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_pins, "TOUCH_S", 0.02)
    async with served(FEW_FLAGS) as (server, engine):
        prompt = ask("value", CONSTANT)
        prefix = prompt.prefixes[1]
        await engine.keep(prefix, prompt.head(prefix), "", "", Tier.DEVICE, 60.0)

        async def touched() -> bool:
            return len(sent(server, "/generate")) >= 4

        await until(touched, 5)
        await engine.keep(prefix, None, "", "", Tier.NONE, 0.0)
        await run(engine)  # whatever was under way is done by now
        before = len(sent(server, "/generate"))
        await asyncio.sleep(0.1)
        assert len(sent(server, "/generate")) == before
        assert sent(server, "/open_session") == sent(server, "/close_session") == []
        assert all("session_id" not in body and "priority" not in body for body in sent(server, "/generate"))


async def test_a_server_that_started_anew_holds_nothing_of_ours() -> None:
    async with served() as (server, engine):
        prompt = ask("value", CONSTANT)
        prefix = prompt.prefixes[1]
        await engine.keep(prefix, prompt.head(prefix), "", "", Tier.DEVICE, 60.0)
        await server.go_down()
        await server.come_back()
        await engine.start()
        await engine.keep(prefix, None, "", "", Tier.NONE, 0.0)
        assert sent(server, "/close_session") == []


# Aborts.


async def test_an_abort_is_repeated_until_the_stream_has_ended() -> None:
    attempts = 0

    async def deaf(server: FakeServer, body: Body) -> Response:
        nonlocal attempts
        attempts += 1
        return problem(500, "busy", "x") if attempts < 3 else await abort_request(server, body)

    async with served(inner=FakeEngine(token_s=0.01), routes={"POST /abort_request": deaf}) as (server, engine):
        stream = engine.generate(request(ask("a bird"), max_tokens=5000, ignore_eos=True))
        async for event in stream:
            if isinstance(event, Text):
                break
        await asyncio.wait_for(stream.aclose(), 5)
        assert attempts == 3
        assert (await server.engine.load()).running == 0
        assert len(server.engine.aborts) == 1


async def test_a_call_that_waits_in_the_engine_can_be_aborted() -> None:
    async with served(inner=FakeEngine(max_running=1, token_s=0.01)) as (server, engine):
        first = engine.generate(request(ask("first"), max_tokens=5000, ignore_eos=True))
        await anext(first)
        waiting = asyncio.create_task(run(engine, request(ask("second"))))

        async def queued() -> bool:
            return (await engine.load()).waiting == 1

        await until(queued, 5)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        load = await server.engine.load()
        assert (load.running, load.waiting) == (1, 0)
        await first.aclose()
        assert (await server.engine.load()).running == 0


async def test_a_call_that_ended_well_is_not_aborted() -> None:
    async with served() as (server, engine):
        await run(engine)
        assert sent(server, "/abort_request") == []


@pytest.mark.parametrize(
    ("finish", "fault", "type"),
    [
        (
            {"status_code": 400, "message": "Grammar is not supported", "err_type": "BadRequestError"},
            "call",
            "engine_refused",
        ),
        (
            {
                "status_code": 400,
                "message": "Input length (5000 tokens) exceeds the maximum allowed length (4090 tokens).",
            },
            "call",
            "context_overflow",
        ),
        (
            {"status_code": 503, "message": "The request is aborted by a higher priority request."},
            "busy",
            "engine_busy",
        ),
        ({"status_code": 500, "message": "boom"}, "engine", "engine_failed"),
        ({"status_code": None, "message": "Aborted"}, "engine", "aborted"),
    ],
)
async def test_what_the_server_gives_up_is_somebodys_fault(finish: Body, fault: str, type: str) -> None:
    async def gives_up(server: FakeServer, body: Body) -> Response:
        async def events() -> AsyncGenerator[str, None]:
            meta = {"finish_reason": {"type": "abort", **finish}, "prompt_tokens": 1, "completion_tokens": 1}
            yield json.dumps({"text": "-", "meta_info": meta})
            yield "[DONE]"

        return EventStream(events(), None)

    async with served(routes={"POST /generate": gives_up}) as (_, engine):
        error = await fail(engine)
        assert (error.fault, error.type) == (Fault(fault), type)


# Servers of other kinds.


async def test_older_servers_have_other_paths() -> None:
    async def nothing(server: FakeServer, body: Body) -> Response:
        return problem(404, "Not Found", "not_found")

    async def get_load(server: FakeServer, body: Body) -> Response:
        load = await server.engine.load()
        both = load.running + load.waiting
        return json_response([{"dp_rank": 0, "num_reqs": both, "num_waiting_reqs": load.waiting, "num_tokens": 7}])

    routes: dict[str, Route] = {
        "GET /server_info": nothing,
        "GET /get_server_info": server_info,
        "GET /v1/loads": nothing,
        "GET /get_load": get_load,
    }
    async with served(inner=FakeEngine(max_running=1, token_s=0.01), routes=routes) as (_, engine):
        streams = [engine.generate(request(ask(str(at)), max_tokens=5000, ignore_eos=True)) for at in range(2)]
        await anext(streams[0])
        waiting = asyncio.create_task(anext(streams[1]))

        async def queued() -> bool:
            return (await engine.load()).waiting == 1

        await until(queued, 5)
        load = await engine.load()
        assert (load.running, load.used_tokens) == (1, 7)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await streams[0].aclose()
        assert {finding.ability for finding in await engine.doctor() if finding.ability == "load" and not finding.can}


async def test_load_is_summed_over_ranks() -> None:
    async def two_ranks(server: FakeServer, body: Body) -> Response:
        one = json.loads(bytes((await loads(server, body)).body))["loads"][0]
        rank = {**one, "num_running_reqs": 2, "num_waiting_reqs": 3, "num_used_tokens": 50}
        return json_response({"loads": [rank, {**rank, "dp_rank": 1}]})

    async with served(routes={"GET /v1/loads": two_ranks}) as (_, engine):
        load = await engine.load()
        assert (load.running, load.waiting, load.used_tokens) == (4, 6, 100)


async def test_the_context_is_what_the_pool_takes() -> None:
    async with served(inner=FakeEngine(context_tokens=8192, kv_tokens=2048)) as (server, engine):
        assert (await engine.start()).context_tokens == 2042
        error = await fail(engine, request(ask("x" * 2040)))
        assert error.type == "context_overflow"
        assert sent(server, "/generate") == []


async def test_the_tokenizer_is_taken_from_the_servers_folder_where_that_is_here(tmp_path: Path) -> None:
    write_tokenizer(tmp_path)
    async with served({"tokenizer_path": str(tmp_path)}, tokenizer=None) as (server, engine):
        prompt = ask("hi<|im_end|>")
        await run(engine, request(prompt))
        assert sent(server, "/generate")[-1]["input_ids"] == TOKENIZER.encode(prompt).ids


async def test_a_tokenizer_of_another_model_is_found_out() -> None:
    async with FakeServer("sglang", tokenize=lambda text: [7] * len(text)) as server:
        engine = SGLangEngine("engine", server.url, tokenizer=TOKENIZER)
        with pytest.raises(SetupError, match="another tokenizer"):
            await engine.start()
        await engine.close()


async def test_without_a_tokenizer_messages_are_sent_and_bear_our_name_and_priority() -> None:
    async with served({"schedule_low_priority_values_first": True}, tokenizer=None) as (server, engine):
        call = request(ask("a bird"), priority=1, salt="tenant")
        await run(engine, call)
        (body,) = sent(server, "/v1/chat/completions")
        assert (body["rid"], body["priority"], body["cache_salt"]) == (call.rid, -1, "tenant")
        stream = engine.generate(request(ask("a bird"), max_tokens=5000, ignore_eos=True))
        await anext(stream)
        await stream.aclose()
        assert len(sent(server, "/abort_request")) == 1


# The doctor.


async def test_the_doctor_says_what_is_there_and_which_flag_would_bring_the_rest() -> None:
    async with served({"incremental_streaming_output": True, "enable_deterministic_inference": True}) as (_, engine):
        assert [finding for finding in await engine.doctor() if not finding.can or finding.remedy] == []
    async with served(FEW_FLAGS) as (_, engine):
        remedies = {finding.ability: finding.remedy for finding in await engine.doctor() if not finding.can}
        assert remedies == {
            "pin": "--enable-session-radix-cache",
            "priority": "--enable-priority-scheduling",
            "grammar": "--grammar-backend xgrammar",
            "queue times": "--enable-metrics",
            "short streams": "--incremental-streaming-output",
            "seeds": "--enable-deterministic-inference",
        }
    async with served({"schedule_policy": "lpm"}, tokenizer=None) as (_, engine):
        remedies = {finding.ability: finding.remedy for finding in await engine.doctor() if not finding.can}
        assert remedies["priority"] == "--schedule-policy fcfs or lof"
        assert "tokenizer.json" in remedies["pin"]


async def test_the_doctor_finds_a_cache_that_is_shared_across_tenants() -> None:
    for salted, expected in ((True, True), (False, False)):
        async with served(inner=FakeEngine(salted=salted)) as (_, engine):
            (found,) = [finding for finding in await engine.doctor() if finding.ability == "isolation"]
            assert found.can is expected
    async with served({"disable_radix_cache": True}, inner=FakeEngine(shares_prefixes=False)) as (_, engine):
        found = {finding.ability: finding for finding in await engine.doctor()}["isolation"]
        assert found.can is True


async def test_a_pin_is_renewed_though_the_older_one_cannot_be_ended() -> None:
    async def fails(server: FakeServer, body: Body) -> Response:
        return problem(500, "busy", "x")

    async with served(routes={"POST /close_session": fails}) as (server, engine):
        prompt = ask("value", CONSTANT)
        prefix = prompt.prefixes[1]
        tokens = await engine.keep(prefix, prompt.head(prefix), "", "", Tier.DEVICE, 60.0)
        assert await engine.keep(prefix, prompt.head(prefix), "", "", Tier.DEVICE, 60.0) == tokens
        assert len(sent(server, "/close_session")) == 1


async def test_a_call_that_was_refused_is_not_aborted() -> None:
    async def refuses(server: FakeServer, body: Body) -> Response:
        return problem(400, "no", "x")

    async with served(routes={"POST /generate": refuses}) as (server, engine):
        assert (await fail(engine)).fault is Fault.CALL
        assert sent(server, "/abort_request") == []
