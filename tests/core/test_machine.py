"""A machine of rules drives the scheduler with anything that can happen, in any order: every invariant holds after each event, and in the
end, when engines answer again, every variable of every program has its value or its error.
"""

from __future__ import annotations

from dataclasses import replace

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from parrot_server.core import events as ev
from parrot_server.core.model import (
    ENDED,
    IN_ENGINE,
    Budget,
    CallSpec,
    CostModel,
    Criterion,
    EngineSpec,
    Op,
    ProgramState,
    Ref,
    StepKey,
    Tier,
    Transform,
    Usage,
    Value,
)
from parrot_server.core.scheduler import Scheduler
from parrot_server.core.settings import SchedulerSettings
from parrot_server.errors import Fault, Refused

from .programs import FUNCTIONS, JOIN, MAP, PAIR

BUDGETS = st.sampled_from(
    [Budget(), Budget(), Budget(), Budget(total_tokens=60), Budget(calls=8), Budget(wall_s=4.0), Budget(wall_s=0.1)]
)
POLICIES = ["parrot", "parrot", "parrot", "fcfs", "program-fair", "feedback", "request-fair"]


class Machine(RuleBasedStateMachine):
    """The scheduler's world: clients, engines and the clock."""

    @initialize(
        policy=st.sampled_from(POLICIES),
        grant=st.sampled_from([None, 2]),
        pausing=st.booleans(),
        pinning=st.sampled_from([True, True, False]),
        kv=st.sampled_from([200, 8192]),
        together=st.sampled_from([None, 1]),
        host=st.sampled_from([0, 40, 8192]),
    )
    def begin(
        self, policy: str, grant: int | None, pausing: bool, pinning: bool, kv: int, together: int | None, host: int
    ) -> None:
        self.scheduler = Scheduler(
            SchedulerSettings(
                policy=policy,
                grant_tokens=grant if pausing else None,
                expedited_together=together,
                warm_tokens=4,
                patience_s=5.0,
                retained_programs=3,
            )
        )
        self.now_s = 0.0
        self.sent: dict[tuple[StepKey, int], ev.Dispatch] = {}  # what is in the engines, aborted or not
        self.paused: set[tuple[StepKey, int]] = set()
        self.ending: tuple[StepKey, int] | None = None  # what an engine just says the end of
        self.asked: list[ev.Pause | ev.Abort] = []
        self.warming: list[ev.Keep] = []
        self.moving: list[ev.Keep] = []
        self.talks: list[str] = []
        self.pins: dict[str, set[str]] = {}
        self.last_order: dict[tuple[str, str], ev.Keep] = {}
        self.hosted: dict[str, set[str]] = {
            "e0": set(),
            "e1": set(),
        }  # what was asked to be there, and not let go since
        self.values: dict[tuple[str, str], object] = {}
        self.finished_attempts: set[tuple[StepKey, int]] = set()
        self.ended: set[str] = set()
        self.engines: dict[str, EngineSpec] = {}
        self.up: set[str] = set()
        self.count = 0
        self.open_variables: list[tuple[str, str]] = []
        self.watching: list[tuple[str, str]] = []
        for name, models in (("e0", ("model", "other")), ("e1", ("model",))):
            pins, continues = pinning and name == "e0", name == "e0"
            spec = EngineSpec(name, "fake", models, 8192, kv, 3, can_pause=pausing, can_pin=pins, continues=continues)
            spec = replace(spec, can_offload=pins and host > 0, host_tokens=host)
            self.engines[name] = spec
            self.post(ev.EngineUp(spec))
            self.up.add(name)

    # ---- the world's side of each action

    def post(self, event: ev.Event) -> bool:
        try:
            self.scheduler.check(event)
        except Refused:
            return False
        for action in self.scheduler.handle(event, self.now_s):
            self.take(action)
        self.scheduler.validate()
        return True

    def take(self, action: ev.Action) -> None:
        match action:
            case ev.Dispatch():
                assert action.engine in self.up, "sent to an engine that is down"
                assert action.model in self.engines[action.engine].models
                assert action.key.step == 0 or self.engines[action.engine].continues, "sent to one that cannot"
                assert all(key != action.key or self.aborting(key, n) for key, n in self.sent), "two attempts at once"
                self.sent[action.key, action.attempt] = action
            case ev.Abort(key, attempt) if (key, attempt) == self.ending:
                pass  # its program's time was up just then: the engine no longer knows of it
            case ev.Pause(key, attempt) | ev.Abort(key, attempt):
                assert (key, attempt) in self.sent
                self.asked.append(action)
            case ev.Resume(key, attempt):
                self.paused.remove((key, attempt))
            case ev.Keep(prefix, engine, Tier.DEVICE):
                self.pins.setdefault(engine, set()).add(prefix)
                self.last_order[engine, prefix] = action
                self.hosted[engine].discard(prefix)
                self.warming.append(action)
            case ev.Keep(prefix, engine, Tier.HOST):
                assert self.engines[engine].can_offload, "asked to move out, and cannot"
                self.pins.setdefault(engine, set()).discard(prefix)
                self.warming = [keep for keep in self.warming if (keep.prefix, keep.engine) != (prefix, engine)]
                self.last_order[engine, prefix] = action
                self.hosted[engine].add(prefix)
                self.moving.append(action)
            case ev.Keep(prefix, engine, Tier.NONE):
                if (engine, prefix) in self.last_order and prefix not in self.hosted[engine]:
                    assert prefix in self.pins[engine], "let go of what is not there"
                self.last_order[engine, prefix] = action
                self.pins[engine].discard(prefix)
                self.hosted[engine].discard(prefix)
                self.warming = [keep for keep in self.warming if (keep.prefix, keep.engine) != (prefix, engine)]
            case ev.Resolve(program, name, outcome):
                assert (program, name) not in self.values, "two values"
                self.values[program, name] = outcome
            case ev.ProgramEnded(program):
                assert program not in self.ended, "ended twice"
                self.ended.add(program)
            case ev.Forget(program):
                assert program in self.ended

    def aborting(self, key: StepKey, attempt: int) -> bool:
        return any(isinstance(a, ev.Abort) and (a.key, a.attempt) == (key, attempt) for a in self.asked)

    def gone(self, pair: tuple[StepKey, int]) -> None:
        del self.sent[pair]
        self.paused.discard(pair)
        self.asked = [action for action in self.asked if (action.key, action.attempt) != pair]

    # ---- clients

    def new_id(self, kind: str) -> str:
        self.count += 1
        return f"{kind}{self.count}"

    @precondition(lambda self: self.count < 200)
    @rule(data=st.data(), size=st.integers(1, 7), close=st.booleans(), fail_fast=st.booleans())
    def submit(self, data: st.DataObject, size: int, close: bool, fail_fast: bool) -> None:
        program = self.new_id("p")
        variables: list[tuple[str, Value | None]] = [
            ("given", Value("given", 5)),
            ("list", Value("[]", 1, ("a", "b", "c"))),
        ]
        if data.draw(st.booleans()):
            variables.append(("open", None))
            self.open_variables.append((program, "open"))
        calls = self.draw_calls(data, [name for name, _ in variables], size)
        names = [name for call in calls for _, name in call.outputs]
        criterion = st.sampled_from([Criterion("latency"), Criterion("throughput"), Criterion("deadline", 3.0)])
        criteria = data.draw(st.dictionaries(st.sampled_from(names), criterion, max_size=2))
        event = ev.Submitted(
            program,
            tenant=data.draw(st.sampled_from(["", "a", "b"])),
            functions=FUNCTIONS,
            variables=tuple(variables),
            calls=tuple(calls),
            criteria=tuple(criteria.items()),
            closed=close,
            fail_fast=fail_fast,
            priority=data.draw(st.sampled_from([1.0, 1.0, 1e-6, 1e6])),
            deadline_s=data.draw(st.sampled_from([None, None, 0.5, 30.0])),
            budget=data.draw(BUDGETS),
        )
        self.post(event)

    @rule(
        data=st.data(), priority=st.sampled_from([None, 0.0, 1e-6, 5.0]), deadline_s=st.sampled_from([None, 0.1, 60.0])
    )
    def wish(self, data: st.DataObject, priority: float | None, deadline_s: float | None) -> None:
        """A client changes his mind, about a program or about one of its variables."""
        if not self.scheduler.programs():
            return
        program = data.draw(st.sampled_from(self.scheduler.programs()))
        name = data.draw(st.sampled_from(self.scheduler.program(program).variables))
        criterion = data.draw(
            st.sampled_from([Criterion("latency"), Criterion("throughput"), Criterion("deadline", 9.0)])
        )
        criteria = ((name, criterion),) if data.draw(st.booleans()) else ()
        self.post(ev.CriteriaSet(program, criteria, priority, deadline_s, data.draw(st.none() | BUDGETS)))

    @rule(
        tenant=st.sampled_from(["", "a", "b"]),
        weight=st.sampled_from([0.0, 0.001, 1.0, 100.0]),
        chance=st.integers(0, 3),
    )
    def weigh(self, tenant: str, weight: float, chance: int) -> None:
        if chance:
            return
        self.post(ev.LimitsSet(((tenant, weight),)))

    @rule(data=st.data(), leave=st.booleans())
    def watch(self, data: st.DataObject, leave: bool) -> None:
        if leave and self.watching:
            self.post(ev.Unwatched(*self.watching.pop(data.draw(st.integers(0, len(self.watching) - 1)))))
        elif self.scheduler.programs():
            program = data.draw(st.sampled_from(self.scheduler.programs()))
            variable = (program, data.draw(st.sampled_from(self.scheduler.program(program).variables)))
            self.watching.append(variable)
            self.post(ev.Watched(*variable))

    @rule(data=st.data(), tokens=st.sampled_from([5, 60]), stall_s=st.sampled_from([None, 0.0, 0.2, 20.0]))
    def talk(self, data: st.DataObject, tokens: int, stall_s: float | None) -> None:
        """A client that goes on one call at a time: with a new program, or with one whose calls have all ended."""
        known_ones = set(self.scheduler.programs())
        idle = [p for p in self.talks if p in known_ones and self.scheduler.program(p).ended_s is None]
        idle = [p for p in idle if all(state in ENDED for state, _ in self.scheduler.program(p).calls)]
        program = data.draw(st.sampled_from(["", *idle]))
        known = list(self.scheduler.program(program).variables) if program else []
        said = Ref(known[-1]) if known else Value(f"say {self.new_id('t')}", tokens)
        turn = self.call(self.new_id("c"), MAP, "x", said, [f"v{self.count}"], expect_return_s=stall_s)
        if program:
            self.post(ev.CallsAdded(program, calls=(turn,)))
        elif self.count < 200:
            self.talks.append(self.new_id("p"))
            self.post(ev.Submitted(self.talks[-1], functions=FUNCTIONS, calls=(turn,), closed=False))

    @rule(data=st.data(), size=st.integers(1, 3), close=st.booleans())
    def add(self, data: st.DataObject, size: int, close: bool) -> None:
        open_ones = [p for p in self.scheduler.programs() if not self.scheduler.program(p).closed]
        if not open_ones:
            return
        program = data.draw(st.sampled_from(open_ones))
        known = list(self.scheduler.program(program).variables)
        calls = self.draw_calls(data, known, size)
        if data.draw(st.booleans()):  # what was open has found its producer, unless that makes a cycle
            calls[-1] = self.call(self.new_id("c"), MAP, "x", Ref(data.draw(st.sampled_from(known))), ["open"])
        self.post(ev.CallsAdded(program, calls=tuple(calls), close=close))

    def draw_calls(self, data: st.DataObject, known: list[str], size: int) -> list[CallSpec]:
        calls: list[CallSpec] = []
        names = list(known)
        for _ in range(size):
            name = self.new_id("c")
            outputs = [f"v-{name}"]
            kind = data.draw(st.sampled_from(["map", "map", "join", "pair", "each", "race", "items", "after"]))
            source = Ref(data.draw(st.sampled_from(names)))
            fallback = (("y", Value("instead", 2)),) if data.draw(st.booleans()) else ()
            model = data.draw(st.sampled_from(["", "", "model", "other"]))
            match kind:
                case "join":
                    some = data.draw(st.lists(st.sampled_from(names), max_size=5))
                    made = [self.call(name, JOIN, "xs", tuple(map(Ref, some)), outputs)]
                case "pair":
                    outputs.append(f"w-{name}")
                    made = [self.call(name, PAIR, "x", source, outputs, holes=("a", "b"))]
                case "each":
                    made = [self.call(name, MAP, "x", source, outputs, each="x", fallback=fallback)]
                case "race":
                    given = [fallback, ()]
                    made = [
                        self.call(f"{name}{i}", MAP, "x", source, outputs, race=name, fallback=given[i], model=model)
                        for i in range(2)
                    ]
                case "items":
                    what = Transform(data.draw(st.sampled_from(["items", "field"])), "a")
                    made = [CallSpec(name, Op.TRANSFORM, (("x", source),), (("y", outputs[0]),), transform=what)]
                case "after":
                    after = (calls[-1].id,) if calls else ()
                    made = [self.call(name, MAP, "x", source, outputs, after=after)]
                case _:
                    timeout_s = data.draw(st.sampled_from([None, None, 2.0]))
                    stall_s = data.draw(st.sampled_from([None, 0.0, 0.2, 20.0]))
                    fields = {"fallback": fallback, "timeout_s": timeout_s, "model": model, "expect_return_s": stall_s}
                    made = [self.call(name, MAP, "x", source, outputs, **fields)]
            calls += made
            names += outputs
        return calls

    def call(self, name, function, hole, binding, outputs, holes=("y",), **fields) -> CallSpec:  # type: ignore[no-untyped-def]
        pairs = tuple(zip(holes, outputs, strict=True))
        return CallSpec(name, Op.GENERATE, ((hole, binding),), pairs, function=function.id, **fields)

    @rule(data=st.data())
    def set_variable(self, data: st.DataObject) -> None:
        if self.open_variables:
            program, name = data.draw(st.sampled_from(self.open_variables))
            self.post(ev.VariableSet(program, name, Value("put", 3)))

    @rule(data=st.data(), cancel=st.booleans())
    def close_or_cancel(self, data: st.DataObject, cancel: bool) -> None:
        programs = self.scheduler.programs()
        if programs:
            program = data.draw(st.sampled_from(programs))
            self.post(ev.Cancelled(program) if cancel else ev.Closed(program))

    # ---- engines

    def pick(self, data: st.DataObject) -> tuple[StepKey, int] | None:
        return data.draw(st.sampled_from(sorted(self.sent))) if self.sent else None

    @rule(data=st.data(), prefilled=st.booleans())
    def start(self, data: st.DataObject, prefilled: bool) -> None:
        if (pair := self.pick(data)) and pair not in self.paused:
            self.post(ev.Prefilled(*pair, 12, 3) if prefilled else ev.Started(*pair))

    @rule(data=st.data(), tokens=st.integers(0, 16))
    def progress(self, data: st.DataObject, tokens: int) -> None:
        if (pair := self.pick(data)) and pair not in self.paused:
            self.post(ev.Progress(self.sent[pair].engine, ((*pair, tokens),)))

    @rule(data=st.data(), text=st.sampled_from(["done", '{"a": "b"}', '["x", "y"]']))
    def finish(self, data: st.DataObject, text: str) -> None:
        if (pair := self.pick(data)) and pair not in self.paused:
            self.end(pair, ev.Finished(*pair, Value(text, 5), Usage(12, 3, 5)))

    @rule(least=st.integers(0, 2))
    def finish_all(self, least: int) -> None:
        """All that runs ends well, but for so many."""
        running = sorted(pair for pair in self.sent if pair not in self.paused)
        for pair in running[least:]:
            if pair in self.sent and pair not in self.paused:
                self.end(pair, ev.Finished(*pair, Value("done", 5), Usage(12, 3, 5)))

    @rule(data=st.data(), fault=st.sampled_from(Fault))
    def fail(self, data: st.DataObject, fault: Fault) -> None:
        if pair := self.pick(data):
            self.end(pair, ev.Failed(*pair, fault, "broken", "it broke"))

    def end(self, pair: tuple[StepKey, int], event: ev.Event) -> None:
        self.gone(pair)
        self.ending = pair
        self.post(event)
        self.ending = None

    @rule(data=st.data())
    def obey(self, data: st.DataObject) -> None:
        """An engine does what it was asked."""
        if not self.asked:
            return
        action = self.asked.pop(data.draw(st.integers(0, len(self.asked) - 1)))
        pair = (action.key, action.attempt)
        if isinstance(action, ev.Abort):
            self.gone(pair)
            self.post(ev.Aborted(*pair))
        elif pair not in self.paused:
            self.paused.add(pair)
            self.post(ev.Paused(*pair, 3))

    @rule(data=st.data())
    def pause_by_itself(self, data: st.DataObject) -> None:
        pair = self.pick(data)
        if pair and pair not in self.paused and self.engines[self.sent[pair].engine].can_pause:
            self.paused.add(pair)
            self.post(ev.Paused(*pair, 2))

    @rule(data=st.data(), well=st.booleans())
    def warm(self, data: st.DataObject, well: bool) -> None:
        if not self.warming:
            return
        keep = self.warming.pop(data.draw(st.integers(0, len(self.warming) - 1)))
        if well:
            self.post(ev.Warmed(keep.prefix, keep.engine, 8))
        else:
            self.pins[keep.engine].discard(keep.prefix)
            self.post(ev.WarmFailed(keep.prefix, keep.engine))

    @rule(data=st.data(), tokens=st.sampled_from([0, 8, 30]))
    def move(self, data: st.DataObject, tokens: int) -> None:
        if self.moving:
            self.moved(self.moving.pop(data.draw(st.integers(0, len(self.moving) - 1))), tokens)

    def moved(self, keep: ev.Keep, tokens: int) -> None:
        """An engine has moved a prefix to the host, or has not."""
        if not tokens and self.last_order[keep.engine, keep.prefix] is keep:
            self.hosted[keep.engine].discard(keep.prefix)
        self.post(ev.KvChanged(keep.prefix, keep.engine, Tier.HOST, tokens))

    @rule(engine=st.sampled_from(["e0", "e1"]))
    def die(self, engine: str) -> None:
        if engine not in self.up:
            return
        self.post(ev.Tick())
        self.up.discard(engine)
        self.drop(engine)
        self.post(ev.EngineDown(engine))

    def drop(self, engine: str) -> None:
        """All that is in an engine is lost."""
        for pair in [pair for pair, sent in self.sent.items() if sent.engine == engine]:
            self.gone(pair)
        self.warming = [keep for keep in self.warming if keep.engine != engine]
        self.moving = [keep for keep in self.moving if keep.engine != engine]
        self.pins[engine], self.hosted[engine] = set(), set()

    @rule(engine=st.sampled_from(["e0", "e1"]))
    def come_up(self, engine: str) -> None:
        self.post(ev.Tick())
        self.drop(engine)
        self.up.add(engine)
        self.post(ev.EngineUp(self.engines[engine]))

    @rule(
        engine=st.sampled_from(["e0", "e1"]),
        running=st.integers(0, 6),
        used=st.integers(0, 300),
        step_s=st.sampled_from([None, 0.0, 1.0]),
    )
    def load(self, engine: str, running: int, used: int, step_s: float | None) -> None:
        cost = (
            None if step_s is None else CostModel(step_s=step_s, sequence_s=step_s / 2, resident_token_s=step_s / 100)
        )
        self.post(ev.EngineLoad(engine, running=running, used_tokens=used, cost=cost))

    @rule(chance=st.integers(0, 7))
    def restart(self, chance: int) -> None:
        """The server starts again from its journal: its engines start anew too."""
        if chance:
            return
        self.post(ev.Tick())  # what is due by now has happened before
        for engine in ("e0", "e1"):
            self.drop(engine)
        self.post(ev.Recovered(1))
        for engine in sorted(self.up):
            self.post(ev.EngineUp(self.engines[engine]))

    @precondition(lambda self: self.count > 150)
    @rule()
    def drain(self) -> None:
        self.post(ev.Drain())

    @rule(data=st.data())
    def evict_pin(self, data: st.DataObject) -> None:
        self.post(ev.Tick())  # what is due by now has happened before
        there = [*self.pins.items(), *self.hosted.items()]
        pinned = sorted((engine, prefix) for engine, prefixes in there for prefix in prefixes)
        if pinned:
            engine, prefix = data.draw(st.sampled_from(pinned))
            self.pins[engine].discard(prefix)
            self.hosted[engine].discard(prefix)
            self.moving = [keep for keep in self.moving if (keep.prefix, keep.engine) != (prefix, engine)]
            self.warming = [keep for keep in self.warming if (keep.prefix, keep.engine) != (prefix, engine)]
            self.post(ev.KvChanged(prefix, engine, Tier.NONE, 0))

    @rule(seconds=st.sampled_from([0.1, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.post(ev.Tick())

    # ---- what must hold

    @invariant()
    def states_agree(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        for program in self.scheduler.programs():
            view = self.scheduler.program(program)
            assert (view.state in (ProgramState.OPEN, ProgramState.RUNNING)) == (program not in self.ended)
            for node in self.scheduler.graph(program).nodes:
                if node.state in IN_ENGINE:
                    assert (node.key, node.attempt) in self.sent

    def teardown(self) -> None:
        """Liveness: with engines that answer, everything ends."""
        if not hasattr(self, "scheduler"):
            return
        for engine in ("e0", "e1"):
            self.come_up(engine)
        for program in self.scheduler.programs():
            self.post(ev.Closed(program))
        for program, name in self.open_variables:
            self.post(ev.VariableSet(program, name, Value("late", 3)))
        while self.watching:
            self.post(ev.Unwatched(*self.watching.pop()))
        for _ in range(5000):
            if not self.step_towards_the_end():
                break
        for program in self.scheduler.programs():
            view = self.scheduler.program(program)
            stuck = [
                (n.node, n.state, n.engine, n.why) for n in self.scheduler.graph(program).nodes if n.state not in ENDED
            ]
            assert view.ended_s is not None, f"{program} never ended: {stuck}"
            for name in view.variables:
                assert self.scheduler.variable(program, name).outcome is not None
            assert all(state in ENDED for state, _ in view.calls)
        assert not any(self.pins.values()), "a pin is left behind"
        assert not any(self.hosted.values()), "something is left on the host"
        assert not self.sent, "something is left in an engine"

    def step_towards_the_end(self) -> bool:
        """Let the world do one thing that it owes. False: it owes nothing, and time brings nothing more."""
        if self.asked:
            action = self.asked.pop()
            pair = (action.key, action.attempt)
            if isinstance(action, ev.Abort):
                self.end(pair, ev.Aborted(*pair))
            elif pair not in self.paused:
                self.paused.add(pair)
                self.post(ev.Paused(*pair, 3))
            return True
        if self.moving:
            self.moved(self.moving.pop(), 8)
            return True
        if self.warming:
            keep = self.warming.pop()
            self.post(ev.Warmed(keep.prefix, keep.engine, 8))
            return True
        running = sorted(pair for pair in self.sent if pair not in self.paused)
        if running:
            self.end(running[0], ev.Finished(*running[0], Value("end", 5), Usage(12, 3, 5)))
            return True
        if all(program in self.ended for program in self.scheduler.programs()):
            return False
        self.now_s += 5.0
        self.post(ev.Tick())
        return True


class Talks(Machine):
    """Clients that think between their calls, on an engine that is nearly full and can keep and move out what they have read."""

    @initialize(host=st.sampled_from([0, 70, 8192]), step_s=st.sampled_from([1e-3, 1.0]), answered=st.booleans())
    def begin(self, host: int, step_s: float, answered: bool) -> None:
        super().begin("parrot", None, True, True, 200, None, host)
        cost = CostModel(prefill_token_s=0.01, step_s=step_s, offload_token_s=0.001)
        self.post(ev.EngineLoad("e0", cost=cost))
        for _ in range(3):
            self.chat(60, 20.0)
            if answered:
                self.finish_all(0)

    @rule(tokens=st.sampled_from([20, 60, 100]), stall_s=st.sampled_from([None, 0.2, 2.0, 20.0]))
    def chat(self, tokens: int, stall_s: float | None) -> None:
        """Somebody comes with a text of his own."""
        if self.count < 200:
            said = Value(f"say {self.new_id('t')}", tokens)
            turn = self.call(self.new_id("c"), MAP, "x", said, [f"v{self.count}"], expect_return_s=stall_s)
            self.talks.append(self.new_id("p"))
            turn = replace(turn, model="other")  # e0's alone
            self.post(ev.Submitted(self.talks[-1], functions=FUNCTIONS, calls=(turn,), closed=False))


def machine_with(examples: int, steps: int, machine: type[Machine] = Machine) -> type:
    """A test case that plays so many games of so many moves."""
    case = type("Game", (machine,), {}).TestCase
    case.settings = settings(
        max_examples=examples, stateful_step_count=steps, deadline=None, suppress_health_check=list(HealthCheck)
    )
    return case


TestMachine = machine_with(examples=80, steps=60)
TestTalks = machine_with(examples=60, steps=40, machine=Talks)
TestMachineForLong = pytest.mark.soak(machine_with(examples=4000, steps=80))
