"""What is printed, and where: results on stdout, progress and errors on stderr, progress only on a terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

Progress = Callable[[str, float | None], None]
"""Told what is being done and how much of it is done (0 to 1; None: not known)."""


def say(text: str) -> None:
    """A result, for people."""
    print(text, flush=True)


def say_json(value: Any) -> None:
    """A result, for machines."""
    print(json.dumps(value, indent=2, ensure_ascii=False), flush=True)


def complain(text: str) -> None:
    """An error, in one line."""
    print(f"parrot: {' '.join(text.split())}", file=sys.stderr, flush=True)


def note(text: str) -> None:
    """Something by the way, where it does not get into a result."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def progress(elsewhere: Progress = lambda what, done: None) -> Iterator[Progress]:
    """A line that says what is going on, until it is wholly done or the block ends.

    Args:
        elsewhere: is told instead where stderr is no terminal.
    """
    if not sys.stderr.isatty():
        yield elsewhere
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    status = console.status("")

    def show(what: str, done: float | None) -> None:
        if done == 1.0:
            status.stop()
            return
        line = " ".join(what.split())[-(console.width - 12) :]
        status.update(escape(line) + ("" if done is None else f" {done:.0%}"))
        status.start()

    try:
        yield show
    finally:
        status.stop()
