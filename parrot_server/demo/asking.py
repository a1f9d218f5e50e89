"""Two kinds of clients that run the same program: one declares it whole, one sends a finished prompt whenever it has all that it needs."""

# mypy: disable-error-code="empty-body"
from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from parrot_sdk import CallFailed, Client, In, Program, Variable, WaitTimeout, function
from parrot_sdk.wire import ProgramReply
from parrot_server.demo.templates import template

JOIN = "\n\n"

Text = str | Variable[str]


@function(template=template("answer_parts"))
def answer_parts(session: In[str], parts: In[list[str]]) -> str: ...


FUNCTION = answer_parts.declaration.body.model_dump(by_alias=True, exclude_none=True)
WAIT_S = 600.0


class Asker(Protocol):
    """What a program calls to have something answered."""

    async def ask(self, parts: Sequence[Text], tokens: int) -> Text:
        """The answer, of so many tokens, to a text in parts."""
        ...

    async def ask_all(self, texts: Sequence[Sequence[Text]], tokens: int) -> list[Text]:
        """Answers to texts that do not depend on each other."""
        ...


Work = Callable[[Asker], Awaitable[Text]]
"""A program: asks, and returns its last answer."""


@dataclass(frozen=True, slots=True)
class Tokens:
    """Tokens of all calls of a program."""

    prompt: int
    cached: int
    output: int


class DeclaringClient:
    """Sends all calls in one request; answers flow from call to call inside the server."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._session = secrets.token_hex(4)
        self._calls = 0
        self._program: Program | None = None

    async def run(self, work: Work) -> str:
        """The last answer of a program. Raises parrot_sdk.ParrotError."""
        async with self._client.program("declared") as self._program:
            last = await work(self)
        return await last if isinstance(last, Variable) else last

    async def ask(self, parts: Sequence[Text], tokens: int) -> Text:
        """Adds a call."""
        self._calls += 1
        return answer_parts.using(max_tokens=tokens, seed=self._calls)(self._session, list(parts))

    async def ask_all(self, texts: Sequence[Sequence[Text]], tokens: int) -> list[Text]:
        """Adds calls."""
        return [await self.ask(parts, tokens) for parts in texts]

    async def tokens(self) -> Tokens:
        """What the server counted. Only after a run."""
        assert self._program is not None, "nothing ran yet"
        answer = await self._client.connection.hand_over(self._program.submission.get())
        return _sum([answer.read(ProgramReply)])


class LoopingClient:
    """Waits for each answer, joins the next prompt from texts, and sends that in a request of its own: the server sees single calls.

    Args:
        client: the way to the server.
        cached: prompts that begin alike do so to the last byte, so a prefix cache finds them; else each has a session, and so
            a beginning, of its own.
        at_once: calls that do not depend on each other are sent together; else one after another.
    """

    def __init__(self, client: Client, *, cached: bool, at_once: bool) -> None:
        self._client = client
        self._session = secrets.token_hex(4)
        self._cached = cached
        self._at_once = at_once
        self._replies: list[ProgramReply] = []

    async def run(self, work: Work) -> str:
        """The last answer of a program. Raises parrot_sdk.ParrotError."""
        return str(await work(self))

    async def ask(self, parts: Sequence[Text], tokens: int) -> Text:
        """Sends a call and waits for its answer."""
        session = self._session if self._cached else secrets.token_hex(4)
        prompt = JOIN.join(str(part) for part in parts)
        answer, reply = await single_call(self._client, session, prompt, tokens, seed=len(self._replies))
        self._replies.append(reply)
        return answer

    async def ask_all(self, texts: Sequence[Sequence[Text]], tokens: int) -> list[Text]:
        """Sends calls, and waits for all answers."""
        if self._at_once:
            return list(await asyncio.gather(*(self.ask(parts, tokens) for parts in texts)))
        return [await self.ask(parts, tokens) for parts in texts]

    async def tokens(self) -> Tokens:
        """What the server counted."""
        return _sum(self._replies)


async def single_call(
    client: Client, session: str, prompt: str, tokens: int, seed: int, **wishes: object
) -> tuple[str, ProgramReply]:
    """Have one prompt answered, in one request, as with any completions API.

    Args:
        client: the way to the server.
        session: what the prompt begins with.
        prompt: the rest of it.
        tokens: of the answer.
        seed: of its sampling.
        wishes: other fields of the request.

    Returns the answer, and what the server says of it. Raises parrot_sdk.ParrotError.
    """
    call = {
        "id": "answer",
        "function": "answer",
        "inputs": {"session": session, "parts": [prompt]},
        "outputs": {"answer": "answer"},
        "sampling": {"answer": {**FUNCTION["outputs"]["answer"], "max_tokens": tokens, "seed": seed}},
    }
    body = {"functions": {"answer": FUNCTION}, "calls": [call], **wishes}
    request = client.connection.request("POST", "/v1/programs", body, wait_s=WAIT_S)
    reply = (await client.connection.hand_over(request)).read(ProgramReply)
    for error in (reply.errors or {}).values():
        raise CallFailed(error.type, error.message, call=error.call, retryable=error.retryable)
    answers = reply.values or {}
    if "answer" not in answers:
        raise WaitTimeout(f"no answer in {WAIT_S:g} s")
    return str(answers["answer"]), reply


def _sum(replies: Sequence[ProgramReply]) -> Tokens:
    usages = [reply.usage for reply in replies]
    return Tokens(
        prompt=sum(usage.prompt_tokens for usage in usages),
        cached=sum(usage.cached_tokens for usage in usages),
        output=sum(usage.output_tokens for usage in usages),
    )
