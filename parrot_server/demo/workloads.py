"""The two programs that are compared, in the shape of the demos and with answers of a set length."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pydoc_data.topics import topics

from parrot_server.demo import chain
from parrot_server.demo.asking import Asker, Text, Work
from parrot_server.demo.documents import TOPICS, CountTokens, head

CHAIN = chain.Shape(steps=12, first_tokens=600, more_tokens=100, note_tokens=32)
SHORT_CHAIN = chain.Shape(steps=6, first_tokens=400, more_tokens=100, note_tokens=24)
SHARED_TOPIC = "types"
QUESTION = "Say in one sentence what this part of the page means."
LAST_QUESTION = "These sentences are about one page. Say in a short paragraph what the page is about."
_SCAFFOLD_TOKENS = (
    45  # the system text, the marks of the turns in a common chat format, and the empty lines between parts
)


@dataclass(frozen=True, slots=True)
class Workload:
    """A program to be measured: how it runs, and what it is, for people."""

    name: str
    what: str
    work: Work


@dataclass(frozen=True, slots=True)
class Fan:
    """How wide a map-reduce is, and tokens of the beginning that its maps share, of what each has beside it, and of answers."""

    maps: int = 16
    shared_tokens: int = 1500
    own_tokens: int = 50
    answer_tokens: int = 32
    last_tokens: int = 64


def a_chain(shape: chain.Shape, count_tokens: CountTokens) -> Workload:
    """Notes on the pages of one topic, each with all pages and notes before it in view."""
    pages = chain.reference_pages(shape, count_tokens)

    async def work(asker: Asker) -> Text:
        history: list[Text] = []
        for page in pages:
            history.append(page)
            history.append(await asker.ask(history, shape.note_tokens))
        return history[-1]

    what = f"{shape.steps} steps of {shape.note_tokens} tokens, about {shape.prompt_tokens:,} prompt tokens in all"
    return Workload("chain", f"{what}, of which {shape.distinct_tokens:,} are distinct", work)


def a_map_reduce(fan: Fan, count_tokens: CountTokens) -> Workload:
    """Questions on one page, each with the whole page before it, and one call that reads all answers."""
    page = head(topics[SHARED_TOPIC], fan.shared_tokens - _SCAFFOLD_TOKENS, count_tokens, marks=("\n", " "))
    questions = _questions(fan, count_tokens)

    async def work(asker: Asker) -> Text:
        answers = await asker.ask_all([[page, question] for question in questions], fan.answer_tokens)
        return await asker.ask([*answers, LAST_QUESTION], fan.last_tokens)

    what = (
        f"{fan.maps} maps of {fan.answer_tokens} tokens, each of {fan.own_tokens} prompt tokens after a common, cold "
    )
    return Workload("map-reduce", f"{what}{fan.shared_tokens:,}; a reduce of {fan.last_tokens}", work)


def _questions(fan: Fan, count_tokens: CountTokens) -> Sequence[str]:
    room = fan.own_tokens - count_tokens(QUESTION) - 2
    parts = []
    for number in range(fan.maps):
        text = topics[TOPICS[number % len(TOPICS)]].strip()[400 * (number // len(TOPICS)) :]
        parts.append(f"{head(text, room, count_tokens, marks=(' ',))}\n\n{QUESTION}")
    return parts
