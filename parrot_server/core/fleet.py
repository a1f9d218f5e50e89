"""Engines as the scheduler sees them: what runs in each, what its cache holds, and whether it can be trusted.

An engine's room is free when it says so (Finished, Failed, Aborted, EngineDown), not when it was asked to let go.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field
from enum import StrEnum

from parrot_server.core.cost import step_s
from parrot_server.core.events import Keep
from parrot_server.core.kv_use import KvUse
from parrot_server.core.model import CostModel, EngineSpec, Prompt, StepKey, Tier, Urgency
from parrot_server.core.program import Step
from parrot_server.core.runs import Run, Totals
from parrot_server.core.settings import SchedulerSettings

MOST_URGENT_FIRST = sorted(Urgency, reverse=True)
MOST_UNWARMABLE = 10_000  # prefixes that an engine is known to be unable to keep


class PinState(StrEnum):
    """How far a pin is."""

    WARMING = "warming"
    HELD = "held"


@dataclass(slots=True)
class Pin:
    """A prefix that an engine was asked to keep, how it was asked, and when that is looked at again."""

    keep: Keep
    prompt: Prompt
    look_s: float
    state: PinState = PinState.WARMING


@dataclass(slots=True)
class Held:
    """A beginning that `step` read, kept while its program stalls: pinned on the device, or on the host, where it takes `host_tokens`."""

    step: Step
    prompt: Prompt
    since_s: float
    stall_s: float  # expected
    tier: Tier = Tier.DEVICE
    host_tokens: int = 0


@dataclass(slots=True, eq=False)
class Engine:
    """One engine, or one replica."""

    spec: EngineSpec
    up: bool = True
    cost: CostModel = field(default_factory=CostModel)
    runs: dict[tuple[StepKey, int], Run] = field(default_factory=dict)
    cached: OrderedDict[str, int] = field(default_factory=OrderedDict)  # prefix, tokens beyond its parent; oldest first
    cached_tokens: int = 0
    pins: dict[str, Pin] = field(default_factory=dict)
    pinned: KvUse = field(default_factory=KvUse)
    in_use: KvUse = field(default_factory=KvUse)  # by pins and by runs
    coming: dict[str, list[Step]] = field(
        default_factory=dict
    )  # prefixes on their way, and the steps that wait for them
    unwarmable: set[str] = field(default_factory=set)  # prefixes that it could not keep
    held: dict[str, Held] = field(default_factory=dict)  # over stalls of their programs, longest held first
    host_used_tokens: int = 0  # by those that were moved out
    wanted: bool = False  # somebody waits for its room
    foreign_tokens: int = 0  # KV that others use
    foreign_running: int = 0
    failures: int = 0
    open_until_s: float | None = None  # the breaker is open
    probing: bool = False
    admits: bool = True  # between the water marks
    _totals: Totals = field(default_factory=Totals)
    _touched: dict[Run, None] = field(default_factory=dict)

    def pin(self, prefix: str, pin: Pin) -> None:
        """Note that a prefix was asked for."""
        assert prefix not in self.pins, f"{self.spec.id} keeps {prefix} already"
        self.pins[prefix] = pin
        self.pinned.add(pin.prompt)
        self.in_use.add(pin.prompt)

    def cannot_keep(self, prefix: str) -> None:
        """Note that it is not to be asked for a prefix again."""
        if len(self.unwarmable) >= MOST_UNWARMABLE:  # they may be of programs that have long ended
            self.unwarmable.clear()
        self.unwarmable.add(prefix)

    def drop_pin(self, prefix: str) -> bool:
        """Note that a prefix is pinned no more. False: it was not."""
        pin = self.pins.pop(prefix, None)
        if pin is not None:
            self.pinned.remove(pin.prompt)
            self.in_use.remove(pin.prompt)
            if prefix in self.held:
                self.let_go(prefix)
        return pin is not None

    def hold(self, prefix: str, held: Held) -> None:
        """Note that a beginning is held over a stall of the program that read it."""
        assert prefix not in self.held, f"{self.spec.id} holds {prefix} over already"
        self.held[prefix] = held
        self.host_used_tokens += held.host_tokens
        held.step.program.held[self.spec.id, prefix] = None

    def let_go(self, prefix: str) -> Held:
        """Note that a beginning is held over no longer."""
        held = self.held.pop(prefix)
        self.host_used_tokens -= held.host_tokens
        del held.step.program.held[self.spec.id, prefix]
        return held

    @property
    def host_free_tokens(self) -> int:
        """Room for what is moved out."""
        if not self.spec.can_offload:
            return 0
        return self.spec.host_tokens - self.host_used_tokens

    def can_keep(self, prompt: Prompt, settings: SchedulerSettings) -> bool:
        """Whether it could pin this beginning of a prompt: it knows how, and pins would not take too much."""
        if not self.spec.can_pin or prompt.prefixes[-1] in self.unwarmable:
            return False
        pinned = self.pinned.tokens + self.pinned.missing_tokens(prompt)
        return pinned <= settings.pinned_share * self.spec.kv_tokens

    def add(self, run: Run) -> None:
        """An attempt was sent to it."""
        self.runs[run.step.key, run.attempt] = run
        if run.shared:
            self.in_use.add(run.shared)
        self.touch(run)

    def remove(self, run: Run) -> None:
        """An attempt is over."""
        del self.runs[run.step.key, run.attempt]
        if run.shared:
            self.in_use.remove(run.shared)
        self.touch(run)

    def touch(self, run: Run) -> None:
        """A run came, went or changed, or is about to: it is counted anew when the sums are asked for."""
        self._touched[run] = None

    @property
    def totals(self) -> Totals:
        """Sums over its runs."""
        while self._touched:
            run, _ = self._touched.popitem()
            if (run.step.key, run.attempt) in self.runs:
                self._totals.count(run)
            else:
                self._totals.discount(run)
        return self._totals

    @property
    def slots_used(self) -> int:
        """Runs that count against `max_running`."""
        return self.totals.slots + self.foreign_running

    @property
    def is_full(self) -> bool:
        """Whether no slot is free; one that runs nothing of ours takes a call whatever others do."""
        return self.totals.slots > 0 and self.slots_used >= self.spec.max_running

    @property
    def reserved_tokens(self) -> int:
        """KV that is spoken for."""
        return self.totals.need_tokens + self.in_use.tokens + self.foreign_tokens

    def usable(self, now_s: float) -> bool:
        """Whether calls may be sent to it: it is up and its breaker lets them through."""
        if not self.up:
            return False
        if self.open_until_s is None:
            return True
        return now_s >= self.open_until_s and not self.probing

    def has_room(self, need_tokens: int, settings: SchedulerSettings, *, batch: bool) -> bool:
        """Whether a call that needs so many tokens can be admitted; an empty engine takes any."""
        if not self.runs:
            return True
        return not self.is_full and self.has_tokens(need_tokens, settings, batch=batch)

    def has_tokens(self, need_tokens: int, settings: SchedulerSettings, *, batch: bool) -> bool:
        """Whether its KV has room for so many tokens, between the water marks."""
        used, capacity = self.reserved_tokens, self.spec.kv_tokens
        if used <= capacity * settings.low_water:
            self.admits = True
        fits = used + need_tokens <= capacity * settings.high_water
        if not fits and batch:
            self.admits = False
        return fits and (self.admits or not batch)

    def expedited(self) -> Collection[Run]:
        """Expedited calls in the running batch."""
        return self.totals.decoding[Urgency.EXPEDITE].runs

    def most_urgent(self) -> Urgency:
        """How urgent the most urgent calls in the running batch are: those whose time per token is kept."""
        decoding = self.totals.decoding
        for urgency in MOST_URGENT_FIRST:
            if decoding[urgency].runs:
                return urgency
        return Urgency.BACKGROUND

    def less_urgent(self, than: Urgency) -> list[Run]:
        """Calls in the running batch that are less urgent."""
        return [run for urgency in Urgency if urgency < than for run in self.totals.decoding[urgency].runs]

    def corunner_budget_s(self, settings: SchedulerSettings) -> float:
        """By how much less urgent calls may stretch a step of the most urgent ones."""
        kept = self.totals.decoding[self.most_urgent()]
        return (settings.corunner_slowdown - 1) * step_s(self.cost, len(kept.runs), kept.resident_tokens)

    def corunners_s(self) -> float:
        """By how much less urgent calls stretch a step of the most urgent ones now."""
        most = self.most_urgent()
        parts = [part for urgency, part in self.totals.decoding.items() if urgency < most]
        sequences, tokens = sum(len(part.runs) for part in parts), sum(part.resident_tokens for part in parts)
        return self.cost.sequence_s * sequences + self.cost.resident_token_s * tokens

    def corunner_s(self, resident_tokens: float) -> float:
        """By how much one more call stretches a step."""
        return self.cost.sequence_s + self.cost.resident_token_s * resident_tokens

    def holds(self, prefix: str) -> bool:
        """Whether a prefix is in its cache, as far as is known."""
        pin = self.pins.get(prefix)
        return prefix in self.cached or (pin is not None and pin.state is PinState.HELD)

    def saw(self, prefixes: tuple[str, ...], tokens: list[int]) -> None:
        """Note that a prompt is in the cache now; what was used longest ago is thought to be gone when the room is."""
        if not self.spec.shares_prefixes:
            return
        for prefix, own in zip(prefixes, tokens, strict=True):
            if prefix in self.cached:
                self.cached.move_to_end(prefix)
            else:
                self.cached[prefix] = own
                self.cached_tokens += own
        while self.cached_tokens > self.spec.kv_tokens and self.cached:
            _, own = self.cached.popitem(last=False)
            self.cached_tokens -= own

    def forget(self, prefix: str) -> None:
        """Note that a prefix is gone from the cache."""
        self.cached_tokens -= self.cached.pop(prefix, 0)

    def clear(self) -> None:
        """It is gone, and all that was in it."""
        self.up = False
        self.runs.clear()
        self._totals, self._touched = Totals(), {}
        self.cached.clear()
        self.cached_tokens = 0
        self.pins.clear()
        self.pinned, self.in_use = KvUse(), KvUse()
        for prefix in list(self.held):
            self.let_go(prefix)
        self.wanted = False
        self.coming.clear()
        self.unwarmable.clear()
        self.probing = False
        self.foreign_tokens = self.foreign_running = 0

    def succeeded(self) -> None:
        """A call ended well: the breaker closes."""
        self.failures, self.open_until_s, self.probing = 0, None, False

    def failed(self, now_s: float, settings: SchedulerSettings) -> float | None:
        """A call failed by the engine's fault. Returns when to look again, if the breaker opens."""
        self.failures += 1
        was_probe, self.probing = self.probing, False
        if self.failures < settings.breaker_failures and not was_probe:
            return None
        self.open_until_s = now_s + settings.breaker_s
        return self.open_until_s

    def validate(self) -> None:
        """State every invariant of one engine. Raises AssertionError."""
        assert self.totals == Totals.of(self.runs.values()), f"{self.spec.id}: stale sums"
        pinned = [pin.prompt for pin in self.pins.values()]
        self.pinned.validate(pinned)
        running = [run.shared for run in self.runs.values() if run.shared]
        self.in_use.validate([*pinned, *running])
        assert self.up or not self.runs, f"{self.spec.id} is down and runs calls"
        assert sum(self.cached.values()) == self.cached_tokens, f"{self.spec.id}: cache size"
        for (key, attempt), run in self.runs.items():
            assert run.attempt == attempt
            assert run.step.key == key
            current = run.step.attempt == attempt and run.step.engine == self.spec.id
            assert run.aborting or current, f"{key}: a run that nobody knows of"
        own_slots = self.slots_used - self.foreign_running
        assert own_slots <= self.spec.max_running, f"{self.spec.id}: {own_slots} running"
        assert self.host_used_tokens == sum(held.host_tokens for held in self.held.values()), "tokens on the host"
        assert self.host_free_tokens >= 0, f"{self.spec.id}: too much on the host"
        for prefix, held in self.held.items():
            assert (held.tier is Tier.DEVICE) == (prefix in self.pins), f"{prefix} is held on {held.tier}"
            assert held.tier is Tier.HOST or not held.host_tokens, f"{prefix} is on the device and counted on the host"
            assert (self.spec.id, prefix) in held.step.program.held, (
                f"{prefix}: its program does not know that it is held"
            )
            assert not held.step.program.ended, f"{prefix} is held for a program that has ended"
        for prefix in self.coming:
            leads = any(run.leads == prefix for run in self.runs.values())
            warms = prefix in self.pins and self.pins[prefix].state is PinState.WARMING
            assert leads or warms, f"{self.spec.id}: {prefix} is waited for, and nobody brings it"
