"""The steps that could run now, in the order of a policy.

Steps are queued in lots (a task group, a program, or a single step, as the policy says). A heap holds one key for each lot, a lot holds its
members in a heap of their own; entries that no longer count are skipped when they come up. So an event costs the logarithm of what is
queued, and nothing is ever sorted as a whole.

There is a pool for each model that steps wait for, and one for the paused steps of each engine: they can go on nowhere else.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from parrot_server.core.fairness import Accounts
from parrot_server.core.model import Urgency
from parrot_server.core.policy import Policy, lot_id
from parrot_server.core.program import Step
from parrot_server.core.settings import SchedulerSettings

Pool = tuple[str, str]  # ("model", name) or ("paused", engine)
Lane = tuple[Pool, Urgency]
Rank = tuple[float, float, int, bool]
"""Tenant's share, score, seq; of equals a paused one is first, for it holds memory."""

_LotKey = tuple[Lane, str, tuple[str, ...]]
_Member = tuple[float, int, int, Step]  # minus the remaining path, seq, token, step


@dataclass(slots=True, eq=False)
class _Lot:
    """What moves through the queue together. `version` tells its present heap entry from older ones.

    `ages` says since when each member waits; it is kept where groups are queued.
    """

    key: _LotKey
    members: list[_Member] = field(default_factory=list)
    ages: list[tuple[float, int, Step]] = field(default_factory=list)
    size: int = 0
    version: int = 0


class ReadyQueue:
    """Steps that are ready or paused, by pool, urgency and tenant."""

    def __init__(
        self, policy: Policy, settings: SchedulerSettings, accounts: Accounts, work: Mapping[str, float]
    ) -> None:
        self._policy, self._settings, self._accounts, self._work = policy, settings, accounts, work
        self._lanes: dict[Lane, dict[str, list[tuple[float, int, int, _Lot]]]] = {}
        self._lots: dict[_LotKey, _Lot] = {}
        self._by_name: dict[tuple[str, ...], set[_LotKey]] = {}
        self._where: dict[Step, tuple[_Lot, int]] = {}
        self._token = 0

    def __contains__(self, step: Step) -> bool:
        return step in self._where

    def __len__(self) -> int:
        return len(self._where)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._where)

    def push(self, step: Step, pool: Pool) -> None:
        """Queue a step."""
        assert step not in self._where, f"{step.key} is queued already"
        key: _LotKey = ((pool, self._urgency(step)), step.program.tenant, lot_id(self._policy, step))
        lot = self._lots.get(key)
        if lot is None:
            lot = self._lots[key] = _Lot(key)
            self._by_name.setdefault(key[2], set()).add(key)
        self._token += 1
        rank = -step.path_s if self._policy.deduces else 0.0
        heapq.heappush(lot.members, (rank, step.seq, self._token, step))
        if self._policy.lot == "group":
            heapq.heappush(lot.ages, (step.queued_s, self._token, step))
        lot.size += 1
        self._where[step] = (lot, self._token)
        self._rekey(lot)

    def remove(self, step: Step) -> None:
        """Take a step out; one that is not queued is ignored."""
        entry = self._where.pop(step, None)
        if entry is None:
            return
        lot = entry[0]
        lot.size -= 1
        if lot.size:
            self._rekey(lot)
            return
        lot.version = 0
        del self._lots[lot.key]
        names = self._by_name[lot.key[2]]
        names.discard(lot.key)
        if not names:
            del self._by_name[lot.key[2]]

    def repush(self, step: Step) -> None:
        """Queue a step anew where it is queued, for its objective or group has changed."""
        entry = self._where.get(step)
        if entry is not None:
            pool = entry[0].key[0][0]
            self.remove(step)
            self.push(step, pool)

    def charged(self, step: Step) -> None:
        """Service was charged to a step: those that are queued with it, or wait behind it, score otherwise now."""
        for key in self._by_name.get(lot_id(self._policy, step), ()):
            self._rekey(self._lots[key])

    def best(self, blocked: Collection[Lane]) -> tuple[Rank, Lane, Step] | None:
        """The step that should run next, of all lanes that are not blocked."""
        best: tuple[Rank, Lane, Step] | None = None
        for lane, tenants in self._lanes.items():
            if lane in blocked:
                continue
            for tenant in list(tenants):
                heap = tenants[tenant]
                while heap and heap[0][2] != heap[0][3].version:
                    heapq.heappop(heap)
                if not heap:
                    del tenants[tenant]
                    continue
                score, seq, _, lot = heap[0]
                rank = (self._accounts.tenant(tenant).virtual_token_s, score, seq, lane[0][0] != "paused")
                if best is None or rank < best[0]:
                    best = (rank, lane, self._head(lot))
        return best

    def score(self, step: Step) -> float:
        """A step's score by the policy."""
        return self._policy.score(step, self._settings, self._work)

    def score_among(self, step: Step, pool: Pool) -> float:
        """The score by which a step moves through a pool, or would: a lot is as old as its oldest member."""
        lot = self._lots.get(((pool, self._urgency(step)), step.program.tenant, lot_id(self._policy, step)))
        oldest = self._oldest(lot) if lot and lot.ages else step
        return self.score(oldest if oldest.queued_s < step.queued_s else step)

    def _urgency(self, step: Step) -> Urgency:
        """Which lane is a step's: what is held back for more urgent calls must not stand in the way of others."""
        return step.urgency if self._policy.deduces else Urgency.EXPEDITE

    def _head(self, lot: _Lot) -> Step:
        members = lot.members
        while self._where.get(members[0][3]) != (lot, members[0][2]):
            heapq.heappop(members)
        return members[0][3]

    def _oldest(self, lot: _Lot) -> Step:
        """The member that has waited longest: a group is as old as that, whichever of it goes first."""
        ages = lot.ages
        while self._where.get(ages[0][2]) != (lot, ages[0][1]):
            heapq.heappop(ages)
        return ages[0][2]

    def _rekey(self, lot: _Lot) -> None:
        head = self._head(lot)
        scored = self._oldest(lot) if lot.ages else head
        self._token += 1
        lot.version = self._token
        lane, tenant, _ = lot.key
        heap = self._lanes.setdefault(lane, {}).setdefault(tenant, [])
        if len(heap) > 64 and len(heap) > 4 * len(self._lots):
            heap[:] = [entry for entry in heap if entry[2] == entry[3].version]
            heapq.heapify(heap)
        heapq.heappush(heap, (self.score(scored), self._tie(head), lot.version, lot))

    def _tie(self, head: Step) -> int:
        return head.seq if self._policy.lot == "step" else head.program.seq

    def validate(self) -> None:
        """Raises AssertionError."""
        assert sum(lot.size for lot in self._lots.values()) == len(self._where)
        for step, (lot, _) in self._where.items():
            assert lot.key[0][1] == self._urgency(step), f"{step.key} is queued as {lot.key[0][1].name}"
        for key, lot in self._lots.items():
            assert lot.size > 0, f"empty lot {key}"
            lane, tenant, _ = key
            entries = self._lanes[lane][tenant]
            assert any(e[3] is lot and e[2] == lot.version for e in entries), f"lot {key} is in no heap"
