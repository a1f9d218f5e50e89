"""Which prefixes engines are asked to keep, and until when: warm before they are needed, hold while someone will use them, let go.

Source: prefixes known by structure and pinned while they have users, Parrot (OSDI'24, section 5.3).
"""

from __future__ import annotations

from dataclasses import replace

from parrot_server.core.events import Keep
from parrot_server.core.fleet import Engine, Pin, PinState
from parrot_server.core.model import CallState, PieceKind, Prompt, Tier
from parrot_server.core.prefix import build_prompt
from parrot_server.core.program import Step
from parrot_server.core.runs import Run
from parrot_server.core.state import State, Timer


class Keeper:
    """The hand on the engines' caches. Owns no state of its own."""

    def __init__(self, state: State) -> None:
        self._state = state

    # ---- what is worth keeping

    def prefill_early(self, step: Step) -> None:
        """Compute the known beginning of a waiting step's prompt while its last parents still run.

        One that a ready step begins with is computed by that step.
        """
        state = self._state
        if not state.policy.deduces or step.state is not CallState.WAITING or step.function is None or step.call.each:
            return
        engines = [engine for engine in state.able(step) if engine.usable(state.now_s)]
        if not any(engine.spec.can_pin for engine in engines):
            return
        prompt = build_prompt(step, head_only=True)
        state.prefixes.pin(step, prompt)
        head = known_head(prompt, state.settings.warm_tokens)
        if head is None or state.prefixes.ready(head):
            return
        if any(engine.holds(head) or head in engine.coming for engine in engines):
            return
        parents = {parent.engine for parent in step.program.parents(step)}
        engines.sort(key=lambda engine: (engine.spec.id not in parents, engine.slots_used, engine.spec.id))
        if engines[0].can_keep(prompt.head(head), state.settings):
            self.keep(engines[0], prompt.head(head), step)

    def keep_for_others(self, engine: Engine, step: Step) -> None:
        """A step's prompt is computed: hold the beginning that others will use too, for the cache alone may let it go."""
        state = self._state
        assert step.prompt is not None
        if not state.policy.deduces or not engine.spec.can_pin:
            return
        prefix = state.prefixes.longest_shared(step.prompt, state.settings.warm_tokens, users=1)
        if prefix is None or prefix in engine.pins or prefix in engine.coming:
            return
        if engine.can_keep(step.prompt.head(prefix), state.settings):
            self.keep(engine, step.prompt.head(prefix), step)

    # ---- asking and letting go

    def keep(self, engine: Engine, prompt: Prompt, step: Step) -> None:
        """Ask an engine to compute and hold a beginning of a step's prompt."""
        state, prefix = self._state, prompt.prefixes[-1]
        assert prefix not in engine.coming, f"{prefix} is on its way to {engine.spec.id} already"
        if prefix in engine.held:  # it comes back from the host, and is held for those that will use it
            engine.let_go(prefix)
        pin = Pin(self.ask(engine, prompt, step, Tier.DEVICE), prompt, state.now_s)
        engine.pin(prefix, pin)
        engine.coming[prefix] = []
        self._look_again(engine, prefix, pin)

    def ask(self, engine: Engine, prompt: Prompt, step: Step, tier: Tier) -> Keep:
        """Ask an engine to bring a beginning of a step's prompt to a tier."""
        until_s = self._state.now_s + self._state.settings.pin_s
        model = step.call.model or engine.spec.models[0]
        keep = Keep(prompt.prefixes[-1], engine.spec.id, tier, until_s, step.program.tenant, model, prompt)
        self._state.actions.append(keep)
        return keep

    def refresh(self, engine: Engine, prefix: str) -> None:
        """Ask an engine to keep a prefix for longer, if it is still wanted."""
        state, pin = self._state, engine.pins.get(prefix)
        if pin is None or state.now_s < pin.look_s:
            return  # the timer was set for a pin that has gone
        if prefix not in engine.held and not state.prefixes.pins(prefix):
            self.unpin(engine, prefix)
            return
        if pin.state is PinState.HELD:
            pin.keep = replace(pin.keep, until_s=state.now_s + state.settings.pin_s)
            state.actions.append(pin.keep)
        self._look_again(engine, prefix, pin)

    def _look_again(self, engine: Engine, prefix: str, pin: Pin) -> None:
        pin.look_s = self._state.now_s + self._state.settings.pin_s / 2
        self._state.set_timer(pin.look_s, Timer.PIN, engine.spec.id, prefix)

    def release(self, step: Step) -> None:
        """A step will use its prefixes no more; engines may let go of those that nobody else will use."""
        for prefix in self._state.prefixes.unpin(step):
            for engine in self._state.engines.values():
                if prefix in engine.pins and prefix not in engine.held:
                    self.unpin(engine, prefix)

    def unpin(self, engine: Engine, prefix: str) -> None:
        """Have an engine let go of a prefix."""
        self._state.actions.append(Keep(prefix, engine.spec.id, Tier.NONE, self._state.now_s))
        self.forget_pin(engine, prefix)

    def forget_pin(self, engine: Engine, prefix: str) -> None:
        """A prefix is pinned no more; those that wait for it go on, unless a step brings it."""
        engine.drop_pin(prefix)
        if not any(run.leads == prefix for run in engine.runs.values()):
            self.arrived(engine, prefix)

    def held(self, engine: Engine, prefix: str) -> None:
        """A pin is there. Shorter ones all of whose users begin with it are held by it."""
        prefixes = self._state.prefixes
        users = prefixes.pins(prefix)
        for shorter in engine.pins[prefix].prompt.prefixes[:-1]:
            other = engine.pins.get(shorter)
            superfluous = other and other.state is PinState.HELD and prefixes.pins(shorter) == users
            if superfluous and shorter not in engine.held:
                self.unpin(engine, shorter)
        self.arrived(engine, prefix)

    def arrived(self, engine: Engine, prefix: str) -> None:
        """A prefix is there, or will not come: those that wait for it go on."""
        for step in engine.coming.pop(prefix, ()):
            if step.state is CallState.READY:
                self._state.enqueue(step)

    def lead_ended(self, engine: Engine, run: Run) -> None:
        """The one that went first has computed the shared prefix, or never will."""
        if run.leads is not None:
            prefix, run.leads = run.leads, None
            self.arrived(engine, prefix)

    def forget_engine(self, engine: Engine) -> None:
        """An engine is gone: those that wait for a prefix there go on elsewhere."""
        for prefix in list(engine.coming):
            self.arrived(engine, prefix)
        engine.clear()


def known_head(prompt: Prompt, least_tokens: int) -> str | None:
    """The known beginning of a prompt up to its last piece of text, if it is worth a warm call."""
    tokens, best = 0, None
    for prefix, piece in zip(prompt.prefixes, prompt.pieces, strict=True):
        tokens += piece.tokens
        if piece.kind is not PieceKind.ROLE and tokens >= least_tokens:
            best = prefix
    return best
