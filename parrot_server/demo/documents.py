"""Real texts for the demos, and where they are cut."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics

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


@dataclass(frozen=True, slots=True)
class Document:
    """A text that may have been cut. `tokens` is its length, `whole_tokens` what it was before."""

    title: str
    text: str
    tokens: int
    whole_tokens: int


def python_reference(count: int, max_tokens: int, count_tokens: CountTokens) -> list[Document]:
    """The first `count` of the sixteen topics, each cut to at most `max_tokens`.

    Raises SetupError when there are not so many.
    """
    if count > len(TOPICS):
        raise SetupError(f"the built-in texts are {len(TOPICS)}, not {count}: give your own with --docs DIR")
    return [cut(name, topics[name], max_tokens, count_tokens) for name in TOPICS[:count]]


def files_of(folder: Path, count: int | None, max_tokens: int, count_tokens: CountTokens) -> list[Document]:
    """The text files of a folder in the order of their names, at most `count`, each cut to at most `max_tokens`.

    Raises SetupError when there is none, or one is no text.
    """
    try:
        paths = sorted(path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))[:count]
        documents = [cut(path.name, path.read_text("utf-8"), max_tokens, count_tokens) for path in paths]
    except UnicodeDecodeError:
        unreadable = next(path for path in paths if not _is_text(path))
        raise SetupError(f"{unreadable} is no text in UTF-8") from None
    except OSError as error:
        raise SetupError(f"{error.filename or folder} cannot be read: {error.strerror}") from None
    if not documents:
        raise SetupError(f"{folder} holds no files")
    return documents


def cut(title: str, text: str, max_tokens: int, count_tokens: CountTokens) -> Document:
    """The text up to the last paragraph's end within `max_tokens`; a first paragraph that is longer is cut at a line or word."""
    text = text.strip()
    whole_tokens = count_tokens(text)
    kept = text if whole_tokens <= max_tokens else head(text, max_tokens, count_tokens)
    return Document(title, kept, count_tokens(kept), whole_tokens)


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


def _is_text(path: Path) -> bool:
    try:
        path.read_text("utf-8")
    except UnicodeDecodeError:
        return False
    return True
