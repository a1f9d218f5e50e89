"""Many decode steps at once are the same as one after another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parrot_server.core.cost import step_s
from parrot_server.core.model import CostModel
from parrot_server.sim.batch import steps_s, steps_until

COSTS = st.builds(
    CostModel,
    prefill_token_s=st.just(0.0),
    step_s=st.floats(1e-4, 1.0),
    sequence_s=st.floats(0.0, 0.1),
    resident_token_s=st.one_of(st.just(0.0), st.floats(1e-9, 1e-4)),
)


@given(COSTS, st.integers(1, 300), st.integers(0, 500_000), st.integers(0, 400))
def test_a_leap_lasts_as_long_as_its_steps(cost: CostModel, sequences: int, resident: int, steps: int) -> None:
    one_by_one = sum(step_s(cost, sequences, resident + sequences * i) for i in range(steps))
    assert abs(steps_s(cost, sequences, resident, steps) - one_by_one) <= 1e-9 * (1 + one_by_one)


@given(COSTS, st.integers(1, 300), st.integers(0, 500_000), st.floats(0.0, 1e5))
def test_a_leap_ends_with_the_first_step_that_reaches_a_time(
    cost: CostModel, sequences: int, resident: int, time_s: float
) -> None:
    steps = steps_until(cost, sequences, resident, time_s)
    assert steps_s(cost, sequences, resident, steps) >= time_s
    assert steps == 0 or steps_s(cost, sequences, resident, steps - 1) < time_s
