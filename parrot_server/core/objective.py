"""What each call is for, deduced from its place in the graph.

Source: Parrot (OSDI'24), section 5.2: performance criteria stand at the outputs; walking the graph backwards, serial predecessors
of a call whose latency matters inherit that, and parallel siblings that one join waits for become a task group, which is to be
finished as a whole and may be batched. Beyond the paper: the last open member of a group is on the critical path again; deadlines are
carried back minus the work behind them; and a parent that another parent reads is no sibling of it, so that a chain whose calls read all
that came before is still a chain.

All walks are iterative and touch only steps that have not ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from parrot_server.core.model import ENDED, CostModel, Criterion, Objective
from parrot_server.core.predict import Predictor
from parrot_server.core.program import Group, Program, Step

LATENCY = Criterion("latency")


@dataclass(frozen=True, slots=True)
class _Want:
    """What is wanted of a step: that somebody waits for it, until when it is due, and whether it is on the way to them."""

    waited_for: bool
    due_s: float | None
    expedite: bool
    group: str | None


@dataclass(frozen=True, slots=True)
class _Join:
    """A step as those above it see it. `covered`: parents that its last parent reads as well; the way to the step is through that one."""

    covered: frozenset[Step]
    has_siblings: bool


def deduce(program: Program, new: Iterable[Step], predictor: Predictor, cost: CostModel) -> list[Step]:
    """Deduce objectives, groups and remaining paths of new steps and of the open steps above them.

    Returns the steps whose objective, group or path changed, in reverse topological order.
    """
    changed = []
    joins: dict[Step, _Join] = {}
    for step in _sinks_first(program, new):
        if not step.expected_token_s:
            step.expected_token_s = predictor.service_token_s(step, cost)
        before = (step.objective, step.group, step.path_s, step.waited_for, step.due_s)
        children = [child for child in program.children(step) if child.state not in ENDED]
        step.path_s = predictor.seconds(step, cost) + max((child.path_s for child in children), default=0.0)
        _take(program, step, _want(program, step, children, joins))
        if before != (step.objective, step.group, step.path_s, step.waited_for, step.due_s):
            changed.append(step)
    return changed


def _sinks_first(program: Program, new: Iterable[Step]) -> list[Step]:
    """The open steps that the new ones can reach backwards, children before parents."""
    pending: dict[Step, int] = {}
    stack = [step for step in new if step.state not in ENDED]
    while stack:
        step = stack.pop()
        if step in pending:
            continue
        pending[step] = 0
        stack.extend(parent for parent in program.parents(step) if parent.state not in ENDED)
    for step in pending:
        for parent in program.parents(step):
            if parent in pending:
                pending[parent] += 1
    order = [step for step, count in pending.items() if count == 0]
    for step in order:  # grows while it is walked
        for parent in program.parents(step):
            if parent in pending:
                pending[parent] -= 1
                if pending[parent] == 0:
                    order.append(parent)
    return order


def _want(program: Program, step: Step, children: list[Step], joins: dict[Step, _Join]) -> _Want:
    """The strictest of what the user said of its variable and what its children are for."""
    wants = []
    for child in children:
        if child not in joins:
            joins[child] = _join(program, child)
        if step not in joins[child].covered:
            wants.append(_want_of_child(program, child, joins[child]))
    criterion = step.variable.criterion or (LATENCY if not children else None)
    if criterion:
        wants.append(_want_of_user(program, criterion))
    strictest = min(wants, key=lambda want: (not want.expedite, not want.waited_for))
    due = min((want.due_s for want in wants if want.due_s is not None), default=None)
    return _Want(any(want.waited_for for want in wants), due, strictest.expedite, strictest.group)


def _want_of_user(program: Program, criterion: Criterion) -> _Want:
    if criterion.kind == "throughput":
        return _Want(waited_for=False, due_s=None, expedite=False, group=None)
    due = program.deadline_s
    if criterion.kind == "deadline" and criterion.deadline_s is not None:
        due = min(program.submitted_s + criterion.deadline_s, due or float("inf"))
    return _Want(waited_for=True, due_s=due, expedite=criterion.kind == "latency", group=None)


def _want_of_child(program: Program, child: Step, join: _Join) -> _Want:
    due = None if child.due_s is None else child.due_s - (child.path_s - _behind(program, child))
    if join.has_siblings:
        return _Want(child.waited_for, due, expedite=False, group=f"{child.node}:{child.key.step}")
    if (
        child.group is not None and child.group.open_steps > 1
    ):  # the only way into a member: an earlier stage of the group
        return _Want(child.waited_for, due, expedite=False, group=f"{child.group.name}<")
    return _Want(child.waited_for, due, expedite=child.objective is Objective.EXPEDITE, group=None)


def _behind(program: Program, step: Step) -> float:
    return max((child.path_s for child in program.children(step) if child.state not in ENDED), default=0.0)


def _join(program: Program, step: Step) -> _Join:
    """What a step still waits for: which of its parents stand only behind the last one, and whether others stand beside that."""
    waits = [parent for parent in program.parents(step) if parent.state not in ENDED]
    last = max(waits, key=lambda parent: parent.depth)
    before = frozenset(program.parents(last))
    covered = frozenset(parent for parent in waits if parent in before)
    return _Join(covered, has_siblings=len(waits) - len(covered) > 1)


def _take(program: Program, step: Step, want: _Want) -> None:
    step.waited_for = want.waited_for
    step.due_s = want.due_s
    step.objective = Objective.EXPEDITE if want.expedite else Objective.BATCH
    if step.group is None and want.group is not None:
        group = program.groups.setdefault(want.group, Group(want.group))
        group.open_steps += 1
        group.expected_token_s += step.expected_token_s
        step.group = group


def leave_group(step: Step) -> Step | None:
    """A step has ended: its group has one open member less. Returns the group's last open member, if only one is left."""
    group = step.group
    if group is None:
        return None
    group.open_steps -= 1
    if group.open_steps != 1:
        return None
    members = (other for other in step.program.steps.values() if other.group is group)
    return next(other for other in members if other.state not in ENDED)
