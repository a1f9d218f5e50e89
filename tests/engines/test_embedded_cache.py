"""The embedded engine's step loop and KV memory on a toy model whose every token proves that its KV was right."""

from __future__ import annotations

import string
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from parrot_server.core.model import Piece, PieceKind, Prompt, Sampling
from parrot_server.engines.base import Request
from parrot_server.engines.embedded.kv_cache import KvCache
from parrot_server.engines.embedded.messages import Report
from parrot_server.engines.embedded.paged_model import PagedModel
from parrot_server.engines.embedded.sequence import Generation, Sequence
from parrot_server.engines.embedded.settings import Settings
from parrot_server.engines.embedded.step_loop import StepLoop
from parrot_server.engines.tokens import PromptTokens
from tests.engines.toy_model import VOCABULARY, ToyModel, next_token

LETTERS = [letter.encode() for letter in string.ascii_letters[:VOCABULARY]]
SMALL = Settings(folder="", name="toy", chunk_tokens=32, idle_chunk_tokens=96, max_running=4)


def ids_of(pieces: tuple[tuple[int, int], ...]) -> list[int]:
    """Pieces are (seed, length); the same seed gives the same tokens."""
    return [(seed * 7 + i * i) % VOCABULARY for seed, length in pieces for i in range(length)]


def answer_to(ids: list[int], tokens: int) -> str:
    """What the toy says, computed without any cache."""
    context = list(ids)
    for _ in range(tokens):
        context.append(next_token(context))
    return b"".join(LETTERS[token] for token in context[len(ids) :]).decode()


class Bench:
    """A step loop on a toy model, and what its reports add up to."""

    def __init__(self, blocks: int, host_blocks: int = 0, settings: Settings = SMALL) -> None:
        self.model = ToyModel()
        self.cache = KvCache(cast(PagedModel, self.model), blocks, host_blocks, settings.reuse)
        self.loop = StepLoop(cast(PagedModel, self.model), self.cache, settings)
        self.blocks = blocks
        self.sequences: dict[str, Sequence] = {}
        self.expected: dict[str, str] = {}
        self.texts: dict[str, str] = {}
        self.reports: dict[str, list[Report]] = {}
        self.stalled: set[str] = set()
        self.done: dict[str, Report] = {}

    def prompt(self, pieces: tuple[tuple[int, int], ...]) -> tuple[PromptTokens, tuple[str, ...]]:
        covered, names, total = [], [], 0
        for i, (_, length) in enumerate(pieces):
            total += length
            covered.append(total)
            names.append(str(pieces[: i + 1]))
        return PromptTokens(ids_of(pieces), tuple(covered)), tuple(names)

    def call(
        self, *pieces: tuple[int, int], tokens: int = 5, priority: int = 0, salt: str = "", grant: int | None = None
    ) -> str:
        rid = f"r{len(self.sequences)}"
        ids, names = self.prompt(pieces)
        prompt = Prompt(tuple(Piece(PieceKind.VALUE, "") for _ in pieces), names, chat=False)
        request = Request(rid, "", prompt, Sampling(max_tokens=tokens), salt, priority, grant)
        self.expected[rid] = answer_to(ids.ids, tokens)
        self.add(Generation(request, ids, LETTERS, frozenset(), None))
        return rid

    def add(self, sequence: Sequence) -> None:
        self.sequences[sequence.rid] = sequence
        self.loop.add(sequence)

    def warm(self, *pieces: tuple[int, int], salt: str = "", until_s: float = 1e9) -> str:
        rid = f"r{len(self.sequences)}"
        ids, names = self.prompt(pieces)
        prefix = self.sequences[rid] = Sequence(rid, salt, ids, names, None)
        self.loop.warm(prefix, lambda: self.cache.pin((salt, names[-1]), prefix.ids, until_s))
        return rid

    def offload(self, *pieces: tuple[int, int]) -> int:
        ids, names = self.prompt(pieces)
        return self.cache.offload(("", names[-1]), Sequence("x", "", ids, names, None).ids)

    def release(self, *pieces: tuple[int, int]) -> None:
        self.cache.release(("", self.prompt(pieces)[1][-1]))

    def take_reports(self) -> None:
        for report in self.loop.drain_reports():
            self.reports.setdefault(report.rid, []).append(report)
            self.texts[report.rid] = self.texts.get(report.rid, "") + report.text
            if report.stalled:
                self.stalled.add(report.rid)
            if report.done or report.kept is not None or report.let_go:
                self.done[report.rid] = report

    def step(self) -> None:
        self.take_reports()
        self.loop.step()
        self.take_reports()
        self.check()

    def check(self) -> None:
        alive = [sequence for rid, sequence in self.sequences.items() if rid not in self.done]
        self.cache.check(alive)
        assert self.loop.running <= SMALL.max_running

    def run(self, resuming: bool = True, steps: int = 2_000) -> None:
        """Until nothing is left to do."""
        for _ in range(steps):
            if resuming:
                self.resume_all()
            if not self.loop.busy:
                break
            self.step()
        assert not self.loop.busy
        self.take_reports()

    def resume_all(self) -> None:
        self.take_reports()
        for rid in sorted(self.stalled):
            self.loop.resume(rid, None)
        self.stalled.clear()

    def cached(self, rid: str) -> int:
        usage = [report.prefill for report in self.reports[rid] if report.prefill]
        return usage[0][1]

    def assert_right(self, *rids: str) -> None:
        for rid in rids:
            assert self.done[rid].done is not None
            assert self.texts[rid] == self.expected[rid]


def test_one_call() -> None:
    bench = Bench(blocks=8)
    rid = bench.call((1, 100), tokens=40)
    bench.run()
    bench.assert_right(rid)
    assert bench.cache.used_tokens == 0
    done = bench.done[rid].done
    assert done is not None
    assert (done.finish, done.usage.prompt_tokens, done.usage.output_tokens) == ("length", 100, 40)


def test_prompts_go_in_by_chunks_beside_decodes_and_no_step_computes_a_single_prompt_token() -> None:
    bench = Bench(blocks=64)
    first = bench.call((1, 40), tokens=60)
    bench.step()
    second = bench.call((2, 321), tokens=5)
    bench.run()
    bench.assert_right(first, second)
    together = [step for step in bench.model.steps if len(step) == 2 and max(step) > 1]
    of_second = [max(step) for step in together]
    assert sum(of_second) == 321
    assert all(sum(step) <= SMALL.chunk_tokens for step in together)
    assert min(of_second) > 1


def test_sixteen_calls_that_arrive_together_compute_their_shared_prefix_once() -> None:
    bench = Bench(blocks=512)
    rids = [bench.call((1, 1500), (i + 2, 50)) for i in range(16)]
    bench.run()
    bench.assert_right(*rids)
    prompt_tokens = sum(1550 - bench.cached(rid) for rid in rids)
    assert prompt_tokens <= 1500 + 16 * 82
    assert prompt_tokens >= 1500 + 16 * 50


def test_a_declared_prefix_is_shared_to_its_last_token() -> None:
    bench = Bench(blocks=64)
    warm = bench.warm((1, 75))
    bench.run()
    assert bench.done[warm].kept == 75
    rids = [bench.call((1, 75), (2, 20)), bench.call((1, 75), (3, 20))]
    bench.run()
    bench.assert_right(*rids)
    assert [bench.cached(rid) for rid in rids] == [75, 75]


def test_nested_prefixes_share_what_they_have_in_common() -> None:
    bench = Bench(blocks=64)
    rids = [bench.call((1, 50), (2, 50), (3, 10))]
    bench.run()
    rids += [bench.call((1, 50), (2, 50), (4, 10)), bench.call((1, 50), (5, 50))]
    bench.run()
    bench.assert_right(*rids)
    assert [bench.cached(rid) for rid in rids] == [0, 100, 50]


def test_a_salt_sees_nothing_of_another() -> None:
    bench = Bench(blocks=64)
    rids = [bench.call((1, 100), salt=salt) for salt in ("a", "b")]
    bench.run()
    rids += [bench.call((1, 100), salt=salt) for salt in ("a", "c")]
    bench.run()
    bench.assert_right(*rids)
    assert [bench.cached(rid) for rid in rids] == [0, 0, 96, 0]


def test_no_reuse_when_it_is_switched_off() -> None:
    bench = Bench(blocks=64, settings=Settings(folder="", name="toy", max_running=4, reuse=False))
    rids = [bench.call((1, 100))]
    bench.run()
    rids.append(bench.call((1, 100)))
    bench.run()
    bench.assert_right(*rids)
    assert [bench.cached(rid) for rid in rids] == [0, 0]


def test_what_was_used_longest_ago_goes_first_and_pins_stay() -> None:
    bench = Bench(blocks=12)
    bench.warm((1, 96))
    bench.run()
    assert bench.cache.used_tokens == 96
    for seed in range(2, 12):
        bench.call((seed, 96))
        bench.run()
    rids = [bench.call((1, 96), (20, 10)), bench.call((11, 96), (20, 10)), bench.call((2, 96), (20, 10))]
    bench.run()
    assert [bench.cached(rid) for rid in rids] == [96, 96, 0]
    bench.release((1, 96))
    assert bench.cache.used_tokens == 0


def test_pins_end_by_themselves() -> None:
    bench = Bench(blocks=12)
    bench.warm((1, 96), until_s=10.0)
    bench.run()
    bench.cache.expire(9.9)
    assert bench.cache.used_tokens == 96
    bench.cache.expire(10.0)
    assert bench.cache.used_tokens == 0


def test_the_newest_pin_gives_way_only_when_nothing_else_is_left_and_it_is_told() -> None:
    bench = Bench(blocks=12)
    for seed in (1, 2):
        bench.warm((seed, 96))
        bench.run()
    small = bench.call((3, 96), tokens=60)
    bench.run()
    assert bench.cache.drain_lost() == ()
    large = bench.call((4, 200), tokens=60)
    bench.run()
    bench.assert_right(small, large)
    assert bench.cache.drain_lost() == (str(((2, 96),)),)
    assert bench.cache.drain_lost() == ()


def test_offloaded_prefixes_come_back_as_they_were() -> None:
    bench = Bench(blocks=12, host_blocks=4)
    bench.warm((1, 100))
    bench.run()
    assert bench.offload((1, 100)) == 100
    assert bench.cache.used_tokens == 0
    bench.call((9, 300), tokens=60)
    bench.run()
    rid = bench.call((1, 100), (2, 10))
    bench.run()
    bench.assert_right(rid)
    assert bench.cached(rid) == 100
    bench.call((9, 300), tokens=60)
    bench.run()
    again = bench.call((1, 100), (2, 10))
    bench.run()
    assert bench.cached(again) == 0


def test_the_host_keeps_to_its_budget() -> None:
    bench = Bench(blocks=40, host_blocks=4)
    for seed in (1, 2):
        bench.warm((seed, 96))
    bench.warm((3, 200))
    bench.run()
    assert [bench.offload((1, 96)), bench.offload((2, 96)), bench.offload((3, 200))] == [96, 96, 0]
    assert bench.cache.drain_lost() == (str(((1, 96),)),)
    bench.call((9, 1200), tokens=20)
    bench.run()
    rids = [bench.call((1, 96), (5, 10)), bench.call((2, 96), (5, 10))]
    bench.run()
    assert [bench.cached(rid) for rid in rids] == [0, 96]


def test_an_urgent_call_goes_first() -> None:
    settings = Settings(folder="", name="toy", max_running=1)
    bench = Bench(blocks=64, settings=settings)
    running = bench.call((1, 40), tokens=3)
    bench.step()
    late = [bench.call((i, 40), tokens=2, priority=i) for i in (2, 3, 4)]
    bench.run()
    assert list(bench.done) == [running, *reversed(late)]


def test_a_paused_call_goes_on_where_it_was() -> None:
    bench = Bench(blocks=64)
    rid = bench.call((1, 40), tokens=20, grant=4)
    bench.run(resuming=False)
    assert bench.texts[rid] == bench.expected[rid][:4]
    assert bench.stalled == {rid}
    bench.loop.resume(rid, 7)
    bench.run(resuming=False)
    assert bench.texts[rid] == bench.expected[rid][:11]
    computed = bench.model.computed_tokens
    bench.run()
    bench.assert_right(rid)
    assert bench.model.computed_tokens == computed + 9


def test_when_room_is_short_the_least_urgent_call_is_paused_and_all_end() -> None:
    bench = Bench(blocks=8)
    urgent = bench.call((1, 60), tokens=100, priority=1)
    others = [bench.call((i, 60), tokens=100) for i in (2, 3)]
    while urgent not in bench.done:
        bench.step()
    assert urgent not in bench.stalled
    assert bench.stalled
    bench.run()
    bench.assert_right(urgent, *others)


def test_an_aborted_call_leaves_its_room() -> None:
    bench = Bench(blocks=64)
    rid = bench.call((1, 400), tokens=20)
    bench.step()
    assert bench.cache.used_tokens > 0
    bench.loop.abort(rid)
    bench.loop.abort("unknown")
    bench.take_reports()
    assert bench.done[rid].let_go
    assert bench.done["unknown"].let_go
    assert bench.cache.used_tokens == 0
    assert not bench.loop.busy


class Churn(RuleBasedStateMachine):
    """Any order of calls, pauses, aborts, pins and offloads in a memory that is far too small for them."""

    @initialize()
    def begin(self) -> None:
        self.bench = Bench(blocks=10, host_blocks=6)

    @rule(
        shared=st.integers(1, 3),
        length=st.sampled_from([1, 20, 32, 33, 64, 90]),
        own=st.integers(4, 6),
        own_length=st.sampled_from([0, 1, 10, 31, 32, 40]),
        tokens=st.sampled_from([1, 3, 40, 100]),
        priority=st.integers(0, 2),
        grant=st.sampled_from([None, None, 1, 5]),
    )
    def call(
        self, shared: int, length: int, own: int, own_length: int, tokens: int, priority: int, grant: int | None
    ) -> None:
        pieces = [(shared, length)] + ([(own, own_length)] if own_length else [])
        self.bench.call(*pieces, tokens=tokens, priority=priority, grant=grant)

    @rule(shared=st.integers(1, 3), length=st.sampled_from([1, 20, 32, 33, 64, 90]))
    def warm(self, shared: int, length: int) -> None:
        self.bench.warm((shared, length))

    @rule(shared=st.integers(1, 3), length=st.sampled_from([20, 32, 64, 90]))
    def offload(self, shared: int, length: int) -> None:
        self.bench.offload((shared, length))

    @rule(shared=st.integers(1, 3), length=st.sampled_from([20, 32, 64, 90]))
    def release(self, shared: int, length: int) -> None:
        self.bench.release((shared, length))

    @rule(which=st.integers(0, 50), what=st.sampled_from(["abort", "pause", "resume"]))
    def disturb(self, which: int, what: str) -> None:
        alive = [rid for rid in self.bench.sequences if rid not in self.bench.done]
        if alive:
            rid = alive[which % len(alive)]
            act: dict[str, Any] = {"abort": self.bench.loop.abort, "pause": self.bench.loop.pause}
            act.get(what, lambda rid: self.bench.loop.resume(rid, 3))(rid)
            self.bench.take_reports()

    @rule(steps=st.integers(1, 10))
    def steps(self, steps: int) -> None:
        for _ in range(steps):
            self.bench.step()

    @invariant()
    def every_block_is_accounted_for(self) -> None:
        self.bench.check()

    @invariant()
    def every_token_so_far_is_right(self) -> None:
        for rid, expected in self.bench.expected.items():
            assert expected.startswith(self.bench.texts.get(rid, ""))

    def teardown(self) -> None:
        self.bench.run()
        for rid, expected in self.bench.expected.items():
            assert self.bench.done[rid].let_go or self.bench.texts[rid] == expected
        for shared in (1, 2, 3):
            for length in (1, 20, 32, 33, 64, 90):
                self.bench.release((shared, length))
        assert self.bench.cache.used_tokens == 0


TestChurn = Churn.TestCase
TestChurn.settings = settings(max_examples=50, stateful_step_count=40, deadline=None)
