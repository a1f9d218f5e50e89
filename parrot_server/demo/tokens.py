"""How long texts are, in tokens of the model that will read them."""

from __future__ import annotations

import math
from typing import NamedTuple

from parrot_server.config import Settings
from parrot_server.demo.documents import CountTokens
from parrot_server.engine_choice import own_engine

LEAST_BYTES_PER_TOKEN = 3  # of the reference's texts in the vocabularies of common models


class Counter(NamedTuple):
    """A way to count tokens; one that is not exact rather counts too many."""

    tokens: CountTokens
    exact: bool


def counter(settings: Settings | None) -> Counter:
    """Exact for the embedded engine of a server in this process, whose model is here; else by length.

    Args:
        settings: of the server in this process; None: it is another one.
    """
    if settings is None or own_engine(settings) != "embedded":
        return Counter(lambda text: math.ceil(len(text.encode()) / LEAST_BYTES_PER_TOKEN), exact=False)
    from parrot_server.engines.embedded.model_files import DEFAULT_MODEL, prepare
    from parrot_server.engines.tokens import PromptTokenizer

    tokenizer = PromptTokenizer.from_folder(prepare(settings.model or DEFAULT_MODEL))
    return Counter(lambda text: len(tokenizer.encode_text(text)), exact=True)
