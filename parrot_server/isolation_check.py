"""Whether an engine may be shared between tenants: its cache must not tell one what another asked."""

from __future__ import annotations

import logging

from parrot_server.engines.base import Engine
from parrot_server.engines.finding import Examinable
from parrot_server.errors import SetupError

log = logging.getLogger("parrot")


async def check_isolation(engine: Engine) -> None:
    """Examine a started engine that several tenants are to share; where nobody knows, the log says so.

    Raises:
        SetupError: salts do not separate its cache. How long an answer takes would tell what others asked.
        EngineError: it does not answer.
    """
    if not isinstance(engine, Examinable):  # those that run here keep salts apart
        return
    found = next((finding for finding in await engine.doctor() if finding.ability == "isolation"), None)
    if found is None or found.can:
        return
    message = f"engine {engine.id} is to be shared by several tenants, but {found.message}"
    if found.can is None:
        log.warning("%s", message)
        return
    raise SetupError(f"{message}: {found.remedy}")
