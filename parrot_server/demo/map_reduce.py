"""One call a page and one that reads what they said: seventeen calls for sixteen pages, sent in one request."""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

from collections.abc import Callable, Sequence

from parrot_sdk import Client, In, function
from parrot_server.demo.report import Report, run
from parrot_server.demo.templates import template


@function(template=template("explain_page"))
def explain_page(page: In[str]) -> str: ...


@function(template=template("describe_book"))
def describe_book(explanations: In[list[str]]) -> str: ...


def map_reduce(client: Client, pages: Sequence[str], on_text: Callable[[str], None]) -> Report:
    """Explain each page, and describe the book that they make.

    Args:
        client: the way to a server.
        pages: the texts.
        on_text: told the answer as far as it is there, each time it has grown.

    Raises parrot_sdk.ParrotError.
    """
    return run(client, "map-reduce", lambda: describe_book(explain_page.map(pages)), on_text)
