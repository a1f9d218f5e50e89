"""Operations of the server on values: whatever JSON a model writes, they end in a value that can be told, or in an error."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_server.core.model import CallSpec, Failure, Op, Ref, Transform, Value
from parrot_server.core.transform import MOST_ELEMENTS

from .programs import MAP, Bench, value

SURROGATES = ['{"a": "\\ud800"}', '{"a": ["x", "\\udfff"]}', '{"a": {"\\ud800": 1}}', '{"a": ["\\ud83d", "\\ude00"]}']


def outcome_of(transform: Transform, text: str) -> Value | Failure:
    bench = Bench()
    made = CallSpec("t", Op.TRANSFORM, (("x", value(text)),), (("y", "v"),), transform=transform)
    bench.submit(made)
    outcome = bench.scheduler.variable("p", "v").outcome
    assert outcome is not None
    return outcome


@pytest.mark.parametrize("text", SURROGATES)
def test_half_a_character_is_an_error_and_no_value(text: str) -> None:
    outcome = outcome_of(Transform("field", "a"), text)
    assert isinstance(outcome, Failure)
    assert outcome.type == "transform_failed"
    items = outcome_of(Transform("items"), f"[{text}]")
    assert isinstance(items, Failure)


def test_half_a_character_in_a_list_that_is_spread_is_an_error() -> None:
    bench = Bench()
    each = CallSpec("e", Op.GENERATE, (("x", Ref("l")),), (("y", "v"),), function=MAP.id, each="x")
    bench.submit(each, variables=(("l", value('["fine", "\\ud800"]')),))
    bench.run()
    assert isinstance(bench.scheduler.variable("p", "v").outcome, Failure)


@pytest.mark.parametrize("depth", [*range(100, 1000, 25), 5_000, 200_000])
@pytest.mark.parametrize("kind", ["items", "field"])
def test_depth_is_an_error_or_a_value(depth: int, kind: str) -> None:
    nested = "[" * depth + "]" * depth
    if kind == "items":
        assert outcome_of(Transform("items"), f"[{nested}]") is not None
    else:
        assert outcome_of(Transform("field", "a"), f'{{"a": {nested}}}') is not None


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3),
    max_leaves=8,
)


@given(anything)
def test_whatever_comes_out_can_be_told_to_clients(found: object) -> None:
    outcome = outcome_of(Transform("field", "a"), json.dumps({"a": found}))
    if isinstance(outcome, Value):
        assert outcome.text.encode().decode() == outcome.text
        assert outcome.text == found or outcome.text == json.dumps(found, ensure_ascii=False)
    else:
        assert "\\ud" in json.dumps(found), "only half a character cannot be told"


def test_one_value_that_is_taken_apart_often_is_parsed_once() -> None:
    """Thousands of fields of one large value must not hold the server up."""
    text = json.dumps({"a": "x", "more": ["some text"] * 100_000})
    calls = [
        CallSpec(f"t{i}", Op.TRANSFORM, (("x", Ref("doc")),), (("y", f"v{i}"),), transform=Transform("field", "a"))
        for i in range(300)
    ]
    bench = Bench()
    begun = time.process_time()
    bench.submit(*calls, variables=(("doc", value(text)),))
    assert bench.scheduler.program("p").ended_s is not None
    assert time.process_time() - begun < 1.5


def test_a_list_of_very_many_elements_is_not_taken_apart() -> None:
    failure = outcome_of(Transform("items"), "[" + "1," * MOST_ELEMENTS + "1]")
    assert isinstance(failure, Failure)
    assert f"{MOST_ELEMENTS + 1} elements" in failure.message
    assert isinstance(outcome_of(Transform("items"), "[1,1]"), Value)
