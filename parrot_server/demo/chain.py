"""Calls that each read everything before them, as an agent's loop does; sent in one request.

The prompt of each step begins with the whole prompt of the step before it: the history is a list that only grows, bound
into one hole, so the server knows the shared beginning by its identity and computes only what is new.
"""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

from parrot_sdk import Client, In, Variable, function
from parrot_server.demo.documents import CountTokens, head
from parrot_server.demo.report import Report, run
from parrot_server.demo.templates import template


@function(template=template("continue_notes"))
def continue_notes(so_far: In[list[str]]) -> str: ...


@dataclass(frozen=True, slots=True)
class Shape:
    """How long a chain is: tokens of the first prompt, by how many each next one grows, and of each note."""

    steps: int
    first_tokens: int
    more_tokens: int
    note_tokens: int

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all steps together, as if nothing were shared."""
        return sum(self.first_tokens + step * self.more_tokens for step in range(self.steps))

    @property
    def distinct_tokens(self) -> int:
        """Prompt tokens of the last step, which holds all others."""
        return self.first_tokens + (self.steps - 1) * self.more_tokens


FULL = Shape(steps=20, first_tokens=2000, more_tokens=300, note_tokens=80)
QUICK = Shape(steps=6, first_tokens=400, more_tokens=120, note_tokens=40)
TOPIC = "types"
QUESTION = "Explain this page to a beginner in one long paragraph."
_SCAFFOLD_TOKENS = 40  # the system text, and the marks of the turns in a common chat format
_JOIN_TOKENS = 4  # page, question and note stand with empty lines between them


def chain(client: Client, pages: Sequence[str], shape: Shape, on_text: Callable[[str], None]) -> Report:
    """Note after note, each with all pages and notes before it in view.

    Args:
        client: the way to a server.
        pages: one text a step.
        shape: how long the notes are.
        on_text: told the last note as far as it is there, each time it has grown.

    Raises parrot_sdk.ParrotError.
    """

    def build() -> Variable[str]:
        history: list[str | Variable[str]] = []
        for step, page in enumerate(pages):
            history.append(page)
            note = continue_notes.using(max_tokens=shape.note_tokens, seed=step)(history)
            history.append(note)
        return note

    return run(client, "chain", build, on_text)


def reference_pages(shape: Shape, count_tokens: CountTokens) -> list[str]:
    """One long topic of Python's reference, page by page, each with a question; so long that the prompts get the shape."""
    rest = topics[TOPIC].strip()
    pages = []
    for step in range(shape.steps):
        room = shape.first_tokens - _SCAFFOLD_TOKENS if step == 0 else shape.more_tokens - shape.note_tokens
        page = head(rest, room - count_tokens(QUESTION) - _JOIN_TOKENS, count_tokens, marks=("\n", " "))
        rest = rest[len(page) :].strip()
        pages.append(f"{page}\n\n{QUESTION}")
    return pages
