"""The engines that the settings name."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

from parrot_server.config import Settings
from parrot_server.engines.base import Engine
from parrot_server.engines.embedded import EmbeddedEngine
from parrot_server.engines.embedded.model_files import DEFAULT_MODEL, gguf_file, prepare
from parrot_server.engines.embedded.openvino_runtime import missing_packages
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.llama_cpp import LlamaCppEngine, is_installed
from parrot_server.engines.openai import OpenAIEngine
from parrot_server.engines.sglang import SGLangEngine
from parrot_server.engines.sglang_launch import LaunchedSGLang
from parrot_server.engines.tokens import PromptTokenizer
from parrot_server.errors import SetupError

log = logging.getLogger("parrot")
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
    match own_engine(settings):
        case "fake":
            engines.append(FakeEngine())
        case "embedded":
            engines.append(_embedded(settings, progress))
        case "llamacpp":
            engines.append(_llama_cpp(settings, progress, tokenizer))
    if not engines:
        raise SetupError(
            "no engine: name none for the embedded one, or give the URL of a server that is one (--sglang, --openai)"
        )
    return engines


def own_engine(settings: Settings) -> Literal["embedded", "llamacpp", "fake", "none"]:
    """What runs beside the server on its own: where OpenVINO is not installed but llama.cpp is, that is the usual one."""
    if settings.engine is not None:
        return settings.engine
    if settings.sglang or settings.openai or settings.launch_sglang:
        return "none"
    return "llamacpp" if missing_packages() and is_installed() else "embedded"


def prepare_model(settings: Settings, progress: Progress) -> None:
    """Have the model of the engine on this machine fetched and ready. Raises SetupError."""
    match own_engine(settings):
        case "embedded":
            prepare(_own_model(settings), progress)
        case "llamacpp":
            gguf_file(_own_model(settings), progress)


def steps(tell: Callable[[str], None]) -> Progress:
    """Progress for where nothing can be shown and taken away again: each step is told once, when it begins."""
    told: set[str] = set()

    def show(what: str, done: float | None) -> None:
        if done != 1.0 and what not in told:
            told.add(what)
            tell(what)

    return show


def _embedded(settings: Settings, progress: Progress) -> EmbeddedEngine:
    return EmbeddedEngine(
        model=_own_model(settings),
        progress=progress,
        threads=settings.threads,
        context_tokens=settings.context_tokens,
        kv_tokens=settings.kv_tokens,
        mode=settings.mode,
    )


def _llama_cpp(settings: Settings, progress: Progress, tokenizer: PromptTokenizer | None) -> LlamaCppEngine:
    if settings.engine is None:
        log.info("the embedded engine's packages are not installed: llama.cpp runs instead")
    return LlamaCppEngine(
        model=_own_model(settings),
        progress=progress,
        tokenizer=tokenizer,
        threads=settings.threads,
        kv_tokens=settings.kv_tokens,
    )


def _own_model(settings: Settings) -> str:
    # For other servers `model` is the name of what they serve.
    return (not settings.openai and settings.model) or DEFAULT_MODEL
