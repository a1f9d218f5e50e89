"""What an operator may set of the scheduler. Part of the journal's header: a replay needs the same settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerSettings:
    """Settings of the core. Times in seconds, sizes in tokens.

    Args:
        policy: name of the order of calls, see `policy.py`.
        calls_per_program: at most so many calls a program, those that `each` expands to included.
        depth: at most so many calls on the longest path of a program.
        program_bytes: the values of a program, sent, generated and made of each other, may take about so much memory in all.
        retain_s: how long an ended program can be read.
        retained_programs, retained_bytes: how many ended programs are kept at the most, and about how much memory
            they take; the oldest go first.
        lifetime_s: a program that has not ended by then is cancelled (`expired`).
        attempts: how often a call is tried in all, unless it says otherwise.
        busy_attempts: how often an engine may answer that it is busy before the call fails.
        backoff_s, backoff_max_s: first and longest pause before another attempt.
        retry_after_max_s: an engine that asks for more patience than that is asked again after so long.
        corunner_slowdown: while an expedited call runs, batch calls may stretch its time per token to so many times what it
            would be without them; 1.0 means that it runs without any. Likewise calls that nobody waits for, while a group runs.
        expedited_together: at most so many expedited calls run on an engine at once; None: as many as fit.
        patience_s: a call that has waited so long is no longer held back by that bound.
        quantum_token_s: service that a program receives on its first level, in resident tokens times seconds.
        age_s: waiting so long raises a call by one level.
        batch_levels, throughput_levels: how many levels a batch call, and one that nobody waits for, stands below others. The
            latter gives way to new calls for a minute, as with `patience_s`, however large the program that somebody waits for.
        thresholds: levels of the `feedback` policy, in quanta.
        grant_tokens: a running call is up for reordering after so many tokens; None: only where a better one waits.
        high_water, low_water: admission stops when so much of an engine's KV is spoken for, and goes on below the other.
        pinned_share: at most so much of an engine's KV is pinned.
        warm_tokens: prefixes shorter than that are not worth a warm call.
        pin_s: engines may drop a pin after so long without being asked again.
        breaker_failures, breaker_s: so many failures in a row keep an engine out for so long, then one call probes it.
    """

    policy: str = "parrot"
    calls_per_program: int = 20_000
    depth: int = 10_000
    program_bytes: int = 256 * 2**20
    retain_s: float = 3600.0
    retained_programs: int = 1000
    retained_bytes: int = 512 * 2**20
    lifetime_s: float = 24 * 3600.0
    attempts: int = 3
    busy_attempts: int = 20
    backoff_s: float = 0.25
    backoff_max_s: float = 10.0
    retry_after_max_s: float = 120.0
    corunner_slowdown: float = 1.25
    expedited_together: int | None = None
    patience_s: float = 60.0
    quantum_token_s: float = 10_000.0
    age_s: float = 5.0
    batch_levels: float = 3.0
    throughput_levels: float = 12.0
    thresholds: tuple[float, ...] = (1.0, 4.0, 16.0, 64.0)
    grant_tokens: int | None = None
    high_water: float = 1.0
    low_water: float = 0.95
    pinned_share: float = 0.5
    warm_tokens: int = 64
    pin_s: float = 300.0
    breaker_failures: int = 3
    breaker_s: float = 5.0
