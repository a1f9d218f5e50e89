"""What an engine is to the rest of the server: the smallest protocol that serves them all.

    engine = SomeEngine(...)
    spec = await engine.start()                  # ready, and what it can do
    async for event in engine.generate(request): # Taken?, Prefill?, Text*, Done — in this order
        ...
    await engine.close()

Rules that every engine keeps (the contract suite in `tests/engines` holds each of them to it):

* `generate` yields any number of `Text` and then exactly one `Done`, or raises `EngineError`. A stream that just stops is an error.
* The texts joined are the value: stop strings are held back, characters are whole, nothing that was yielded is taken back.
* Closing the generator (`aclose`, or cancelling the task that reads it) aborts the call in the engine, and returns when the
  engine has let go of it.
* No prompt text in an error's message.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Literal, Protocol

from parrot_server.core.model import CostModel, EngineSpec, Prompt, Sampling, Tier, Usage


@dataclass(frozen=True, slots=True)
class Request:
    """One generation. `rid` is ours and unique; `priority` is higher for sooner; `salt` separates tenants' caches."""

    rid: str
    model: str
    prompt: Prompt
    sampling: Sampling
    salt: str = ""
    priority: int = 0
    grant_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Taken:
    """The engine took the call out of its queue, where it had been for `queue_s` seconds if it says so."""

    queue_s: float | None = None


@dataclass(frozen=True, slots=True)
class Prefill:
    """The prompt is in the cache; how long it was, and how much of it was there before."""

    prompt_tokens: int
    cached_tokens: int


@dataclass(frozen=True, slots=True)
class Text:
    """Some more of the answer, and how many output tokens there are so far."""

    text: str
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Stalled:
    """The call is paused with its KV kept: asked to, or its grant is spent. `resume` makes it go on."""

    output_tokens: int


@dataclass(frozen=True, slots=True)
class Done:
    """The answer is whole. `stop` is the stop string that ended it."""

    finish: Literal["stop", "length"]
    usage: Usage
    stop: str | None = None


GenerateEvent = Taken | Prefill | Text | Stalled | Done


@dataclass(frozen=True, slots=True)
class Load:
    """What an engine says of itself now. `lost`: prefixes it had to give up though it was to keep them, since it last said."""

    running: int
    waiting: int
    used_tokens: int
    cost: CostModel | None = None
    lost: tuple[str, ...] = ()


class Engine(Protocol):
    """An engine, or one replica of several. Methods that it cannot serve are never called: `EngineSpec` says so."""

    id: str

    async def start(self) -> EngineSpec:
        """Come up, and say what it is. Raises EngineError or SetupError. May be called again after it was gone."""
        ...

    def generate(self, request: Request) -> AsyncGenerator[GenerateEvent, None]:
        """Generate one output. Raises EngineError."""
        ...

    async def check(self, sampling: Sampling) -> None:
        """Raise EngineError, the call's fault, when an output's schema or choices cannot be enforced; pass where that is not known."""
        ...

    async def keep(self, prefix: str, prompt: Prompt | None, model: str, salt: str, tier: Tier, hold_s: float) -> int:
        """Bring the KV of a prefix to a tier and hold it there for at most `hold_s`; returns its length in tokens."""
        ...

    async def pause(self, rid: str) -> None:
        """Stop decoding a call, keep its KV; its stream yields `Stalled`. An unknown rid is ignored."""
        ...

    async def resume(self, rid: str, grant_tokens: int | None) -> None:
        """Go on with a paused call. An unknown rid is ignored."""
        ...

    async def load(self) -> Load:
        """How busy it is. Cheap; raises EngineError when it is gone, which is how its going is noticed."""
        ...

    async def close(self) -> None:
        """Stop, and leave nothing running."""
        ...
