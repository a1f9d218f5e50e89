"""What scheduling costs, and what simulating it costs."""

from __future__ import annotations

import gc
import time
from collections import deque

import pytest

from parrot_server.core import events as ev
from parrot_server.core.model import CallSpec, EngineSpec, FunctionSpec, Op, Ref, Sampling, Tier, Usage, Value
from parrot_server.core.scheduler import Scheduler
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.contest import play
from parrot_server.sim.machines import engine_named
from parrot_server.sim.presets import preset
from parrot_server.sim.world import Setup

ENGINE = EngineSpec("e", "fake", ("m",), 8192, 10**6, 64, can_pause=True, can_pin=True)
WRITE = FunctionSpec("write", "write", "{{x}}{{y}}", (("y", Sampling(max_tokens=50)),), joins=(("x", ""),))


class Meter:
    """A scheduler with so many open calls, in map-reduce programs of 17; each program that ends is followed by another.

    Only the time in the scheduler counts. Each event of an engine touches one call.
    """

    def __init__(self, open_calls: int) -> None:
        self.scheduler = Scheduler(SchedulerSettings())
        self.now_s = self.spent_s = 0.0
        self.touched = self.programs = 0
        self.todo: deque[ev.Dispatch | ev.Keep | ev.Pause] = deque()
        self.post(ev.Registered(WRITE))
        self.post(ev.EngineUp(ENGINE))
        while self.programs * 17 < open_calls:
            self.submit()

    def post(self, event: ev.Event) -> None:
        self.now_s += 1e-4
        begun_s = time.process_time()
        self.scheduler.check(event)
        actions = self.scheduler.handle(event, self.now_s)
        self.spent_s += time.process_time() - begun_s
        for action in actions:
            if isinstance(action, ev.Dispatch | ev.Keep | ev.Pause):
                self.todo.append(action)
            elif isinstance(action, ev.ProgramEnded):
                self.submit()

    def submit(self) -> None:
        self.programs += 1
        name = f"p{self.programs}"
        maps = [call(f"m{i}", Value(f"{name} {i}", 500)) for i in range(16)]
        self.post(ev.Submitted(name, calls=(*maps, call("r", tuple(Ref(f"m{i}") for i in range(16))))))

    def run(self, calls: int) -> float:
        """Microseconds that one touch of a call costs, its program's submit included."""
        self.spent_s, done = 0.0, 0
        while done < calls:
            match self.todo.popleft():
                case ev.Dispatch() as sent:
                    key, attempt = sent.key, sent.attempt
                    self.post(ev.Started(key, attempt))
                    self.post(ev.Prefilled(key, attempt, 500, 0))
                    self.post(ev.Progress("e", ((key, attempt, 10),)))
                    self.post(ev.Finished(key, attempt, Value("out", 20), Usage(500, 0, 20)))
                    done += 1
                case ev.Pause(key, attempt):
                    self.post(ev.Paused(key, attempt, 0))
                case ev.Keep(prefix, engine, Tier.DEVICE):
                    self.post(ev.Warmed(prefix, engine, 10))
        return 1e6 * self.spent_s / (4 * done)


def call(name: str, x: Value | tuple[Ref, ...]) -> CallSpec:
    return CallSpec(name, Op.GENERATE, (("x", x),), (("y", name),), function="write")


@pytest.mark.soak
def test_a_touch_of_a_call_costs_under_100_us_and_no_more_with_100_times_as_many_open() -> None:
    gc.collect()
    gc.disable()  # collecting is the process's cost, not the scheduler's
    try:
        costs = {open_calls: min(Meter(open_calls).run(1500) for _ in range(3)) for open_calls in (100, 1_000, 10_000)}
    finally:
        gc.enable()
    print({open_calls: f"{cost:.0f} us" for open_calls, cost in costs.items()})
    assert costs[10_000] < 100
    assert max(costs.values()) < 2 * min(costs.values())


@pytest.mark.soak
def test_1000_programs_with_100_000_calls_simulate_in_a_minute() -> None:
    programs = preset("large", 1)
    assert (len(programs), sum(len(program.calls) for program in programs)) == (1000, 100_000)
    begun_s = time.process_time()
    world = play(programs, "parrot", Setup(SchedulerSettings(), engine_named("h100")))
    took_s = time.process_time() - begun_s
    print(f"{took_s:.1f} s")
    assert all(record.ended_s is not None and record.failure is None for record in world.programs.values())
    assert took_s < 60
