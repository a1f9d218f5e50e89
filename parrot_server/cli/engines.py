"""The options that say on which engine programs run, and a client for a server that runs them."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parrot_server.cli.terminal import note, progress
from parrot_server.errors import SetupError

if TYPE_CHECKING:
    from parrot_sdk import Client
    from parrot_server.config import Settings


class EngineName(StrEnum):
    """Engines that run beside the server on their own."""

    embedded = "embedded"
    llamacpp = "llamacpp"
    fake = "fake"
    none = "none"


EngineOption = Annotated[
    EngineName | None,
    typer.Option(
        "--engine",
        help="embedded (the default), llamacpp (where OpenVINO does not run), fake (scripted, for tests), or none.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="For the engine on this machine: a name, a .gguf file or an OpenVINO folder. For --openai: the name it serves.",
        show_default=False,
    ),
]
OpenAIOption = Annotated[
    str | None,
    typer.Option(
        "--openai", metavar="URL[,URL]", help="Servers with OpenAI's API, used as engines.", show_default=False
    ),
]
SGLangOption = Annotated[
    str | None,
    typer.Option("--sglang", metavar="URL[,URL]", help="SGLang servers, used as engines.", show_default=False),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="A running Parrot server; without it PARROT_URL, and without that a server starts in this process.",
        show_default=False,
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON on stdout, and nothing else there.")]


@dataclass(frozen=True, slots=True)
class Server:
    """A client, and how long it took to have the model prepared and the engine up; 0 for a server that ran already."""

    client: Client
    settings: Settings | None
    model_s: float = 0.0
    engine_s: float = 0.0


def read_settings(**options: Any) -> Settings:
    """The server's settings: these options, where they are not None, over the environment. Raises SetupError."""
    from pydantic import ValidationError

    from parrot_server.config import Settings

    said = {name: value for name, value in options.items() if value is not None}
    try:
        return Settings(**said)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else "settings"
        where = f"--{name.replace('_', '-')}" if name in said else f"PARROT_{name.upper()}"
        raise SetupError(f"{where}: {first['msg'].lower()} (given: {first['input']!r})") from None


@contextmanager
def server_for(url: str | None, **options: Any) -> Iterator[Server]:
    """A client for the server at a URL, or at PARROT_URL, or else for one in this process with these options.

    Raises SetupError, and what `Client` raises.
    """
    from parrot_sdk import Client

    url = url or os.environ.get("PARROT_URL")
    if url:
        if given := [name for name, value in options.items() if value is not None]:
            raise SetupError(f"--{given[0]} is for a server in this process, but {url} is used: drop one of them")
        with Client(url) as client:
            yield Server(client, None)
        return
    from parrot_server.engine_choice import prepare_model, steps

    settings = read_settings(**options)
    logging.getLogger("parrot").addHandler(logging.NullHandler())  # what goes wrong is told once, by what it makes fail
    began_s = time.perf_counter()
    with progress(steps(note)) as show:
        prepare_model(settings, show)
    prepared_s = time.perf_counter()
    with progress() as show:
        show("starting the engine", None)
        client = Client.local(**{name: value for name, value in options.items() if value is not None})
    with client:
        yield Server(client, settings, prepared_s - began_s, time.perf_counter() - prepared_s)
