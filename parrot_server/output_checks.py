"""What engines say of schemas and choices before anything of them runs: what none of them can enforce is refused at once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Collection, Iterator

from parrot_server.core.events import CallsAdded, Registered, Submitted
from parrot_server.core.model import Sampling
from parrot_server.engine_runner import EngineRunner
from parrot_server.errors import EngineError, Fault, Refused

ANSWER_S = 5.0
REMEMBERED = 1000

_Bound = tuple[str | None, tuple[str, ...] | None]


class OutputChecks:
    """Asks engines, and remembers what they said.

    Args:
        runners: the engines; those that are up and enforce schemas are asked.
    """

    def __init__(self, runners: Collection[EngineRunner]) -> None:
        self._runners = runners
        self._said: OrderedDict[_Bound, EngineError | None] = OrderedDict()

    async def check(self, event: Submitted | CallsAdded | Registered) -> None:
        """Refuse an event with an output that no engine can enforce. Where none says so in time, it is found out when it runs."""
        for owner, output, sampling, call in _outputs(event):
            error = await self._ask(sampling)
            if error is not None:
                message = f"{owner}, output {output!r}: {error.message}"
                raise Refused(error.type, message, call=call)

    async def _ask(self, sampling: Sampling) -> EngineError | None:
        bound = (sampling.schema, sampling.choices)
        if bound in self._said:
            self._said.move_to_end(bound)
            return self._said[bound]
        asked = [runner for runner in self._runners if runner.spec is not None and runner.spec.schemas]
        answers = [await _answer(runner, sampling) for runner in asked]
        if any(answer == "gone" for answer in answers) or not answers:
            return None
        errors = [answer for answer in answers if isinstance(answer, EngineError)]
        self._said[bound] = errors[0] if len(errors) == len(answers) else None
        if len(self._said) > REMEMBERED:
            self._said.popitem(last=False)
        return self._said[bound]


async def _answer(runner: EngineRunner, sampling: Sampling) -> EngineError | str | None:
    """What is wrong with an output for one engine, or `gone` where it does not say."""
    try:
        async with asyncio.timeout(ANSWER_S):
            await runner.engine.check(sampling)
    except TimeoutError:
        return "gone"
    except EngineError as error:
        return error if error.fault is Fault.CALL else "gone"
    return None


def _outputs(event: Submitted | CallsAdded | Registered) -> Iterator[tuple[str, str, Sampling, str | None]]:
    """The outputs of an event that a schema or choices bind: whose, its name, how, and of which call."""
    functions = (event.function,) if isinstance(event, Registered) else event.functions
    for function in functions:
        for output, sampling in function.outputs:
            if sampling.schema is not None or sampling.choices is not None:
                yield f"function {function.name!r}", output, sampling, None
    for call in () if isinstance(event, Registered) else event.calls:
        for output, sampling in call.sampling:
            if sampling.schema is not None or sampling.choices is not None:
                yield f"call {call.id!r}", output, sampling, call.id
