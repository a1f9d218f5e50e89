"""`parrot run`: a program in a file, either Python that uses the SDK or the JSON of one request."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

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
from parrot_server.cli.terminal import complain, note, progress, say, say_json
from parrot_server.errors import SetupError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from parrot_sdk.wire import Binding, ProgramBody, ProgramReply, VariableRef

ENDED = {"done", "failed", "cancelled"}
WAIT_S = 600.0


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
    wait_s: Annotated[
        float | None,
        typer.Option(min=0, max=WAIT_S, help="How long to wait for the values of a JSON file.  [default: 600]"),
    ] = None,
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
        raise SetupError(f"{file} is a folder" if file.is_dir() else f"there is no file {file}")
    if file.suffix not in (".py", ".json"):
        raise SetupError(f"{file.name} is neither a Python script (.py) nor the JSON of a program (.json)")
    options = {"engine": engine, "model": model, "openai": openai, "sglang": sglang}
    if file.suffix == ".py":
        _refuse_for(".json", "--json" * as_json, "--wait-s" * (wait_s is not None))
        with server_for(url, **options) as server:
            code = _run_script(file, arguments or [], server)
    else:
        _refuse_for(".py", *(arguments or [])[:1])
        program = _read_body(file)
        with server_for(url, **options) as server:
            code = _run_body(program, server, WAIT_S if wait_s is None else wait_s, as_json)
    raise typer.Exit(code)


def _refuse_for(kind: str, *given: str) -> None:
    for option in filter(None, given):
        raise typer.BadParameter(f"it is for {kind} programs", param_hint=option)


def _run_script(file: Path, arguments: list[str], server: Server) -> int:
    server.client.check()  # else the script tells what is wrong, in more lines
    environment = {**os.environ, "PARROT_URL": server.client.url}
    with subprocess.Popen([sys.executable, str(file), *arguments], env=environment) as script:
        try:
            return script.wait()
        except KeyboardInterrupt:  # the terminal sent it to the script as well, which may clean up
            script.wait()
            raise


def _read_body(file: Path) -> ProgramBody:
    """A program that keeps the contract; whether its graph is sound the server says."""
    from parrot_sdk.errors import BodyError
    from parrot_sdk.wire import ProgramBody, read_body

    try:
        return read_body(ProgramBody, file.read_bytes())
    except BodyError as error:
        raise SetupError(f"{file}: {error}") from None


def _run_body(body: ProgramBody, server: Server, wait_s: float, as_json: bool) -> int:
    own, waited_for = server.settings is not None, _waited_for(body)
    if own and waited_for:
        raise SetupError(
            f"variable {waited_for[0]!r} is open, and nobody can set it on a server that is started for this program alone: "
            "give it a value, or name a running server with --url"
        )
    began_s = time.perf_counter()
    with progress() as show:
        show(f"{len(body.calls)} calls", None)
        reply = server.client.submit(body.model_dump(mode="json", by_alias=True, exclude_unset=True), wait_s=wait_s)
    took_s = time.perf_counter() - began_s
    values, errors = reply.values or {}, reply.errors or {}
    if as_json:
        shown = {"id": reply.id, "state": reply.state, "values": values}
        say_json({**shown, "errors": {name: error.model_dump() for name, error in errors.items()}})
    else:
        _print_values(values)
    for name, error in errors.items():
        complain(f"{name}: call {error.call}: {error.message}" if error.call else f"{name}: {error.message}")
    if errors:
        return 1
    if reply.state in ENDED:
        return 0
    if reply.calls.keys() <= ENDED:
        still = "it ended with its server" if own else f"more calls may come for {reply.id} at {server.client.url}"
        note(f'the program was left open ("close": false): {still}')
        return 0
    complain(f"the program has not ended after {took_s:.1f} s; {_what_now(reply, server, waited_for)}")
    return 1


def _waited_for(body: ProgramBody) -> list[str]:
    """Open variables that a call reads and none sets."""
    read = {part.var for call in body.calls for binding in call.inputs.values() for part in _references(binding)}
    made = {name for call in body.calls for name in call.outputs.values()}
    return [name for name, value in body.variables.items() if value is None and name in read - made]


def _references(binding: Binding) -> list[VariableRef]:
    parts = binding if isinstance(binding, list) else [binding]
    return [part for part in parts if not isinstance(part, str)]


def _what_now(reply: ProgramReply, server: Server, waited_for: Sequence[str]) -> str:
    if server.settings is not None:
        return "it was stopped with its server: give a longer --wait-s, or name a running server with --url"
    goes_on = f"it goes on as {reply.id} at {server.client.url}"
    if not waited_for:
        return goes_on
    put = f"/v1/programs/{reply.id}/variables/{waited_for[0]}"
    return f'{goes_on}, and waits for {waited_for[0]!r}, which is open: PUT {{"value": "..."}} to {put}'


def _print_values(values: dict[str, str | list[str]]) -> None:
    for name, value in values.items():
        text = value if isinstance(value, str) else "\n".join(value)
        say(text if len(values) == 1 else f"{name}: {text}")
