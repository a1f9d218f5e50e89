"""`parrot serve`: the server, until it is stopped."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Annotated

import typer

from parrot_server.cli.engines import EngineOption, ModelOption, OpenAIOption, SGLangOption, read_settings
from parrot_server.cli.terminal import progress, say


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen at.  [default: 127.0.0.1]")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen at; 0 takes a free one.  [default: 8000]")] = None,
    engine: EngineOption = None,
    model: ModelOption = None,
    openai: OpenAIOption = None,
    sglang: SGLangOption = None,
    launch_sglang: Annotated[
        str | None, typer.Option(metavar="MODEL", help="Start an SGLang server for this model, and keep it up.")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(help="Of the embedded engine.  [default: one a physical core]", min=1)
    ] = None,
    context_tokens: Annotated[
        int | None,
        typer.Option(help="Longest prompt and answer together, of the embedded engine.  [default: the model's]", min=2),
    ] = None,
    kv_tokens: Annotated[
        int | None,
        typer.Option(
            help="Room for KV, of the embedded engine.  [default: eight contexts, a quarter of the free memory at most]",
            min=32,
        ),
    ] = None,
    templates: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Register the functions of this folder (*.md) at start.")
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="How calls are ordered: parrot, fcfs, request-fair, ...  [default: parrot]")
    ] = None,
    journal: Annotated[Path | None, typer.Option(metavar="FILE", help="Record all events in this new file.")] = None,
) -> None:
    """Serve programs over HTTP. Every setting is also a variable, PARROT_PORT for --port.

    \b
    Examples:
      parrot serve                                       the embedded engine, http://127.0.0.1:8000
      parrot serve --port 9000 --templates templates     functions from files
      parrot serve --model model.gguf --threads 8 --kv-tokens 32768
      parrot serve --sglang http://gpu1:30000,http://gpu2:30000
      parrot serve --openai http://127.0.0.1:8001 --model my-model
      parrot serve --engine fake                         scripted answers, for tests of clients
    """
    from parrot_server.engine_choice import steps
    from parrot_server.server import serve as run_server

    settings = read_settings(
        host=host,
        port=port,
        engine=engine,
        model=model,
        threads=threads,
        context_tokens=context_tokens,
        kv_tokens=kv_tokens,
        openai=openai,
        sglang=sglang,
        launch_sglang=launch_sglang,
        templates=templates,
        policy=policy,
        journal=journal,
    )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
    log = logging.getLogger("parrot")
    log.setLevel(logging.INFO)
    with progress(steps(log.info)) as show:
        asyncio.run(run_server(settings, on_listening=lambda url: say(f"Parrot listens at {url}"), progress=show))
