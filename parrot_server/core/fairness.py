"""Who has received how much: service is charged to steps, groups, programs and tenants.

Service is KV token-time: resident tokens times seconds of running, where what a pinned or cached prefix holds is not counted. Sixteen maps
at once cost sixteen times one. The sum is what fairness goes by; the order of a step goes by the costliest path that led to it.

Source: virtual token counters, "Fairness in Serving Large Language Models" (OSDI'24, section 4); attained service by program and along
the critical path, Autellix (arXiv:2502.13965, section 4.2).
"""

from __future__ import annotations

from dataclasses import dataclass

from parrot_server.core.program import Program, Step


@dataclass(slots=True)
class Tenant:
    """One tenant's account. `virtual_token_s` is service over weight, and never far behind the others': idling saves nothing."""

    name: str
    weight: float = 1.0
    attained_token_s: float = 0.0
    virtual_token_s: float = 0.0
    open_programs: int = 0


class Accounts:
    """The accounts of all tenants."""

    def __init__(self) -> None:
        self._tenants: dict[str, Tenant] = {}
        self._program_floor_token_s = 0.0

    def tenant(self, name: str) -> Tenant:
        """A tenant's account, made at its first use."""
        tenant = self._tenants.get(name)
        if tenant is None:
            tenant = self._tenants[name] = Tenant(name)
        return tenant

    def set_weights(self, weights: tuple[tuple[str, float], ...]) -> None:
        """Set tenants' shares under saturation."""
        for name, weight in weights:
            self.tenant(name).weight = weight

    def opened(self, program: Program) -> None:
        """A program begins where the least served of those that are there stand, so that it neither owes nor is owed."""
        tenant = self.tenant(program.tenant)
        if tenant.open_programs == 0:
            floor = min((t.virtual_token_s for t in self._tenants.values() if t.open_programs), default=0.0)
            tenant.virtual_token_s = max(tenant.virtual_token_s, floor)
        tenant.open_programs += 1
        program.virtual_token_s = self._program_floor_token_s

    def ended(self, program: Program) -> None:
        """A program has ended; its tenant's account stays, so that a new program does not reset it."""
        self.tenant(program.tenant).open_programs -= 1

    def dispatched(self, step: Step) -> None:
        """A step was chosen: no program that comes now may begin before it."""
        self._program_floor_token_s = max(self._program_floor_token_s, step.program.virtual_token_s)

    def charge(self, step: Step, token_s: float) -> None:
        """Charge service to all who answer for a step."""
        program = step.program
        step.attained_token_s += token_s
        if step.group is not None:
            step.group.attained_token_s += token_s
        program.attained_token_s += token_s
        program.virtual_token_s += token_s / program.priority
        tenant = self.tenant(program.tenant)
        tenant.attained_token_s += token_s
        tenant.virtual_token_s += token_s / tenant.weight


def inherit(step: Step) -> None:
    """Set what a step that becomes ready inherits: the costliest path over its parents.

    A call that was appended to a live program without reading anything of it still comes after all that had finished.
    """
    program = step.program
    paths = (parent.inherited_token_s + parent.attained_token_s for parent in program.parents(step))
    step.inherited_token_s = max(paths, default=program.longest_token_s)


def finish_path(step: Step) -> None:
    """A step has ended: remember the costliest path of its program."""
    length = step.inherited_token_s + step.attained_token_s
    step.program.longest_token_s = max(step.program.longest_token_s, length)
