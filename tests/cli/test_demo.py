"""The demos: what they send, what they report, and where texts are cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_sdk.testing import ScriptedServer
from parrot_server.cli.terminal import say
from parrot_server.demo import chain, documents
from parrot_server.demo.map_reduce import map_reduce
from parrot_server.demo.report import CallFigures, Report
from parrot_server.demo.table import table
from parrot_server.engines.fake import FakeEngine
from tests.cli.conftest import Parrot
from tests.sdk.proxy import proxy
from tests.serving import serving

FIGURES = {
    "id": str,
    "function": str,
    "objective": str,
    "queue_s": float,
    "wall_s": float,
    "prompt_tokens": int,
    "cached_tokens": int,
    "output_tokens": int,
}


def words(text: str) -> int:
    """A tokenizer for tests."""
    return len(text.split())


def four_characters(text: str) -> int:
    """Another one."""
    return -(-len(text) // 4)


def check_report(report: Any, calls: int) -> None:
    """It has the fields that machines rely on, no others, and figures that can be."""
    assert report.keys() == {"answer", "wall_s", "http_requests", "calls"}
    assert report["answer"]
    assert report["wall_s"] > 0
    assert len(report["calls"]) == calls
    for call in report["calls"]:
        assert {name: type(value) for name, value in call.items()} == FIGURES
        assert 0 <= call["queue_s"] <= call["wall_s"] <= report["wall_s"]
        assert call["cached_tokens"] <= call["prompt_tokens"]
        assert call["output_tokens"] > 0


@pytest.mark.parametrize(("arguments", "calls"), [(["map-reduce"], 17), (["chain"], 20), (["chain", "--quick"], 6)])
def test_a_demo_reports_json_and_nothing_else(arguments: list[str], calls: int, parrot: Parrot) -> None:
    outcome = parrot("demo", *arguments, "--engine", "fake", "--json")
    assert (outcome.code, outcome.err) == (0, "")
    check_report(outcome.json(), calls)


def test_a_demo_prints_answer_table_and_times(parrot: Parrot) -> None:
    outcome = parrot("demo", "map-reduce", "--engine", "fake", "--maps", "3")
    assert outcome.code == 0
    for part in ("explain_page-2", "describe_book-0", "all 4", "engine started", "3 HTTP requests for 4 calls"):
        assert part in outcome.out
    assert "cut at a paragraph to at most 1,200 tokens: objects 1," in outcome.err


@pytest.mark.parametrize("name", ["map-reduce", "chain"])
def test_the_http_requests_reported_are_those_that_were_made(name: str, parrot: Parrot) -> None:
    answers: list[bytes] = []

    def count(number: int, pieces: Iterator[bytes], send: Any) -> None:
        for piece in pieces:
            answers.append(piece)
            send(piece)

    with serving() as server, proxy(server.url, count) as url:
        report = parrot("demo", name, "--url", url, "--json").json()
    assert report["http_requests"] == b"".join(answers).count(b"HTTP/1.1 ")
    assert report["http_requests"] <= 3


def test_a_demo_reads_the_files_of_a_folder(tmp_path: Path, parrot: Parrot) -> None:
    for name in ("b.txt", "a.md", ".hidden"):
        (tmp_path / name).write_text(f"This is {name}.")
    (tmp_path / "folder").mkdir()
    engine = FakeEngine()
    with serving(engine) as server:
        outcome = parrot("demo", "map-reduce", "--docs", tmp_path, "--url", server.url, "--json")
    check_report(outcome.json(), calls=3)
    assert sum("This is a.md." in prompt for prompt in engine.prompts) == 1
    assert not any("hidden" in prompt for prompt in engine.prompts)


def test_files_that_are_no_texts_are_left_out_and_named(tmp_path: Path, parrot: Parrot) -> None:
    (tmp_path / "a.bin").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "b.txt").write_text(" \n")
    (tmp_path / "c.txt").write_text("text")
    (tmp_path / "d.txt").write_text("text")
    (tmp_path / "e.bin").write_bytes(b"\xff\xfe\x00")
    command = ("demo", "map-reduce", "--docs", tmp_path, "--engine", "fake", "--maps")
    outcome = parrot(*command, 2, "--json")
    assert len(outcome.json()["calls"]) == 3
    assert outcome.err == "a.bin is left out: it is no text in UTF-8\nb.txt is left out: it is empty\n"
    outcome = parrot(*command, 8)
    assert "3 HTTP requests for 3 calls: the program, the answer's stream, and these figures" in outcome.out
    assert f"{tmp_path} holds 2 texts, not 8" in outcome.err


def test_texts_are_looked_at_before_an_engine_starts(tmp_path: Path, parrot: Parrot) -> None:
    (tmp_path / "a.txt").write_text("")
    for options, said in [(["--docs", tmp_path], "holds no texts"), (["--maps", "17"], "17")]:
        outcome = parrot("demo", "map-reduce", *options, "--model", "/nix.gguf")
        assert outcome.code == 1
        assert said in outcome.err
        assert "nix" not in outcome.err


def test_a_context_that_is_too_short_is_said(parrot: Parrot) -> None:
    with serving(FakeEngine(context_tokens=4096)) as server:
        outcome = parrot("demo", "chain", "--url", server.url)
    assert outcome.code == 1
    assert "7,780" in outcome.err
    assert "--quick" in outcome.err


def test_each_prompt_of_a_chain_begins_with_the_whole_prompt_before_it() -> None:
    shape = chain.Shape(steps=5, first_tokens=100, more_tokens=30, note_tokens=8)
    pages = chain.reference_pages(shape, words)
    with ScriptedServer([f"note {step}" for step in range(5)]) as server:
        report = chain.chain(server.client, pages, shape, lambda text: None)
        prompts = server.engine.prompts
    assert report.answer == "note 4"
    turn = "\n[assistant]\n"
    for step, (before, after) in enumerate(itertools.pairwise(prompts)):
        assert after.startswith(f"{before.removesuffix(turn)}\n\nnote {step}\n\n{pages[step + 1][:20]}")
    assert prompts[-1].endswith(turn)


def test_a_chain_has_the_shape_that_it_says() -> None:
    assert (chain.FULL.prompt_tokens, chain.FULL.distinct_tokens) == (97_000, 7_700)
    pages = chain.reference_pages(chain.FULL, four_characters)
    assert 0.95 * 1960 < four_characters(pages[0]) <= 1960
    for page in pages[1:]:
        assert 0.85 * 220 < four_characters(page) <= 220
    assert len({page[:100] for page in pages}) == 20


def test_a_chain_knows_the_shared_beginnings() -> None:
    with serving() as server:
        client_report = _quick_chain(server.url)
    new = [call.prompt_tokens - call.cached_tokens for call in client_report.calls[1:]]
    assert max(new) < client_report.calls[1].prompt_tokens / 2
    assert {call.objective for call in client_report.calls} == {"expedite"}


def _quick_chain(url: str) -> Report:
    from parrot_sdk import Client

    with Client(url) as client:
        return chain.chain(client, chain.reference_pages(chain.QUICK, words), chain.QUICK, lambda text: None)


def test_the_text_so_far_is_told_as_it_comes() -> None:
    told: list[str] = []
    with ScriptedServer(["one", "two", "both of them"], token_s=1.0) as server:
        report = map_reduce(server.client, ["page one", "page two"], told.append)
    assert told[-1] == "both of them" == report.answer
    assert all(after.startswith(before) for before, after in itertools.pairwise(told))
    assert len(told) > 1
    assert report.http_requests <= 3


def test_the_built_in_texts_are_long_and_are_cut_where_a_paragraph_ends() -> None:
    texts = [documents.cut(source, 600, words) for source in documents.python_reference(16)]
    assert len(texts) == 16
    for document in texts:
        assert 300 < document.tokens <= 600
        assert document.whole_tokens >= document.tokens
    cut = [document for document in texts if document.tokens < document.whole_tokens]
    assert len(cut) > 8
    whole = documents.topics[cut[0].title].strip()
    assert whole[len(cut[0].text) :].startswith("\n\n")


@given(st.text(st.sampled_from("ab \n"), max_size=200), st.integers(0, 30))
def test_a_head_is_a_beginning_within_its_length(text: str, most: int) -> None:
    head = documents.head(text, most, len)
    assert text.startswith(head)
    assert len(head) <= most
    if len(text) <= most:
        assert head == text.rstrip()


@given(st.lists(st.text("abc", min_size=1, max_size=5), min_size=1), st.integers(5, 60))
def test_a_head_ends_at_a_paragraph_where_one_fits(paragraphs: list[str], most: int) -> None:
    text = "\n\n".join(paragraphs)
    head = documents.head(text, most, len)
    assert text == head or text[len(head) :].startswith("\n\n")
    longer = text.find("\n\n", len(head) + 2)
    assert text == head or (longer if longer > 0 else len(text)) > most


def test_the_table_adds_up(capsys: pytest.CaptureFixture[str]) -> None:
    calls = (
        CallFigures("a-0", "a", "batch", 0.5, 1.0, 1000, 200, 30),
        CallFigures("b-0", "b", "expedite", 0.25, 2.0, 500, 0, 40),
    )
    say(table(Report("text", 3.0, 3, calls)))
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["a-0", "a", "batch", "0.50", "1.00", "1,000", "200", "30"]
    assert lines[-1].split() == ["all", "2", "0.50", "max", "3.00", "1,500", "200", "70"]
