"""When programs come. Seeded by the caller's generator, so a workload is the same wherever it is made."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random


def poisson(rng: Random, rate_s: float, until_s: float) -> Iterator[float]:
    """Independent arrivals, so many a second on average."""
    time_s = rng.expovariate(rate_s)
    while time_s < until_s:
        yield time_s
        time_s += rng.expovariate(rate_s)


def bursty(rng: Random, rate_s: float, until_s: float, burst: int = 8) -> Iterator[float]:
    """Arrivals in bursts of about so many at once (a geometric number), with the same average rate."""
    for time_s in poisson(rng, rate_s / burst, until_s):
        yield time_s
        while rng.random() < 1 - 1 / burst:
            yield time_s
