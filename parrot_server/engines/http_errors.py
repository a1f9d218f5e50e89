"""What an engine's errors mean: whose fault each is, and what of a server's own words may be passed on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from parrot_server.errors import EngineError, Fault


def broken(engine: str, what: str) -> EngineError:
    """A stream that is not what it should be."""
    return EngineError(Fault.ENGINE, "stream_broken", f"the answer of engine {engine} broke off: {what}")


OVERFLOW = re.compile(
    r"context.?(length|size|window)|context_length_exceeded|exceed_context_size|max(imum)?[ _](model|allowed)[ _]len"
    r"|maximum (sequence|number of tokens)|max_new_tokens.{0,40}must be <=|prompt is too long",
    re.IGNORECASE,
)
NO_MODEL = re.compile(
    r"model.{0,200}(not exist|not found|unknown|not available)|model_not_found", re.IGNORECASE | re.DOTALL
)
NAME = re.compile(r"[A-Za-z][\w.-]{0,63}")


def failure(engine: str, status: int, text: str, headers: Mapping[str, str]) -> EngineError:
    """What an error answer means. A server's own words may hold the prompt, so only what they are about is passed on.

    Args:
        engine: the engine's name.
        status: the HTTP status; 0: as the text says.
        text: the body.
        headers: for Retry-After.
    """
    said = _error_object(text)
    code = said.get("code")
    if not status:
        status = code if isinstance(code, int) and code >= 400 else 0
    kinds = [
        kind for key in ("type", "code", "param") if isinstance(kind := said.get(key), str) and NAME.fullmatch(kind)
    ]
    about = ", ".join([f"HTTP {status}"] * bool(status) + kinds)
    words = f"{said.get('message')} {kinds}"
    if status in (429, 503, 529):
        patience = retry_after_s(headers)
        return EngineError(Fault.BUSY, "engine_busy", f"engine {engine} is busy ({about})", retry_after_s=patience)
    if status in (408, 504):
        return EngineError(Fault.TIMEOUT, "engine_timeout", f"engine {engine} gave up waiting ({about})")
    if status in (401, 403):
        message = f"engine {engine} does not accept our API key ({about}): set the key of that engine"
        return EngineError(Fault.ENGINE, "engine_unauthorized", message)
    if 300 <= status < 400:
        message = f"engine {engine} answers that it is elsewhere ({about}): give the URL that it redirects to"
        return EngineError(Fault.ENGINE, "engine_moved", message)
    if OVERFLOW.search(words) and status < 500:
        message = f"the prompt and its answer are longer than the context of engine {engine} ({about})"
        return EngineError(Fault.CALL, "context_overflow", message)
    if NO_MODEL.search(words) and status < 500:
        return EngineError(Fault.CALL, "unknown_model", f"engine {engine} does not serve that model ({about})")
    if 400 <= status < 500 or (not status and any("invalid" in kind or "BadRequest" in kind for kind in kinds)):
        return EngineError(Fault.CALL, "engine_refused", f"engine {engine} refused the call ({about})")
    return EngineError(Fault.ENGINE, "engine_failed", f"engine {engine} failed ({about or 'an error in its stream'})")


def _error_object(text: str) -> dict[str, Any]:
    try:
        said = json.loads(text)
    except ValueError:
        return {}
    inner = said.get("error", said) if isinstance(said, dict) else said
    return inner if isinstance(inner, dict) else {"message": str(inner)}


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """What a Retry-After header asks for, in seconds from now."""
    value = headers.get("retry-after", "")
    if re.fullmatch(r"\d+(\.\d+)?", value):
        return float(value)
    try:
        moment = parsedate_to_datetime(value)
    except ValueError:
        return None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())
