"""The simulated engine's memory: what is used stays, what is idle goes in the order of its last use, and the sums are right."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parrot_server.core.model import Piece, PieceKind
from parrot_server.sim.kv import KvMemory


def prompt(*names: str) -> tuple[tuple[str, ...], list[Piece]]:
    """Prefixes and pieces; a piece has as many tokens as its name has letters, times ten."""
    prefixes = tuple("/".join(names[: end + 1]) for end in range(len(names)))
    return prefixes, [Piece(PieceKind.VALUE, name, 10 * len(name)) for name in names]


def test_a_shared_beginning_is_there_once_and_is_found() -> None:
    memory = KvMemory(1000, shares=True)
    assert memory.admit(*prompt("system", "a")) == (0, 0)
    assert memory.admit(*prompt("system", "bb")) == (60, 0)
    assert memory.used_tokens == 90


def test_without_sharing_each_call_has_its_own() -> None:
    memory = KvMemory(1000, shares=False)
    prefixes, pieces = prompt("system")
    for owner in ("1", "2"):
        assert memory.admit(memory.names(prefixes, owner), pieces) == (0, 0)
    assert memory.used_tokens == 120
    memory.let_go(memory.names(prefixes, "1"))
    assert memory.used_tokens == 60


def test_the_least_recently_used_goes_first_and_its_end_before_its_beginning() -> None:
    memory = KvMemory(200, shares=True)
    for names in (("old", "tail"), ("new",)):
        memory.admit(*prompt(*names))
        memory.let_go(prompt(*names)[0])
    memory.admit(*prompt("x" * 12))
    assert memory.admit(*prompt("old", "tail")) == (30, 0)


def test_what_is_in_use_or_pinned_stays() -> None:
    memory = KvMemory(100, shares=True)
    prefixes, pieces = prompt("pinned")
    memory.admit(prefixes, pieces)
    memory.pin("p", prefixes)
    assert memory.admit(*prompt("x" * 5)) is None
    memory.unpin("p")
    assert memory.admit(*prompt("x" * 5)) == (0, 0)
    memory.validate()


def test_what_is_moved_to_the_host_takes_no_room_and_is_found_there() -> None:
    memory = KvMemory(100, shares=True)
    prefixes, pieces = prompt("pinned")
    memory.admit(prefixes, pieces)
    memory.pin("p", prefixes)
    assert memory.offload("p", prefixes) == 60
    assert memory.used_tokens == 0
    assert not memory.is_pinned("p")
    assert memory.admit(prefixes, pieces) == (0, 60)
    assert memory.used_tokens == 60
    memory.let_go(prefixes)
    memory.unpin("p")
    memory.validate()


@given(st.lists(st.tuples(st.sampled_from(["use", "go", "pin", "unpin", "offload"]), st.integers(0, 5)), max_size=60))
def test_the_sums_are_right_whatever_happens(orders: list[tuple[str, int]]) -> None:
    memory = KvMemory(250, shares=True)
    using: list[tuple[str, ...]] = []
    pins: set[str] = set()
    for order, number in orders:
        prefixes, pieces = prompt(*["system", "doc", "a" * (number + 1)][: 1 + number % 3])
        if order == "use" and memory.admit(prefixes, pieces) is not None:
            using.append(prefixes)
        elif order == "go" and using:
            memory.let_go(using.pop(number % len(using)))
        elif order == "pin" and memory.admit(prefixes, pieces) is not None:
            memory.pin(prefixes[-1], prefixes)
        elif order == "unpin":
            memory.unpin(prefixes[-1])
        elif order == "offload":
            memory.offload(prefixes[-1], prefixes)
        pins.add(prefixes[-1])
        memory.validate()
        assert memory.used_tokens >= 0
    for prefix in pins:
        memory.unpin(prefix)
    for prefixes in using:
        memory.let_go(prefixes)
    assert memory.make_room(memory.capacity_tokens), "something is held for ever"
    assert memory.used_tokens == 0
