"""Whether one policy beats another: the same seeds under both, compared seed by seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

# Student's t for 95% by degrees of freedom; beyond the table the normal distribution's
_T = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120)


@dataclass(frozen=True, slots=True)
class Ratio:
    """A geometric mean of ratios with its interval of 95%."""

    mean: float
    low: float
    high: float


def paired_ratio(ours: Sequence[float], theirs: Sequence[float]) -> Ratio:
    """Ours over theirs, pair by pair. One pair has no interval."""
    logs = [math.log(a / b) for a, b in zip(ours, theirs, strict=True)]
    middle = fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(middle), 0.0, math.inf)
    t = _T[len(logs) - 2] if len(logs) - 2 < len(_T) else 1.96
    half = t * stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(middle), math.exp(middle - half), math.exp(middle + half))
