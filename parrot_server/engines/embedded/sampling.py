"""Choosing the next token of each row of a batch from its logits."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_LIKELY = 256  # tokens sorted to find the nucleus; nearly always enough

Floats = NDArray[np.float32]


def choose(logits: Floats, temperature: Floats, top_p: Floats, uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    """The next token of each row.

    Args:
        logits: [rows, vocabulary].
        temperature: [rows]; 0: the likeliest token.
        top_p: [rows]; only the likeliest tokens that together have this probability are drawn from.
        uniform: [rows]; random numbers from [0, 1) that decide.

    Source of top_p: Holtzman et al., "The Curious Case of Neural Text Degeneration" (2020), section 3.1.
    """
    tokens: NDArray[np.int64] = logits.argmax(axis=1)
    drawn = np.flatnonzero(temperature > 0)
    if drawn.size:
        scaled = logits[drawn] / temperature[drawn, None]
        weights = np.exp(scaled - scaled.max(axis=1, keepdims=True))
        for row, weight in zip(drawn, weights, strict=True):
            tokens[row] = _draw(weight, float(top_p[row]), float(uniform[row]))
    return tokens


def _draw(weights: Floats, top_p: float, uniform: float) -> int:
    """An index, drawn by weight."""
    if top_p >= 1.0:
        cumulated = np.cumsum(weights, dtype=np.float64)
        return _at(cumulated, uniform * cumulated[-1])
    nucleus = _nucleus(weights, top_p)
    cumulated = np.cumsum(weights[nucleus], dtype=np.float64)
    return int(nucleus[_at(cumulated, uniform * cumulated[-1])])


def _nucleus(weights: Floats, top_p: float) -> NDArray[np.int64]:
    """The fewest tokens, likeliest first, whose share of the weight is at least `top_p`."""
    wanted = top_p * float(weights.sum(dtype=np.float64))
    for size in (min(_LIKELY, weights.size), weights.size):
        likely = np.argpartition(weights, -size)[-size:]
        # Stable, and by index among equals, so that the same seed gives the same token.
        likely = likely[np.lexsort((likely, -weights[likely]))]
        cumulated = np.cumsum(weights[likely], dtype=np.float64)
        if cumulated[-1] >= wanted:
            break
    return likely[: int(np.searchsorted(cumulated, wanted)) + 1]


def _at(cumulated: NDArray[np.float64], mass: float) -> int:
    return min(int(np.searchsorted(cumulated, mass, side="right")), cumulated.size - 1)
