"""What to do with a call's KV while its program waits for a tool or a person: keep it, drop it, or move it to the host and back.

Each way wastes memory for some time, and the cheapest in token-seconds is taken:

    keep       the stall, for its own tokens, as far as others want the room (`pressure`)
    drop       the time to compute it anew, for its own tokens and for all that waits meanwhile in the running batch
    offload    the time to move it out and back, for the same; if the host has room

Source: the waste of preserving, discarding and swapping in InferCept (arXiv:2402.01869, section 4.1); weighed here by how much the room
is wanted, for an idle engine loses nothing by keeping.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from parrot_server.core.cost import prefill_s, swap_s
from parrot_server.core.model import CostModel


class Fate(StrEnum):
    """What becomes of KV over a stall. In the order in which ties are decided."""

    KEEP = "keep"
    OFFLOAD = "offload"
    DROP = "drop"


@dataclass(frozen=True, slots=True)
class Stall:
    """A call's KV, and what is known of the time in which nobody reads it.

    Args:
        tokens: how much it is.
        stall_s: how long it is expected to lie idle.
        pressure: 0 where nobody wants its room, 1 where somebody waits for it.
        batch_tokens: what else is resident, and stands still while this is computed again or moved.
        host_free_tokens: room on the host; 0 where the engine cannot offload.
    """

    tokens: int
    stall_s: float
    pressure: float
    batch_tokens: int
    host_free_tokens: int = 0


def wastes_token_s(stall: Stall, cost: CostModel) -> dict[Fate, float]:
    """What each way that is open wastes, in token-seconds."""
    held_up = stall.tokens + stall.batch_tokens
    wastes = {Fate.KEEP: stall.pressure * stall.tokens * stall.stall_s}
    if stall.tokens <= stall.host_free_tokens:
        wastes[Fate.OFFLOAD] = swap_s(cost, stall.tokens) * held_up
    wastes[Fate.DROP] = prefill_s(cost, stall.tokens) * held_up
    return wastes


def cheapest(stall: Stall, cost: CostModel) -> Fate:
    """The way that wastes least."""
    wastes = wastes_token_s(stall, cost)
    return min(wastes, key=lambda fate: wastes[fate])
