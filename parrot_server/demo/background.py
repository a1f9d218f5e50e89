"""Calls that run all the time beside what is measured: batch work, such as somebody's ten thousand documents."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pydoc_data.topics import topics

from parrot_sdk import Client
from parrot_server.demo.asking import single_call
from parrot_server.demo.documents import CountTokens

FIRST_ANSWERS_TOKENS = (
    32  # the first answers are of different lengths up to this one, so that prompts arrive evenly later on
)
COUNTER = "parrot_output_tokens_total"


@dataclass(frozen=True, slots=True)
class Load:
    """What is offered, the same to every server: so many decoders, each with its next prompt as soon as its answer is there.

    Args:
        decoders: how many calls there are at any time.
        prompt_tokens: of each prompt, about, beside what all prompts begin with.
        least_tokens, most_tokens: of each answer.
        seed: of prompts and lengths.
        rate_s: how long its rate is measured while nothing else runs.
    """

    decoders: int = 24
    prompt_tokens: int = 100
    least_tokens: int = 200
    most_tokens: int = 400
    seed: int = 1
    rate_s: float = 5.0


class Background:
    """A load on a server.

    Args:
        client: the way to it.
        load: what is offered.
        throughput: the server is told that nobody waits for these answers.
        count_tokens: how long a text is.
    """

    def __init__(self, client: Client, load: Load, throughput: bool, count_tokens: CountTokens) -> None:
        self._client = client
        self._load = load
        self._throughput = throughput
        self._session = (
            f"background {secrets.token_hex(4)}"  # an engine that outlives a configuration must not know its prompts
        )
        self._words = " ".join(topics.values()).split()
        sample = " ".join(random.Random(0).choices(self._words, k=1000))
        self._prompt_words = max(1, round(load.prompt_tokens * 1000 / count_tokens(sample)))
        self._begun = [asyncio.Event() for _ in range(load.decoders)]

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run it, in full swing from the beginning of the block to its end. Raises parrot_sdk.ParrotError."""
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._decode(number)) for number in range(self._load.decoders)]
                await asyncio.gather(*(begun.wait() for begun in self._begun))
                yield
                for task in tasks:
                    task.cancel()
        except BaseExceptionGroup as failed:
            raise failed.exceptions[0] from None

    async def rate(self) -> float:
        """Output tokens a second while nothing else runs."""
        if not self._load.decoders:
            return 0.0
        before, began_s = await self.server_tokens(), time.perf_counter()
        await asyncio.sleep(self._load.rate_s)
        return (await self.server_tokens() - before) / (time.perf_counter() - began_s)

    async def server_tokens(self) -> float:
        """Output tokens that the server's engines made so far, for whomever."""
        page = await self._client.connection.hand_over(self._client.connection.request("GET", "/metrics"))
        lines = [line for line in page.content.decode().splitlines() if line.startswith(COUNTER)]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    async def _decode(self, number: int) -> None:
        """One call after another; the second one has begun when the first has ended."""
        dice = random.Random(f"{self._load.seed} {number}")
        await self._answer(dice, 1 + FIRST_ANSWERS_TOKENS * number // self._load.decoders)
        self._begun[number].set()
        while True:
            await self._answer(dice, dice.randint(self._load.least_tokens, self._load.most_tokens))

    async def _answer(self, dice: random.Random, tokens: int) -> None:
        prompt = " ".join(dice.choices(self._words, k=self._prompt_words))
        wishes = {"criteria": {"answer": "throughput"}} if self._throughput else {}
        await single_call(self._client, self._session, prompt, tokens, dice.randrange(2**31), **wishes)
