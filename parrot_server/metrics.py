"""Counters for Prometheus, one registry a server. Labels are engines and states, never what users send."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from parrot_server.core.model import ENDED, CallState, StepKey, Usage

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """What the runtime counts."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        open_calls = Gauge("parrot_calls", "Open calls by state", ["state"], registry=self.registry)
        ended_calls = Counter("parrot_calls_ended", "Calls that ended, by state", ["state"], registry=self.registry)
        self._open_calls = {state: open_calls.labels(state) for state in CallState if state not in ENDED}
        self._ended_calls = {state: ended_calls.labels(state) for state in ENDED}
        self.programs = Counter("parrot_programs_ended", "Programs that ended", ["state"], registry=self.registry)
        self.queue_s = Histogram(
            "parrot_queue_seconds", "From ready to started", buckets=_SECONDS, registry=self.registry
        )
        self.engine_queue_s = Histogram(
            "parrot_engine_queue_seconds",
            "In the engine's own queue, where it says so",
            ["engine"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.ttft_s = Histogram(
            "parrot_ttft_seconds", "From dispatch to first text", ["engine"], buckets=_SECONDS, registry=self.registry
        )
        self.tokens = Counter("parrot_tokens", "Tokens by kind", ["engine", "kind"], registry=self.registry)
        self.output_tokens = Counter(
            "parrot_output_tokens", "Output tokens as they come", ["engine"], registry=self.registry
        )
        self.failures = Counter(
            "parrot_attempts_failed", "Failed attempts", ["engine", "fault"], registry=self.registry
        )
        self.engine_up = Gauge("parrot_engine_up", "1 while the engine is up", ["engine"], registry=self.registry)
        self._states: dict[StepKey, CallState] = {}
        self._ready_s: dict[StepKey, float] = {}

    def moved(self, key: StepKey, state: CallState, now_s: float) -> None:
        """A call went to another state."""
        if before := self._states.pop(key, None):
            self._open_calls[before].dec()
        if state in ENDED:
            self._ended_calls[state].inc()
            self._ready_s.pop(key, None)
            return
        self._states[key] = state
        self._open_calls[state].inc()
        if state is CallState.READY:
            self._ready_s.setdefault(key, now_s)
        elif state is CallState.RUNNING and (ready_s := self._ready_s.pop(key, None)) is not None:
            self.queue_s.observe(now_s - ready_s)

    def used(self, engine: str, usage: Usage) -> None:
        """An attempt ended well and used so many tokens."""
        for kind, tokens in (
            ("prompt", usage.prompt_tokens),
            ("cached", usage.cached_tokens),
            ("output", usage.output_tokens),
        ):
            self.tokens.labels(engine, kind).inc(tokens)

    def page(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self.registry)
