"""Small pieces from which the core's tests build programs."""

from __future__ import annotations

from parrot_sdk.template import function_id
from parrot_server.core import events as ev
from parrot_server.core.model import (
    Binding,
    CallSpec,
    EngineSpec,
    FunctionSpec,
    Op,
    Ref,
    Sampling,
    StepKey,
    Usage,
    Value,
)
from parrot_server.core.scheduler import Scheduler
from parrot_server.core.settings import SchedulerSettings

ENGINE = EngineSpec("e0", "fake", ("model",), context_tokens=8192, kv_tokens=8192, max_running=4)


def value(text: str, tokens: int = 10) -> Value:
    return Value(text, tokens)


def function(text: str, **outputs: Sampling) -> FunctionSpec:
    pairs = tuple(sorted(outputs.items()))
    digest = function_id(text, {name: {"max_tokens": s.max_tokens} for name, s in pairs}, {}, "chat")
    return FunctionSpec(id=digest, name="f", text=text, outputs=pairs)


SHORT = Sampling(max_tokens=16)
MAP = function("Say it shorter. {{x}} {{y}}", y=SHORT)
JOIN = function("Join these. {{xs}} {{y}}", y=SHORT)
PAIR = function("First {{x}} {{a}} then {{b}}", a=SHORT, b=SHORT)
FUNCTIONS = (MAP, JOIN, PAIR)


def call(name: str, output: str, spec: FunctionSpec = MAP, **inputs: Binding) -> CallSpec:
    return CallSpec(name, Op.GENERATE, tuple(inputs.items()), (("y", output),), function=spec.id)


def chain(length: int) -> tuple[CallSpec, ...]:
    first = call("c0", "v0", x=value("start"))
    return (first, *(call(f"c{i}", f"v{i}", x=Ref(f"v{i - 1}")) for i in range(1, length)))


def map_reduce(width: int) -> tuple[CallSpec, ...]:
    maps = tuple(call(f"m{i}", f"s{i}", x=value(f"text {i}")) for i in range(width))
    return (*maps, call("reduce", "answer", JOIN, xs=tuple(Ref(f"s{i}") for i in range(width))))


class Bench:
    """A scheduler, its clock, and an engine's part played by hand. Every event is checked, handled and validated."""

    def __init__(self, *engines: EngineSpec, **settings: object) -> None:
        self.scheduler = Scheduler(SchedulerSettings(**settings))  # type: ignore[arg-type]
        self.now_s = 0.0
        self.actions: list[ev.Action] = []
        for engine in engines or (ENGINE,):
            self.post(ev.EngineUp(engine))

    def post(self, event: ev.Event, after_s: float = 0.0) -> list[ev.Action]:
        self.now_s += after_s
        self.scheduler.check(event)
        actions = self.scheduler.handle(event, self.now_s)
        self.scheduler.validate()
        self.actions += actions
        return actions

    def submit(self, *calls: CallSpec, program: str = "p", **fields: object) -> list[ev.Action]:
        event = ev.Submitted(program, functions=FUNCTIONS, calls=calls, **fields)  # type: ignore[arg-type]
        return self.post(event)

    def of(self, kind: type[ev.Action]) -> list[ev.Action]:
        return [action for action in self.actions if isinstance(action, kind)]

    @property
    def dispatched(self) -> list[ev.Dispatch]:
        return [action for action in self.actions if isinstance(action, ev.Dispatch)]

    def finish(self, sent: ev.Dispatch, text: str = "answer", after_s: float = 0.1) -> list[ev.Action]:
        actions = self.post(ev.Started(sent.key, sent.attempt))
        tokens = sum(piece.tokens for piece in sent.prompt.pieces)
        actions += self.post(ev.Prefilled(sent.key, sent.attempt, tokens, 0), after_s / 2)
        return actions + self.post(
            ev.Finished(sent.key, sent.attempt, value(text, 5), Usage(tokens, 0, 5)), after_s / 2
        )

    def run(self) -> None:
        """Answer every dispatch in the order in which it was made, until there are no more."""
        done = 0
        while done < len(self.dispatched):
            sent = self.dispatched[done]
            done += 1
            self.finish(sent, f"answer of {sent.key.call}")

    def key(self, name: str, step: int = 0, program: str = "p") -> StepKey:
        return StepKey(program, name, step)
