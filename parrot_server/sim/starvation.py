"""A long agent under an endless stream of new chats: together they are more than the engine can run. Does it end, and how does it wait?"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from random import Random

from parrot_server.core import events as ev
from parrot_server.core.events import Action, Event
from parrot_server.core.model import CallState, CostModel, EngineSpec, StepKey
from parrot_server.core.policy import overtaken_at_most_s
from parrot_server.core.settings import SchedulerSettings
from parrot_server.sim.programs import conversation
from parrot_server.sim.world import Setup, World

SLOTS = EngineSpec(
    id="four-slots",
    kind="roofline",
    models=("any",),
    context_tokens=10**9,
    kv_tokens=10**9,
    max_running=4,
    can_pause=True,
    can_pin=True,
    cost=CostModel(prefill_token_s=1e-4, step_s=0.01, sequence_s=0.0, resident_token_s=0.0),
)


class Waits:
    """Notes when each call was ready, and in which order they were sent for the first time."""

    def __init__(self) -> None:
        self.ready_s: dict[StepKey, float] = {}
        self.sent: list[StepKey] = []

    def observe(self, now_s: float, event: Event, actions: list[Action]) -> None:
        """Look at an event and what it led to."""
        for action in actions:
            if isinstance(action, ev.CallChanged) and action.state is CallState.READY:
                self.ready_s.setdefault(action.key, now_s)
            elif isinstance(action, ev.Dispatch) and action.attempt == 1:
                self.sent.append(action.key)

    def most_overtaken_s(self) -> float:
        """By how much the youngest call that was sent before an older one was younger than that."""
        worst, latest_s = 0.0, 0.0
        for key in self.sent:
            worst = max(worst, latest_s - self.ready_s[key])
            latest_s = max(latest_s, self.ready_s[key])
        return worst


@dataclass(frozen=True, slots=True)
class Starved:
    """How the agent fared. `overtaken_s`: the furthest that any call was overtaken, `bound_s`: the furthest that one can be."""

    name: str
    completion_s: float
    steps: int
    longest_wait_s: float
    overtaken_s: float
    bound_s: float
    chats: int


def run(policy: str, steps: int, chats_s: float, age_s: float, seed: int = 1) -> Starved:
    """An agent of so many steps, and so many new chats a second for as long as it lasts."""
    rng, waits, numbers = Random(seed), Waits(), itertools.count()
    settings = SchedulerSettings(policy=policy, quantum_token_s=100.0, age_s=age_s, patience_s=1.0)
    world = World(Setup(settings, SLOTS), observe=waits.observe)

    def next_chat() -> None:
        world.add(conversation(f"chat_{next(numbers)}", [(100, 50, 0.0)] * 3))
        world.simulation.at(world.simulation.now_s + rng.expovariate(chats_s), next_chat)

    next_chat()
    agent = conversation("agent", [(50, 50, 0.0)] * steps, kind="agent")
    world.add(agent, then=lambda _: world.simulation.stop())
    world.run()
    record = world.programs["agent"]
    return Starved(
        name=policy,
        completion_s=record.completion_s,
        steps=len(record.calls),
        longest_wait_s=max(call.started_s - call.ready_s for call in record.calls.values()),
        overtaken_s=waits.most_overtaken_s(),
        bound_s=overtaken_at_most_s(settings),
        chats=len(world.programs) - 1,
    )
