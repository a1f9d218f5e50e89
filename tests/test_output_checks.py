"""Schemas are refused before anything runs, where all engines that are up refuse them; where they cannot say, that is found out later."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from parrot_server.clock import run_virtual
from parrot_server.core.events import Submitted
from parrot_server.core.model import CallSpec, FunctionSpec, Op, Sampling, Value
from parrot_server.engines.fake import FakeEngine
from parrot_server.errors import EngineError, Fault, Refused
from parrot_server.runtime import Runtime

BOUND = Sampling(schema='{"type":"integer"}')
SPEC = FunctionSpec("f" * 64, "count", "Say {{x}} {{y}}", (("y", Sampling()),), format="text")
CALL = CallSpec("c", Op.GENERATE, (("x", Value("x", 1)),), (("y", "v"),), SPEC.id)


class Knowing(FakeEngine):
    """Says something of schemas, and counts how often it is asked."""

    def __init__(self, id: str, says: EngineError | None) -> None:
        super().__init__(id)
        self.says = says
        self.asked = 0

    async def check(self, sampling: Sampling) -> None:
        self.asked += 1
        if self.says is not None:
            raise self.says


class Silent(FakeEngine):
    """Never answers."""

    async def check(self, sampling: Sampling) -> None:
        await asyncio.Event().wait()


def event(function: Sampling = BOUND, call: Sampling | None = None) -> Submitted:
    spec = replace(SPEC, outputs=(("y", function),))
    one = CALL if call is None else replace(CALL, sampling=(("y", call),))
    return Submitted("p", functions=(spec,), calls=(one,))


NO = EngineError(Fault.CALL, "invalid_schema", "the schema cannot be enforced")
GONE = EngineError(Fault.ENGINE, "engine_gone", "gone")


@pytest.mark.parametrize(
    ("engines", "refused"),
    [
        ([Knowing("a", NO)], True),
        ([Knowing("a", NO), Knowing("b", NO)], True),
        ([Knowing("a", NO), Knowing("b", None)], False),
        ([Knowing("a", NO), Knowing("b", GONE)], False),
        ([Knowing("a", NO), Silent("b")], False),
        ([FakeEngine("a", schemas=False)], False),
    ],
)
def test_it_is_refused_where_all_engines_refuse(engines: Sequence[FakeEngine], refused: bool) -> None:
    async def main() -> None:
        async with Runtime(engines) as runtime:
            await asyncio.sleep(1.0)  # of virtual time: they are all up
            await runtime.check_outputs(event(Sampling()))
            if not refused:
                return await runtime.check_outputs(event())
            with pytest.raises(Refused, match=r"function 'count', output 'y': the schema cannot") as of_function:
                await runtime.check_outputs(event())
            with pytest.raises(Refused, match=r"call 'c', output 'y'") as of_call:
                await runtime.check_outputs(event(Sampling(), BOUND))
            assert (of_function.value.status, of_function.value.type) == (422, "invalid_schema")
            assert of_call.value.call == "c"
            return None

    run_virtual(main())


def test_what_was_said_is_remembered_and_silence_is_not() -> None:
    async def main() -> None:
        knowing = Knowing("a", GONE)
        async with Runtime([knowing]) as runtime:
            await asyncio.sleep(1.0)
            for _ in range(3):
                await runtime.check_outputs(event())
            assert knowing.asked == 3
            knowing.says = None
            for _ in range(3):
                await runtime.check_outputs(event())
            assert knowing.asked == 4

    run_virtual(main())
