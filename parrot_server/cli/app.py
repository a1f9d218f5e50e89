"""Which commands there are, and what becomes of their errors."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.metadata import version
from typing import Annotated

import typer

from parrot_sdk.errors import ParrotError as SdkError
from parrot_server.cli.demo import demo
from parrot_server.cli.doctor import doctor
from parrot_server.cli.models import models
from parrot_server.cli.run import run_file
from parrot_server.cli.serve import serve
from parrot_server.cli.terminal import complain, note, say
from parrot_server.errors import ParrotError as ServerError
from parrot_server.sim.commands import app as simulate

app = typer.Typer(name="parrot", add_completion=False, rich_markup_mode=None)
app.command("serve")(serve)
app.command("run")(run_file)
app.add_typer(demo, name="demo")
app.add_typer(models, name="models")
app.command("doctor")(doctor)
app.add_typer(simulate, name="simulate")


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"parrot {version('parrot-serve')}")
        raise typer.Exit


@app.callback(
    epilog="""\b
Examples:
  parrot demo map-reduce          sixteen real texts on this machine's processor
  parrot serve                    a server at http://127.0.0.1:8000
  parrot run examples/chain.py    a program, on the server at PARROT_URL or one of its own
"""
)
def parrot(
    show_version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Serve LLM programs: many model calls that feed each other, sent as one graph."""
    from parrot_server.config import unknown_settings

    for sentence in unknown_settings(os.environ):
        note(f"parrot: {sentence}")


def run(arguments: Sequence[str]) -> int:
    """Run one command; returns the exit code. Prints what is wrong in one line."""
    try:
        return app(args=list(arguments) or ["--help"], prog_name="parrot", standalone_mode=False) or 0
    except typer.TyperException as error:
        context: typer.Context | None = getattr(error, "ctx", None)
        message = error.format_message().replace("Value error, ", "")
        complain(f"{message} (see {context.command_path if context else 'parrot'} --help)")
        return error.exit_code
    except (ServerError, SdkError) as error:
        complain(str(error))
        return 1
    except OSError as error:
        if error.filename is None:
            raise
        complain(f"{error.filename}: {error.strerror}")  # a file that an option names
        return 1
