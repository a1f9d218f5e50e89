"""`parrot demo`: two programs on real documents, their answers, and what each call took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from parrot_server.cli.compare import BackgroundOption, CompareOption, RttOption, SeedOption, compare_demo, refuse
from parrot_server.cli.engines import (
    EngineOption,
    JsonOption,
    ModelOption,
    OpenAIOption,
    Server,
    SGLangOption,
    UrlOption,
    server_for,
)
from parrot_server.cli.terminal import note, progress, say, say_json
from parrot_server.errors import SetupError

if TYPE_CHECKING:
    from parrot_server.demo.documents import Document
    from parrot_server.demo.report import Report

MAX_PAGE_TOKENS = 1200
MAPS = 16

demo = typer.Typer(rich_markup_mode=None, help="Programs on real documents, and what they took.")


@demo.command("map-reduce")
def map_reduce(
    docs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Your own texts, one a file; else long topics of Python's own reference."),
    ] = None,
    maps: Annotated[int | None, typer.Option(min=1, help=f"How many texts.  [default: {MAPS}, or all of DIR]")] = None,
    url: UrlOption = None,
    engine: EngineOption = None,
    model: ModelOption = None,
    openai: OpenAIOption = None,
    sglang: SGLangOption = None,
    compare: CompareOption = False,
    rtt_ms: RttOption = 50.0,
    background: BackgroundOption = 24,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Explain each text in a sentence, all at once, and describe the book that they make: one request for all calls.

    With --compare: questions on one long page instead, in five configurations from an ordinary client to the declared program.

    \b
    Examples:
      parrot demo map-reduce
      parrot demo map-reduce --docs ~/notes --maps 8
      parrot demo map-reduce --json | jq .answer
      parrot demo map-reduce --compare
    """
    if compare:
        refuse("--compare", docs=docs, url=url)
        from parrot_server.demo.compare import OF_MAP_REDUCE
        from parrot_server.demo.workloads import Fan, a_map_reduce

        fan = Fan(maps=maps or MAPS)
        options = {"engine": engine, "model": model, "openai": openai, "sglang": sglang}
        compare_demo(lambda count: a_map_reduce(fan, count), OF_MAP_REDUCE, options, rtt_ms, background, seed, as_json)
        return
    from parrot_server.demo import map_reduce as program
    from parrot_server.demo.documents import cut, files_of, python_reference
    from parrot_server.demo.tokens import counter

    sources = python_reference(maps or MAPS) if docs is None else files_of(docs, maps, note)
    with server_for(url, engine=engine, model=model, openai=openai, sglang=sglang) as server:
        count = counter(server.settings)
        documents = [cut(source, MAX_PAGE_TOKENS, count.tokens) for source in sources]
        if not as_json:
            _tell_cuts(documents, count.exact)
        pages = [document.text for document in documents]
        report = _watched(
            f"{len(pages)} maps and 1 reduce", lambda on_text: program.map_reduce(server.client, pages, on_text)
        )
    _tell(report, server, as_json)


@demo.command("chain")
def chain(
    quick: Annotated[bool, typer.Option("--quick", help="6 short steps instead of 20 long ones.")] = False,
    url: UrlOption = None,
    engine: EngineOption = None,
    model: ModelOption = None,
    openai: OpenAIOption = None,
    sglang: SGLangOption = None,
    compare: CompareOption = False,
    rtt_ms: RttOption = 50.0,
    background: BackgroundOption = 24,
    seed: SeedOption = 1,
    as_json: JsonOption = False,
) -> None:
    """Twenty notes on twenty pages, each written with all pages and notes before it in view: one request for all calls.

    The first prompt has 2,000 tokens, each next one about 300 more; each note has 80. With --compare: shorter ones, in four
    configurations from an ordinary client to the declared program.

    \b
    Examples:
      parrot demo chain
      parrot demo chain --quick --json
      parrot demo chain --compare --rtt-ms 50
    """
    if compare:
        refuse("--compare", url=url)
        from parrot_server.demo.compare import OF_CHAIN
        from parrot_server.demo.workloads import CHAIN, SHORT_CHAIN, a_chain

        compared = SHORT_CHAIN if quick else CHAIN
        options = {"engine": engine, "model": model, "openai": openai, "sglang": sglang}
        compare_demo(lambda count: a_chain(compared, count), OF_CHAIN, options, rtt_ms, background, seed, as_json)
        return
    from parrot_sdk import CallFailed
    from parrot_server.demo import chain as program
    from parrot_server.demo.tokens import counter

    shape = program.QUICK if quick else program.FULL
    with server_for(url, engine=engine, model=model, openai=openai, sglang=sglang) as server:
        pages = program.reference_pages(shape, counter(server.settings).tokens)
        if not as_json:
            note(
                f"{shape.steps} steps: about {shape.prompt_tokens:,} prompt tokens in all, "
                f"of which {shape.distinct_tokens:,} are distinct"
            )
        try:
            report = _watched(
                f"{shape.steps} steps", lambda on_text: program.chain(server.client, pages, shape, on_text)
            )
        except CallFailed as error:
            if error.type != "context_overflow" or quick:
                raise
            need = shape.distinct_tokens + shape.note_tokens
            raise SetupError(f"the model's context is too short for a chain of {need:,} tokens: try --quick") from None
    _tell(report, server, as_json)


def _watched(what: str, work: Callable[[Callable[[str], None]], Report]) -> Report:
    with progress() as show:
        show(what, None)
        return work(lambda text: show(text, None))


def _tell_cuts(documents: Sequence[Document], exact: bool) -> None:
    cut = [document for document in documents if document.tokens < document.whole_tokens]
    about = "" if exact else "about "
    note(f"{len(documents)} texts, {about}{sum(document.tokens for document in documents):,} tokens in all")
    if cut:
        names = ", ".join(f"{one.title} {one.tokens:,} of {one.whole_tokens:,}" for one in cut)
        note(f"cut at a paragraph to at most {MAX_PAGE_TOKENS:,} tokens: {names}")


def _tell(report: Report, server: Server, as_json: bool) -> None:
    if as_json:
        say_json(report.as_json())
        return
    from parrot_server.demo.table import table

    say(f"\n{report.answer}\n")
    say(table(report))
    if server.settings is not None:
        say(
            f"\nmodel prepared {server.model_s:.1f} s, engine started {server.engine_s:.1f} s, program {report.wall_s:.1f} s"
        )
    else:
        say(f"\nprogram {report.wall_s:.1f} s")
    # With more than these, some were tried again.
    which = ": the program, the answer's stream, and these figures" if report.http_requests == 3 else ""
    say(f"{report.http_requests} HTTP requests for {len(report.calls)} calls{which}")
