"""An embedded engine that many tests use, so that the model loads once."""

from __future__ import annotations

from parrot_server.engines.embedded import EmbeddedEngine


class SharedEngine(EmbeddedEngine):
    """Closing it is left to the fixture that made it."""

    async def close(self) -> None:
        """Not yet."""

    async def end(self) -> None:
        """Now."""
        await super().close()
