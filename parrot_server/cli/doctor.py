"""`parrot doctor`: what the engines can do here, and what would enable more."""

from __future__ import annotations

import asyncio
import os
import platform
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer

from parrot_server.cli.engines import (
    EngineOption,
    JsonOption,
    ModelOption,
    OpenAIOption,
    SGLangOption,
    read_settings,
)
from parrot_server.cli.terminal import Progress, progress, say, say_json
from parrot_server.errors import EngineError, SetupError

if TYPE_CHECKING:
    from parrot_server.core.model import EngineSpec
    from parrot_server.engines.base import Engine
    from parrot_server.engines.finding import Finding

MARKS = {True: "yes", False: "no", None: "?"}


def doctor(
    engine: EngineOption = None,
    model: ModelOption = None,
    openai: OpenAIOption = None,
    sglang: SGLangOption = None,
    as_json: JsonOption = False,
) -> None:
    """Start the engines that the settings name, look at what they can do, and say what would enable more.

    \b
    Examples:
      parrot doctor
      parrot doctor --sglang http://127.0.0.1:30000
    """
    from parrot_server.engine_choice import chosen_engines

    settings = read_settings(engine=engine, model=model, openai=openai, sglang=sglang)
    with progress() as show:
        reports = asyncio.run(_examine_all(chosen_engines(settings, show), show))
    if as_json:
        say_json({"machine": _machine(), "engines": reports})
    else:
        say(", ".join(f"{name} {value}" for name, value in _machine().items()))
        for report in reports:
            say(_told(report))
    if any(report["error"] for report in reports):
        raise typer.Exit(1)


def _machine() -> dict[str, Any]:
    return {"python": platform.python_version(), "system": platform.platform(terse=True), "cores": os.cpu_count()}


async def _examine_all(engines: list[Engine], show: Progress) -> list[dict[str, Any]]:
    reports = []
    for engine in engines:
        show(f"engine {engine.id}", None)
        reports.append(await _examine(engine))
    return reports


async def _examine(engine: Engine) -> dict[str, Any]:
    from parrot_server.engines.finding import Examinable

    report: dict[str, Any] = {"id": engine.id, "error": None, "findings": []}
    try:
        spec = await engine.start()
        findings = await engine.doctor() if isinstance(engine, Examinable) else _abilities(spec)
        report |= {"kind": spec.kind, "models": list(spec.models), "context_tokens": spec.context_tokens}
        report["findings"] = [asdict(finding) for finding in findings]
    except (EngineError, SetupError) as error:
        report["error"] = str(error)
    finally:
        await engine.close()
    return report


def _abilities(spec: EngineSpec) -> list[Finding]:
    """What an engine says of itself, where it examines nothing further."""
    from parrot_server.engines.finding import Finding

    return [
        Finding("share", spec.shares_prefixes, "a prompt's beginning that was computed before is not computed again"),
        Finding("pin", spec.can_pin, "shared beginnings are kept as long as calls will need them"),
        Finding("pause", spec.can_pause, "a running call can stop and go on, with its KV kept"),
        Finding("offload", spec.can_offload, "KV can be moved to the host and back"),
        Finding("continue", spec.continues, "an assistant's turn that has text in it can be continued"),
        Finding("chat", spec.chat, "the model has a chat template"),
        Finding("schema", spec.schemas, "JSON Schemas and choices are enforced token by token"),
    ]


def _told(report: dict[str, Any]) -> str:
    if report["error"]:
        return f"\nengine {report['id']}: {report['error']}"
    head = f"\nengine {report['id']} ({report['kind']}), {', '.join(report['models'])}, context {report['context_tokens']:,} tokens"
    lines = [head]
    for finding in report["findings"]:
        remedy = f" ({finding['remedy']})" if finding["remedy"] else ""
        lines.append(f"  {MARKS[finding['can']]:<4} {finding['ability']:<10} {finding['message']}{remedy}")
    return "\n".join(lines)
