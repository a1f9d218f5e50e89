"""Stop strings over any chunking."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_server.engines.stops import StopFilter

letters = st.text(alphabet="abé", max_size=30)


def run(stops: list[str], pieces: list[str], keep: bool = False) -> tuple[str, str | None]:
    out, filter_ = [], StopFilter(stops, keep)
    for piece in pieces:
        out.append(filter_.feed(piece))
        if filter_.fired is not None:
            break
    return "".join(out) + filter_.flush(), filter_.fired


def expected(stops: list[str], text: str, keep: bool) -> tuple[str, str | None]:
    """By definition: read one character at a time, and look whether the text so far ends in a stop string."""
    for end in range(1, len(text) + 1):
        fired = [stop for stop in stops if text[:end].endswith(stop)]
        if fired:
            stop = max(fired, key=len)
            return text[: end if keep else end - len(stop)], stop
    return text, None


@given(
    text=letters,
    stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=6), max_size=4, unique=True),
    cuts=st.lists(st.integers(0, 30)),
    keep=st.booleans(),
)
def test_any_chunking_gives_the_same_text(text: str, stops: list[str], cuts: list[int], keep: bool) -> None:
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[a:b] for a, b in pairwise(edges)]
    assert run(stops, pieces, keep) == expected(stops, text, keep)


@given(text=letters, stops=st.lists(st.text(alphabet="abé", min_size=1, max_size=6), min_size=1, max_size=4))
def test_no_more_is_held_than_could_become_a_stop_string(text: str, stops: list[str]) -> None:
    filter_ = StopFilter(stops)
    given_out = filter_.feed(text)
    if filter_.fired is None:
        held = text.removeprefix(given_out)
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_stop_string_that_arrives_in_pieces_never_shows() -> None:
    filter_ = StopFilter(["DEFGHIJ"])
    assert [filter_.feed(piece) for piece in ["abcDEF", "G", "HI", "J", "more"]] == ["abc", "", "", "", ""]
    assert filter_.fired == "DEFGHIJ"


def test_what_only_looked_like_a_stop_string_is_given_out() -> None:
    assert run(["\n\n"], ["one\n", "two\n"]) == ("one\ntwo\n", None)


def test_the_stop_string_is_kept_when_asked_so() -> None:
    assert run(["."], ["It ends", ". Not here"], keep=True) == ("It ends.", ".")


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopFilter(["a", ""])
