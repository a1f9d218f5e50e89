"""A whole server in this process, on a loopback port of its own: what `Client.local()` talks to."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import Any

from pydantic import ValidationError

from parrot_sdk.errors import ServerGone
from parrot_server.config import Settings, unknown_settings
from parrot_server.engine_choice import steps
from parrot_server.errors import ParrotError
from parrot_server.server import serve

log = logging.getLogger("parrot")


class LocalServer:
    """Serves in a daemon thread until it is closed.

    Args:
        settings: fields of the server's settings, such as `model` or `engine`; others come from the environment.

    Raises ServerGone when the server cannot start.
    """

    def __init__(self, **settings: Any) -> None:
        try:
            self._settings = Settings(**{"host": "127.0.0.1", "port": 0, "api_keys": {}, **settings})
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            name = ".".join(str(part) for part in first["loc"])
            raise ServerGone(f"the server in this process did not start: setting {name}: {first['msg']}") from None
        for sentence in unknown_settings(os.environ):
            log.warning(sentence)
        self._url = ""
        self._failure: Exception | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._begun = threading.Event()  # it listens, or it has failed
        self._thread = threading.Thread(target=self._serve, name="parrot-server", daemon=True)
        self._thread.start()
        self._begun.wait()
        self.check()

    @property
    def url(self) -> str:
        """Where it listens."""
        return self._url

    def check(self) -> None:
        """Raise ServerGone when the server has ended."""
        if self._failure is not None:
            raise ServerGone(f"the server in this process did not start: {self._failure}")

    def close(self) -> None:
        """Stop the server and its engines, and wait for that. May be called twice."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _serve(self) -> None:
        try:
            asyncio.run(self._main())
            self._failure = self._failure or ServerGone("it was closed")
        except ParrotError as error:
            self._failure = error
        finally:
            self._begun.set()

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        # Warnings are seen where nobody has set up logging; and what takes so long at the first start should be.
        await serve(self._settings, on_listening=self._listening, progress=steps(log.warning), stop=self._stop)

    def _listening(self, url: str) -> None:
        self._url = url
        self._begun.set()
