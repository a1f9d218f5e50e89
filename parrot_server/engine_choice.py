"""The engines that the settings name."""

from __future__ import annotations

from parrot_server.config import Settings
from parrot_server.engines.base import Engine
from parrot_server.engines.fake import FakeEngine
from parrot_server.engines.openai import OpenAIEngine
from parrot_server.errors import SetupError


def chosen_engines(settings: Settings) -> list[Engine]:
    """Engines in the order of the settings, not started yet. Raises SetupError when there is none."""
    engines: list[Engine] = [
        OpenAIEngine(f"openai-{number}", url, settings.model or None) for number, url in enumerate(settings.openai, 1)
    ]
    if settings.engine == "fake":
        engines.append(FakeEngine())
    if not engines:
        raise SetupError("no engine: set PARROT_ENGINE to embedded, or give the URL of a server")
    return engines
