"""The engines that the settings name."""

from __future__ import annotations

from collections.abc import Callable

from parrot_server.config import Settings
from parrot_server.engines.base import Engine
from parrot_server.engines.embedded import EmbeddedEngine
from parrot_server.engines.embedded.model_files import DEFAULT_MODEL
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.openai import OpenAIEngine
from parrot_server.engines.sglang import SGLangEngine
from parrot_server.engines.sglang_launch import LaunchedSGLang
from parrot_server.engines.tokens import PromptTokenizer
from parrot_server.errors import SetupError

Progress = Callable[[str, float | None], None]


def chosen_engines(settings: Settings, progress: Progress = lambda what, done: None) -> list[Engine]:
    """Engines as the settings name them, not started yet.

    Args:
        settings: see `Settings`.
        progress: told what is going on while a model is fetched and prepared, and how much of it is done (0 to 1).

    Raises SetupError when there is none, or this machine lacks what one of them needs.
    """
    key = settings.engine_key or None
    tokenizer = PromptTokenizer.from_folder(settings.tokenizer) if settings.tokenizer else None
    engines: list[Engine] = []
    for number, url in enumerate(settings.sglang, 1):
        engines.append(SGLangEngine(f"sglang-{number}", url, key, tokenizer))
    for number, url in enumerate(settings.openai, 1):
        engines.append(OpenAIEngine(f"openai-{number}", url, settings.model or None, key, tokenizer))
    if settings.launch_sglang:
        engines.append(LaunchedSGLang("sglang", settings.launch_sglang, tokenizer=tokenizer))
    if settings.engine == "fake":
        engines.append(FakeEngine())
    if settings.runs_embedded:
        engines.append(_embedded(settings, progress))
    if not engines:
        raise SetupError("no engine: leave PARROT_ENGINE unset for the embedded one, or give the URL of a server")
    return engines


def _embedded(settings: Settings, progress: Progress) -> EmbeddedEngine:
    # For other servers `model` is the name of what they serve.
    model = "" if settings.openai else settings.model
    return EmbeddedEngine(
        model=model or DEFAULT_MODEL,
        progress=progress,
        threads=settings.threads,
        context_tokens=settings.context_tokens,
        kv_tokens=settings.kv_tokens,
        mode=settings.mode,
    )
