"""What is forgotten is gone, at once and all of it: the garbage collector of a large server runs seldom."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator

import pytest

from parrot_server.core import events as ev

from .programs import SHORT, Bench, call, function, value

LARGE = 200_000


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.disable()
    tracemalloc.start()
    yield
    tracemalloc.stop()
    gc.enable()


def one_of_values(bench: Bench, number: int) -> None:
    bench.submit(call("a", "v", x=value(f"{number}" + "x" * LARGE)), program=f"p{number}")


def one_of_templates(bench: Bench, number: int) -> None:
    spec = function(f"{number}" + "x" * LARGE + " {{x}} {{y}}", y=SHORT)
    event = ev.Submitted(f"p{number}", functions=(spec,), calls=(call("a", "v", spec, x=value("x")),))
    bench.post(event)


def one_that_is_cancelled(bench: Bench, number: int) -> None:
    one_of_values(bench, number)
    bench.post(ev.Cancelled(f"p{number}"))
    for action in bench.actions:
        if isinstance(action, ev.Abort):
            bench.post(ev.Aborted(action.key, action.attempt))


@pytest.mark.parametrize("submit", [one_of_values, one_of_templates, one_that_is_cancelled])
def test_a_forgotten_program_takes_no_memory(submit: Callable[[Bench, int], None]) -> None:
    bench = Bench(retained_programs=2)

    def play(numbers: range) -> int:
        for number in numbers:
            submit(bench, number)
            bench.run()
            bench.actions.clear()
        return tracemalloc.get_traced_memory()[0]

    grown = play(range(40, 120)) - play(range(40))
    assert grown < 3 * LARGE, f"{grown / 80 / LARGE:.2f} of each of 80 programs is still there"
