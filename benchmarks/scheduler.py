"""What the scheduler itself costs: seconds in `handle` for each call that an event touches.

A call is touched when it changes its state: the one that an answer ends, those that this makes ready, and those that are sent. Engines are
played by hand and answer at once, so nothing but the scheduler is timed.
"""

from __future__ import annotations

import gc
import time
from collections import deque
from dataclasses import dataclass
from statistics import median, quantiles

from parrot_sdk.template import function_id
from parrot_server.core import events as ev
from parrot_server.core.model import CallSpec, EngineSpec, FunctionSpec, Op, Ref, Sampling, Tier, Usage, Value
from parrot_server.core.scheduler import Scheduler

ENGINE = EngineSpec("engine", "fake", ("model",), 100_000, 1_000_000, 64, can_pause=True, can_pin=True)
SHORT = Sampling(max_tokens=32)


@dataclass(frozen=True)
class Cost:
    """Seconds of the submit, and microseconds a call touched over all events after it."""

    name: str
    submit_s: float
    median_us: float
    p99_us: float


def _function(text: str) -> FunctionSpec:
    digest = function_id(text, {"y": {"max_tokens": SHORT.max_tokens}}, {}, "chat")
    return FunctionSpec(digest, "f", text, (("y", SHORT),))


MAP, JOIN = _function("Say it shorter. {{x}} {{y}}"), _function("Join these. {{x}} {{y}}")


def map_reduce(maps: int) -> tuple[CallSpec, ...]:
    """So many maps and the one that joins them."""
    leaves = tuple(
        CallSpec(f"m{i}", Op.GENERATE, (("x", Value(f"text {i}", 500)),), (("y", f"s{i}"),), MAP.id)
        for i in range(maps)
    )
    parts = tuple(Ref(f"s{i}") for i in range(maps))
    return (*leaves, CallSpec("join", Op.GENERATE, (("x", parts),), (("y", "answer"),), JOIN.id))


def chain(steps: int) -> tuple[CallSpec, ...]:
    """So many calls, each reading the one before."""
    first = CallSpec("c0", Op.GENERATE, (("x", Value("start", 5)),), (("y", "v0"),), MAP.id)
    rest = (
        CallSpec(f"c{i}", Op.GENERATE, (("x", Ref(f"v{i - 1}")),), (("y", f"v{i}"),), MAP.id) for i in range(1, steps)
    )
    return (first, *rest)


def measure(name: str, calls: tuple[CallSpec, ...]) -> Cost:
    """Submit a program and run it to its end."""
    scheduler = Scheduler()
    scheduler.handle(ev.EngineUp(ENGINE), 0.0)
    submit = ev.Submitted("p", functions=(MAP, JOIN), calls=calls)
    began = time.perf_counter()
    scheduler.check(submit)
    todo = deque(scheduler.handle(submit, 0.0))
    submit_s = time.perf_counter() - began
    now_s, costs_us = 0.0, []
    while todo:
        for event in _answers(todo.popleft()):
            now_s += 0.001
            began = time.perf_counter()
            actions = scheduler.handle(event, now_s)
            spent_s = time.perf_counter() - began
            touched = {action.key for action in actions if isinstance(action, ev.CallChanged)}
            costs_us.append(1e6 * spent_s / max(1, len(touched)))
            todo.extend(actions)
    assert scheduler.program("p").ended_s is not None, f"{name} did not end"
    return Cost(name, submit_s, median(costs_us), quantiles(costs_us, n=100)[98])


def _answers(action: ev.Action) -> list[ev.Event]:
    match action:
        case ev.Dispatch(key, attempt):
            done = ev.Finished(key, attempt, Value("said", 20), Usage(500, 0, 20))
            return [ev.Started(key, attempt), ev.Prefilled(key, attempt, 500, 0), done]
        case ev.Keep(prefix, engine, Tier.DEVICE):
            return [ev.Warmed(prefix, engine, 10)]
        case ev.Pause(key, attempt):
            return [ev.Paused(key, attempt, 0)]
    return []


def main() -> None:
    """Print what the scheduler costs at 1,000 and at 10,000 open calls, and along a chain of 5,000."""
    print("scheduler: seconds of a submit (check and handle), microseconds of `handle` a call touched")
    gc.freeze()
    costs = [
        measure("1,000 maps and a join", map_reduce(1_000)),
        measure("10,000 maps and a join", map_reduce(10_000)),
        measure("a chain of 5,000", chain(5_000)),
    ]
    for cost in costs:
        print(
            f"  {cost.name:24} submit {cost.submit_s:6.3f} s   median {cost.median_us:5.1f} us   p99 {cost.p99_us:6.1f} us"
        )
    print(f"  10,000 open calls against 1,000: {costs[1].median_us / costs[0].median_us:.2f} times the median")


if __name__ == "__main__":
    main()
