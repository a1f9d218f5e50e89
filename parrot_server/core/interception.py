"""Interceptions: a live program waits for its client, or for a tool of the client, while the KV of what it has read lies idle.

When all calls of a program that may go on have ended, the beginning that the last of them read is kept on the device, moved out to the
host or left to the engine, whichever wastes least by the expected stall. That is decided again when somebody begins to wait for the
engine's room. What is kept or moved out is let go when the program has gone on without it, has ended, or stays away for too long.

Source: the choice between preserving, swapping and discarding, and its being made anew while the stall lasts, InferCept
(arXiv:2402.01869, sections 4.1 and 4.4).
"""

from __future__ import annotations

from parrot_server.core.events import Keep
from parrot_server.core.fleet import Engine, Held
from parrot_server.core.keeper import Keeper, known_head
from parrot_server.core.model import Tier
from parrot_server.core.program import Program
from parrot_server.core.retention import Fate, Stall, cheapest
from parrot_server.core.state import State, Timer

HOLD_FACTOR = 3.0  # what is held over a stall is let go after so many times the expected length,
HOLD_LEAST_S = 1.0  # and not sooner than this


class Interceptions:
    """Decides what becomes of idle programs' KV. Owns no state of its own."""

    def __init__(self, state: State, keeper: Keeper) -> None:
        self._state = state
        self._keeper = keeper

    def begin(self, program: Program) -> None:
        """Nothing of a program is open, and more may come: find a place for what its last generation read."""
        state, step = self._state, program.reader
        if step is None or step.engine is None or not state.policy.deduces:
            return
        engine, prompt = state.engines[step.engine], step.prompt
        assert prompt is not None, f"{step.key} read nothing"
        head = known_head(prompt, state.settings.warm_tokens) if engine.up and engine.spec.can_pin else None
        if head is None or head in engine.pins or head in engine.held or head in engine.coming:
            return
        if state.prefixes.pins(head):
            return
        held = Held(step, prompt.head(head), state.now_s, state.predictor.stall_s(step))
        match self._fate(engine, held):
            case Fate.KEEP if engine.can_keep(held.prompt, state.settings):
                self._keeper.keep(engine, held.prompt, step)
            case Fate.OFFLOAD:
                self._move_out(engine, held)
            case _:
                return
        engine.hold(head, held)
        self._look_again(engine, head, held, _until_s(held))

    def reconsider(self, engine: Engine) -> bool:
        """Somebody waits for an engine's room: decide anew about what is kept there. True: some of it goes."""
        some = False
        for prefix, held in list(engine.held.items()):
            if held.tier is not Tier.DEVICE or self._state.prefixes.pins(prefix):
                continue
            fate = self._fate(engine, held)
            if fate is Fate.OFFLOAD:
                self._keeper.forget_pin(engine, prefix)
                self._move_out(engine, held)
                engine.hold(prefix, held)
            elif fate is Fate.DROP:
                self._let_go(engine, prefix)
            some = some or fate is not Fate.KEEP
        return some

    def moved_out(self, engine: Engine, prefix: str, tokens: int) -> None:
        """An engine has moved a beginning out, or could not (no tokens). The host's bound is kept as the engine keeps it."""
        held = engine.held.get(prefix)
        if held is None or held.tier is not Tier.HOST:  # that was overtaken
            if tokens and prefix not in engine.pins:
                self._release(engine, prefix)
            return
        engine.host_used_tokens += tokens - held.host_tokens
        held.host_tokens = tokens
        if not tokens:
            engine.let_go(prefix)
        while engine.host_free_tokens < 0:
            self._let_go(engine, next(name for name, other in engine.held.items() if other.tier is Tier.HOST))

    def went_on(self, program: Program) -> None:
        """A program has more calls, or one has computed its prompt: what none will begin with is let go."""
        for engine_id, prefix in list(program.held):
            if not self._state.prefixes.pins(prefix):
                self._let_go(self._state.engines[engine_id], prefix)

    def end(self, program: Program) -> None:
        """A program will not go on."""
        for engine_id, prefix in list(program.held):
            self._let_go(self._state.engines[engine_id], prefix)

    def overdue(self, engine: Engine, prefix: str) -> None:
        """A stall may have lasted too long to be waited for."""
        held = engine.held.get(prefix)
        if held is None or self._state.now_s < _until_s(held):
            return
        if self._state.prefixes.pins(prefix):  # its program has gone on, and is about to read it
            self._look_again(engine, prefix, held, self._state.now_s + max(held.stall_s, HOLD_LEAST_S))
        else:
            self._let_go(engine, prefix)

    def _look_again(self, engine: Engine, prefix: str, held: Held, at_s: float) -> None:
        self._state.set_timer(at_s, Timer.STALL, held.step.program.id, engine.spec.id, prefix)

    def _fate(self, engine: Engine, held: Held) -> Fate:
        """What wastes least from now on. A stall that is longer than expected is thought to last as long again."""
        waited_s = self._state.now_s - held.since_s
        stall = Stall(
            tokens=held.prompt.tokens,
            stall_s=max(held.stall_s - waited_s, waited_s),
            pressure=float(engine.wanted),
            batch_tokens=engine.totals.resident_tokens,
            host_free_tokens=engine.host_free_tokens,
        )
        return cheapest(stall, engine.cost)

    def _move_out(self, engine: Engine, held: Held) -> None:
        held.tier, held.host_tokens = Tier.HOST, held.prompt.tokens
        self._keeper.ask(engine, held.prompt, held.step, Tier.HOST)

    def _let_go(self, engine: Engine, prefix: str) -> None:
        held = engine.let_go(prefix)
        if held.tier is Tier.HOST:
            self._release(engine, prefix)
        elif not self._state.prefixes.pins(prefix):
            self._keeper.unpin(engine, prefix)

    def _release(self, engine: Engine, prefix: str) -> None:
        """Have an engine let go of what it moved out."""
        self._state.actions.append(Keep(prefix, engine.spec.id, Tier.NONE, self._state.now_s))


def _until_s(held: Held) -> float:
    return held.since_s + max(HOLD_FACTOR * held.stall_s, HOLD_LEAST_S)
