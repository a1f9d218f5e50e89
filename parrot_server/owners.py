"""Whose programs are whose, and what functions are called by whom. The scheduler knows functions by their ids alone."""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from parrot_server.core.events import CallsAdded, Registered, Submitted
from parrot_server.errors import Refused


@dataclass(slots=True, eq=False)
class _Owned:
    """One program's owner, its number in order of submission, and the names that its submissions gave to functions."""

    tenant: str
    number: int
    functions: dict[str, str] = field(default_factory=dict)
    ids: set[str] = field(default_factory=set)


class Owners:
    """Programs and names of functions by tenant. The operator's own are those of the tenant with the empty name."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._programs: dict[str, _Owned] = {}
        self._registered: defaultdict[str, dict[str, str]] = defaultdict(dict)
        self._ids: defaultdict[str, set[str]] = defaultdict(set)

    def registered(self, event: Registered) -> None:
        """A tenant named a function; the latest of a name counts."""
        self._registered[event.tenant][event.function.name] = event.function.id
        self._ids[event.tenant].add(event.function.id)

    def submitted(self, event: Submitted) -> None:
        """A program is there."""
        self._programs[event.program] = _Owned(event.tenant, next(self._numbers))
        self.named(event)

    def named(self, event: Submitted | CallsAdded) -> None:
        """A submission named functions."""
        owned = self._programs[event.program]
        owned.functions.update((spec.name, spec.id) for spec in event.functions)
        owned.ids.update(spec.id for spec in event.functions)

    def forget(self, program: str) -> None:
        """A program is no longer kept."""
        del self._programs[program]

    def tenant(self, program: str) -> str:
        """Whose program it is. Raises Refused for one that is not there."""
        return self._owned(program).tenant

    def functions(self, tenant: str) -> dict[str, str]:
        """Ids of registered functions by the names that they have for a tenant."""
        return self._registered[""] | self._registered.get(tenant, {})

    def has_function(self, tenant: str, function_id: str) -> bool:
        """Whether a tenant, or the operator, registered a function: another's templates are nobody's business."""
        return function_id in self._ids[""] or function_id in self._ids.get(tenant, ())

    def usable(self, tenant: str, program: str | None) -> set[str]:
        """Ids of the functions that calls may name: the tenant's, the operator's, and what came with the program."""
        return self._ids[""] | self._ids.get(tenant, set()) | (self._owned(program).ids if program else set())

    def names(self, program: str) -> dict[str, str]:
        """Ids of functions by the names that calls of a program may use. Raises Refused."""
        owned = self._owned(program)
        return self.functions(owned.tenant) | owned.functions

    def page(self, tenant: str, before: int | None, most: int) -> list[tuple[int, str]]:
        """A tenant's latest programs, newest first, with their numbers; only those before a number."""
        own = (
            (owned.number, program)
            for program, owned in reversed(self._programs.items())
            if owned.tenant == tenant and (before is None or owned.number < before)
        )
        return list(itertools.islice(own, most))

    def _owned(self, program: str) -> _Owned:
        try:
            return self._programs[program]
        except KeyError:
            raise Refused("unknown_program", f"there is no program {program!r}", status=404) from None
