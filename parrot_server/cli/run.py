"""`parrot run`: a program in a file, either Python that uses the SDK or the JSON of one request."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from parrot_server.cli.engines import (
    EngineOption,
    JsonOption,
    ModelOption,
    OpenAIOption,
    SGLangOption,
    UrlOption,
    server_for,
)
from parrot_server.cli.terminal import complain, progress, say, say_json
from parrot_server.errors import SetupError

if TYPE_CHECKING:
    from parrot_sdk import Client
    from parrot_sdk.wire import ProgramReply


def run_file(
    file: Annotated[Path, typer.Argument(help="A Python script, or a JSON file with the body of POST /v1/programs.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="Passed on to the script; after -- if they begin with -.")
    ] = None,
    url: UrlOption = None,
    engine: EngineOption = None,
    model: ModelOption = None,
    openai: OpenAIOption = None,
    sglang: SGLangOption = None,
    wait_s: Annotated[float, typer.Option(help="How long to wait for the values of a JSON file; at most 600.")] = 600.0,
    as_json: JsonOption = False,
) -> None:
    """Run a program from a file, on a server that is started for it if none is given.

    A script gets the server's address in PARROT_URL, and its exit code is ours. Of a JSON file the values that no call
    reads are printed; the exit code is 1 where one of them failed.

    \b
    Examples:
      parrot run examples/map_reduce.py
      parrot run examples/body.json --json
      parrot run --url http://127.0.0.1:8000 my_program.py -- --its-own-option
    """
    if not file.is_file():
        raise SetupError(f"there is no file {file}")
    if file.suffix not in (".py", ".json"):
        raise SetupError(f"{file.name} is neither a Python script (.py) nor the JSON of a program (.json)")
    body = _read_body(file) if file.suffix == ".json" else None
    with server_for(url, engine=engine, model=model, openai=openai, sglang=sglang) as server:
        code = (
            _run_script(file, arguments or [], server.client)
            if body is None
            else _run_body(body, server.client, wait_s, as_json)
        )
    raise typer.Exit(code)


def _run_script(file: Path, arguments: list[str], client: Client) -> int:
    environment = {**os.environ, "PARROT_URL": client.url}
    with subprocess.Popen([sys.executable, str(file), *arguments], env=environment) as script:
        try:
            return script.wait()
        except KeyboardInterrupt:  # the terminal sent it to the script as well, which may clean up
            script.wait()
            raise


def _read_body(file: Path) -> dict[str, Any]:
    try:
        body = json.loads(file.read_text("utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise SetupError(f"{file} is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise SetupError(f"{file} holds no JSON object, which the body of a program is")
    return body


def _run_body(body: dict[str, Any], client: Client, wait_s: float, as_json: bool) -> int:
    with progress() as show:
        show(f"{len(body.get('calls', []))} calls", None)
        reply = client.submit(body, wait_s=wait_s)
    values, errors = reply.values or {}, reply.errors or {}
    if as_json:
        shown = {"id": reply.id, "state": reply.state, "values": values}
        say_json({**shown, "errors": {name: error.model_dump() for name, error in errors.items()}})
    else:
        _print_values(values)
    for name, error in errors.items():
        complain(f"{name}: {error.message}")
    if not errors and _is_unfinished(reply):
        complain(f"the program has not ended after {wait_s:g} s; it goes on as {reply.id} at {client.url}")
        return 1
    return 1 if errors else 0


def _print_values(values: dict[str, str | list[str]]) -> None:
    for name, value in values.items():
        text = value if isinstance(value, str) else "\n".join(value)
        say(text if len(values) == 1 else f"{name}: {text}")


def _is_unfinished(reply: ProgramReply) -> bool:
    return reply.state in ("open", "running")
