"""What an examination of an engine finds, as `parrot doctor` prints it."""

from __future__ import annotations

from collections.abc import Sequence
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

    @classmethod
    def of(cls, ability: str, can: bool, yes: str, no: str, remedy: str) -> Finding:
        """What it means that an ability is there, or what it means that it is not and what would bring it."""
        return cls(ability, can, yes if can else no, "" if can else remedy)


@runtime_checkable
class Examinable(Protocol):
    """An engine that can be examined."""

    async def doctor(self) -> tuple[Finding, ...]:
        """Find out what it can do and what would enable more. After `start`. Raises EngineError."""
        ...


def isolation(cached_tokens: Sequence[int]) -> Finding:
    """Whether salts separate tenants, by a new prompt sent under one salt, again under the same, then under another.

    Args:
        cached_tokens: what each of the three found in the cache.
    """
    _, again, elsewhere = cached_tokens
    if elsewhere > 0:
        message = "salts do not separate the cache: one tenant can tell what another asked"
        return Finding("isolation", False, message, "a newer server, or an engine a tenant")
    if again == 0:
        message = "a prompt was not found again even under its own salt, or the server does not say so"
        return Finding(
            "isolation", None, message, "let the server report cached tokens (vLLM: --enable-prompt-tokens-details)"
        )
    return Finding("isolation", True, "what one tenant asked is reused for no other")
