"""Real texts for the demos, and where they are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import NamedTuple

from parrot_server.errors import SetupError

CountTokens = Callable[[str], int]

# Long topics of the reference that every Python ships; all of them are in Python 3.11 to 3.14.
TOPICS = (
    "objects",
    "types",
    "numeric-types",
    "typesseq",
    "typesmapping",
    "strings",
    "formatstrings",
    "execmodel",
    "assignment",
    "comparisons",
    "calls",
    "function",
    "try",
    "import",
    "attribute-access",
    "debugger",
)


class Source(NamedTuple):
    """A text as it was found."""

    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Document:
    """A text that may have been cut. `tokens` is its length, `whole_tokens` what it was before."""

    title: str
    text: str
    tokens: int
    whole_tokens: int


def python_reference(count: int) -> list[Source]:
    """The first `count` of the sixteen topics. Raises SetupError when there are not so many."""
    if count > len(TOPICS):
        raise SetupError(f"the built-in texts are {len(TOPICS)}, not {count}: give your own with --docs DIR")
    return [Source(name, topics[name]) for name in TOPICS[:count]]


def files_of(folder: Path, count: int | None, tell: Callable[[str], None]) -> list[Source]:
    """The text files of a folder in the order of their names, at most `count`.

    Args:
        tell: told of each file that is left out, since it is empty or no text, and when there are fewer than `count`.

    Raises SetupError when there is none, or one cannot be read.
    """
    sources: list[Source] = []
    try:
        for path in sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith(".")):
            if len(sources) == count:
                break
            try:
                text = path.read_text("utf-8").strip()
            except UnicodeDecodeError:
                tell(f"{path.name} is left out: it is no text in UTF-8")
                continue
            if text:
                sources.append(Source(path.name, text))
            else:
                tell(f"{path.name} is left out: it is empty")
    except OSError as error:
        raise SetupError(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    if not sources:
        raise SetupError(f"{folder} holds no texts")
    if count is not None and len(sources) < count:
        tell(f"{folder} holds {len(sources)} texts, not {count}")
    return sources


def cut(source: Source, max_tokens: int, count_tokens: CountTokens) -> Document:
    """The text up to the last paragraph's end within `max_tokens`; a first paragraph that is longer is cut at a line or word."""
    text = source.text.strip()
    whole_tokens = count_tokens(text)
    kept = text if whole_tokens <= max_tokens else head(text, max_tokens, count_tokens)
    return Document(source.title, kept, count_tokens(kept), whole_tokens)


def head(text: str, max_tokens: int, count_tokens: CountTokens, marks: tuple[str, ...] = ("\n\n", "\n", " ")) -> str:
    """The longest beginning of a text that has at most `max_tokens` and ends before one of the coarsest marks that allow any."""
    for mark in marks:
        parts = text.split(mark)
        if kept := _most(partial(_first, parts, mark), len(parts), max_tokens, count_tokens):
            return kept
    return _most(partial(_first, text, ""), len(text), max_tokens, count_tokens)


def _first(parts: Sequence[str], mark: str, count: int) -> str:
    return mark.join(parts[:count])


def _most(take: Callable[[int], str], most: int, max_tokens: int, count_tokens: CountTokens) -> str:
    """The text that the largest count gives, of those with at most `max_tokens`: longer texts have more tokens."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if count_tokens(take(middle)) <= max_tokens:
            low = middle
        else:
            high = middle - 1
    return take(low).rstrip()
