"""Programs through the whole server, over real sockets, in front of real SGLang replicas."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import Any

import httpx
import pytest

from parrot_server.core.model import Piece, PieceKind, Prompt
from parrot_server.engines.base import GenerateEvent, Prefill, Request
from parrot_server.engines.sglang import SGLangEngine
from parrot_server.engines.tokens import PromptTokenizer
from tests.engines.contract import ask, chain, request
from tests.serving import Server, function, serving, until
from tests.sglang.conftest import Replicas

pytestmark = pytest.mark.sglang
PATIENCE_S = 120.0


class Recorded(SGLangEngine):
    """SGLang as it is; what was asked of it is noted."""

    def __init__(self, id: str, url: str) -> None:
        super().__init__(id, url)
        self.asked: list[Request] = []

    async def generate(self, request: Request) -> AsyncGenerator[GenerateEvent, None]:
        """Note the request, and go on."""
        self.asked.append(request)
        async with aclosing(super().generate(request)) as events:
            async for event in events:
                yield event


@pytest.fixture
def both(replicas: Replicas) -> Iterator[Server]:
    engines = Recorded("roomy", replicas.roomy), Recorded("small", replicas.small)
    with serving(*engines) as server:
        until(lambda: len(views(server)) == 2, "both replicas", PATIENCE_S)
        yield server


def views(server: Server) -> dict[str, Any]:
    """The engines that are up, by name."""
    return {view["id"]: view for view in server.http.get("/v1/engines").json()["engines"] if view["up"]}


def nodes(server: Server, program_id: str) -> dict[str, Any]:
    """A program's steps, by call."""
    return {node["call"]: node for node in server.http.get(f"/v1/programs/{program_id}/graph").json()["nodes"]}


def ended(server: Server, program_id: str) -> dict[str, Any]:
    """The steps of a program when it has ended well."""

    def over() -> bool:
        state = server.http.get(f"/v1/programs/{program_id}").json()["state"]
        assert state not in ("failed", "cancelled"), nodes(server, program_id)
        return state == "done"

    until(over, "the program's end", PATIENCE_S)
    return nodes(server, program_id)


def words(count: int) -> str:
    """A text that nobody has seen before."""
    return " ".join(uuid.uuid4().hex[:4] for _ in range(count))


def map_reduce(constant: str, maps: int, tokens: int) -> dict[str, Any]:
    """Maps that begin alike, and a reduce that reads all of them."""
    return {
        "functions": {
            "map": function(f"{constant} {{{{x}}}} {{{{y}}}}", "y", max_tokens=tokens, ignore_eos=True),
            "reduce": function("Join these: {{parts}} {{y}}", "y", max_tokens=8, ignore_eos=True),
        },
        "calls": [
            *(call(f"m{n}", "map", x=f"Part {n}.") for n in range(maps)),
            call("reduce", "reduce", parts=[{"var": f"m{n}"} for n in range(maps)]),
        ],
    }


def call(id: str, function: str, **inputs: Any) -> dict[str, Any]:
    """A call that sets the variable of its own name."""
    return {"id": id, "function": function, "inputs": inputs, "outputs": {"y": id}}


def direct(url: str, prompts: list[Prompt]) -> list[int]:
    """Send prompts straight to a replica, one after another; how much of each was in its cache."""

    async def send() -> list[int]:
        engine, cached = SGLangEngine("beside", url), []
        await engine.start()
        try:
            for prompt in prompts:
                async with aclosing(engine.generate(request(prompt, max_tokens=1))) as events:
                    cached += [event.cached_tokens async for event in events if isinstance(event, Prefill)]
        finally:
            await engine.close()
        return cached

    return asyncio.run(send())


def running(url: str) -> int:
    """How many calls run on a replica, by its own word."""
    loads = httpx.get(f"{url}/v1/loads", params={"include": "core"}, trust_env=False).json()["loads"]
    return sum(load["num_running_reqs"] + load["num_waiting_reqs"] for load in loads)


def test_each_replica_computes_the_prefix_of_a_map_reduce_once_and_nothing_stays_pinned(
    both: Server, replicas: Replicas, tokenizer: PromptTokenizer
) -> None:
    constant = words(100)
    prefix = len(tokenizer.encode_text(constant))
    assert 200 < prefix < 500
    submitted = both.submit(map_reduce(constant, 16, 6))
    steps = ended(both, submitted["id"])
    maps = [steps[f"m{n}"] for n in range(16)]
    assert {step["engine"] for step in maps} == {"roomy", "small"}
    assert [step["usage"]["cached_tokens"] >= prefix for step in maps] == [True] * 16
    until(lambda: [view["pinned_prefixes"] for view in views(both).values()] == [0, 0], "the end of the pins")
    again = chain([Piece(PieceKind.CONSTANT, constant), Piece(PieceKind.VALUE, " again")])
    assert direct(replicas.small, [again])[0] >= prefix  # still there until its room is wanted
    direct(replicas.small, [ask("Go on.", words(150)) for _ in range(8)])
    assert direct(replicas.small, [again]) == [0]


def test_an_expedited_call_starts_before_every_batch_call_that_had_not_started(replicas: Replicas) -> None:
    with serving(SGLangEngine("small", replicas.small)) as server:
        assert views(server)["small"]["max_running"] == 4
        # Of different lengths, so that they end one by one.
        functions = {
            f"f{n}": function("Tell of {{x}}. {{y}}", "y", max_tokens=12 + 4 * n, ignore_eos=True) for n in range(8)
        }
        calls = [call(f"b{n}", f"f{n % 8}", x=f"bird {n}") for n in range(30)]
        criteria = {f"b{n}": "throughput" for n in range(30)}
        before_s = time.monotonic()
        batch = server.submit({"functions": functions, "calls": calls, "criteria": criteria})["id"]

        def started() -> set[str]:
            return {name for name, step in nodes(server, batch).items() if step["timing"].get("started_s") is not None}

        until(lambda: len(started()) >= 4, "a full engine", PATIENCE_S)
        urgent = server.submit({"functions": {"f": functions["f0"]}, "calls": [call("urgent", "f", x="a fire")]})["id"]
        submitted_s = time.monotonic() - before_s
        had_started = started()
        steps = ended(server, urgent)
        # In seconds after the batch program was sent, at the latest for the urgent call and at the soonest for the others.
        urgent_s = submitted_s + steps["urgent"]["timing"]["started_s"]
        rest = {name: step for name, step in ended(server, batch).items() if name not in had_started}
        assert len(rest) >= 20
        assert steps["urgent"]["objective"] == "expedite"
        assert [name for name, step in rest.items() if step["timing"]["started_s"] <= urgent_s] == []


def test_a_cancelled_program_has_left_the_engine_within_two_seconds(replicas: Replicas) -> None:
    with serving(SGLangEngine("roomy", replicas.roomy)) as server:
        functions = {"long": function("Tell of {{x}}. {{y}}", "y", max_tokens=1000, ignore_eos=True)}
        submitted = server.submit(
            {"functions": functions, "calls": [call(f"c{n}", "long", x=f"{n}") for n in range(8)]}
        )
        until(
            lambda: all("first_token_s" in step["timing"] for step in nodes(server, submitted["id"]).values()),
            "eight answers",
            PATIENCE_S,
        )
        until(lambda: running(replicas.roomy) == 8, "the engine's own count")  # it is told now and then only
        begun_s = time.monotonic()
        assert server.http.delete(f"/v1/programs/{submitted['id']}").json()["state"] == "cancelled"
        until(lambda: running(replicas.roomy) == 0, "an idle engine", 2.0 - (time.monotonic() - begun_s))


def test_a_killed_replica_costs_no_value_and_is_used_again(
    both: Server, replicas: Replicas, tokenizer: PromptTokenizer
) -> None:
    submitted = both.submit(map_reduce(words(40), 12, 40))["id"]

    def on_small() -> bool:
        steps = nodes(both, submitted).values()
        return any(step.get("engine") == "small" and "first_token_s" in step["timing"] for step in steps)

    until(on_small, "a call on the small replica", PATIENCE_S)
    replicas.small_server.stop()
    try:
        steps = ended(both, submitted)
    finally:
        replicas.small_server.start()
        replicas.small_server.wait_ready()
    assert max(step["attempt"] for step in steps.values()) >= 2
    check_values(both, submitted, steps, tokenizer)
    until(lambda: len(views(both)) == 2, "the replica's return", PATIENCE_S)
    second = ended(both, both.submit(map_reduce(words(40), 12, 4))["id"])
    assert {step["engine"] for step in second.values()} == {"roomy", "small"}


def check_values(server: Server, program_id: str, steps: dict[str, Any], tokenizer: PromptTokenizer) -> None:
    """Each variable was set once, and the reduce's prompt held those values and no others."""
    happened = list(server.open(f"/v1/programs/{program_id}/events").events())
    resolved = [event.data["name"] for event in happened if event.name == "variable"]
    assert sorted(resolved) == sorted(steps)
    values = [server.value(program_id, f"m{n}") for n in range(12)]
    prompts = [asked.prompt for engine in server.engines for asked in engine.asked]
    (held,) = (prompt for prompt in prompts if prompt.pieces[0].text.startswith("Join these: "))
    texts = [piece.text for piece in held.pieces if piece.kind is PieceKind.VALUE]
    assert texts == values
    assert steps["reduce"]["usage"]["prompt_tokens"] == len(tokenizer.encode(held).ids)
