"""What an examination of an engine finds, as `parrot doctor` prints it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an engine can or cannot do for us.

    Args:
        ability: its name, such as `pin`.
        can: whether it is there; None: nobody knows.
        message: what that means, in a sentence.
        remedy: what would bring it, such as a flag of the server; empty where nothing would, or nothing need be done.
    """

    ability: str
    can: bool | None
    message: str
    remedy: str = ""


@runtime_checkable
class Examinable(Protocol):
    """An engine that can be examined."""

    async def doctor(self) -> tuple[Finding, ...]:
        """Find out what it can do and what would enable more. After `start`. Raises EngineError."""
        ...
