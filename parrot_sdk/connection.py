"""All talk with a server: one event loop in one thread of its own, which sync and async code, from any thread, hand work to."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import math
import uuid
import weakref
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
from httpx_sse import EventSource, SSEError
from pydantic import BaseModel, ValidationError

from parrot_sdk.errors import ProgramError, RequestRefused, ServerGone
from parrot_sdk.loop_thread import LoopThread
from parrot_sdk.wire import Problem

T = TypeVar("T")
M = TypeVar("M", bound=BaseModel)

TRY_LATER = frozenset({429, 502, 503, 504})
LONG_READS = 200  # connections for reads that wait; what must be quick has its own
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.1, 2.0
RETRY_S, FIRST_RETRY_S = 10.0, 2.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A reply that came through: its status and its JSON."""

    status: int
    content: bytes

    def read(self, model: type[M]) -> M:
        """The reply as a model. Raises ServerGone when it is none."""
        try:
            return model.model_validate_json(self.content)
        except ValidationError:
            raise ServerGone(f"the answer (status {self.status}) is none of a Parrot server: check the URL") from None


class Connection:
    """The way to one server. Made and used from any thread; it survives broken transport and a server that starts again.

    Args:
        url: of the server, such as `http://127.0.0.1:8000`.
        api_key: sent as a bearer token.
        timeout_s: for one answer of the server, beyond what it was asked to wait.
        retry_s: how long a request is tried again while no answer comes; None: 10 s, but 2 s for a server that never answered yet
            and refuses connections, for then there is none.
        thread: where the work is done; by default a thread of its own.
        transport: what carries requests; by default sockets.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        timeout_s: float,
        retry_s: float | None,
        *,
        thread: LoopThread | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url.rstrip("/")
        self.http_requests = 0
        self._timeout_s = timeout_s
        self._retry_s = RETRY_S if retry_s is None else retry_s
        self._first_retry_s = FIRST_RETRY_S if retry_s is None else retry_s
        self._answered = False
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._quick = self._open(httpx.Limits(), transport)
        self._long = self._open(httpx.Limits(max_connections=LONG_READS), transport)
        self._thread = thread or LoopThread()
        self._thread.at_end(self._quick.aclose)
        self._thread.at_end(self._long.aclose)
        self._finalizer = weakref.finalize(self, self._thread.stop)

    def _open(self, limits: httpx.Limits, transport: httpx.AsyncBaseTransport | None) -> httpx.AsyncClient:
        host = httpx.URL(self.url).host
        return httpx.AsyncClient(
            base_url=self.url,
            headers=self._headers,
            timeout=httpx.Timeout(self._timeout_s, connect=min(self._timeout_s, 10), pool=None),
            limits=limits,
            transport=transport,
            trust_env=host not in ("127.0.0.1", "localhost", "::1"),  # no proxy stands before one's own machine
        )

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work in the loop's thread, and wait for it here."""
        future = self._thread.submit(work)
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise ProgramError("the client was closed") from None
        finally:
            future.cancel()

    async def hand_over(self, work: Coroutine[Any, Any, T]) -> T:
        """Do work in the loop's thread, and await it in the loop that runs here. Cancelling the one cancels the other."""
        future = self._thread.submit(work)
        try:
            return await asyncio.wrap_future(future)
        except asyncio.CancelledError:
            if self._thread.stopped:
                raise ProgramError("the client was closed") from None
            raise

    def close(self) -> None:
        """Give up all work that goes on, and end the thread. May be called twice."""
        self._finalizer()

    async def request(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        *,
        params: Mapping[str, str] | None = None,
        wait_s: float | None = None,
        accept: frozenset[int] = frozenset(),
    ) -> Answer:
        """Ask, and ask again while no answer comes. Only for requests that may arrive twice: a POST carries a key for that.

        Args:
            wait_s: how long the server is asked to wait before it answers (its `wait` parameter).
            accept: statuses beyond 2xx that are answers and not refusals.

        Raises RequestRefused, ServerGone.
        """
        headers = {"Idempotency-Key": uuid.uuid4().hex} if method == "POST" else {}
        content = None
        if body is not None:
            content = _content(body)
            headers["Content-Type"] = "application/json"
        client, timeout_s = self._quick, self._timeout_s
        params = dict(params or {})
        if wait_s is not None:
            params["wait"] = f"{wait_s:.3f}"
            client, timeout_s = self._long, self._timeout_s + wait_s
        timeout = httpx.Timeout(timeout_s, connect=min(self._timeout_s, 10), pool=None)
        patience = _Patience(self._retry_s)
        while True:
            self.http_requests += 1
            try:
                response = await client.request(
                    method, path, content=content, headers=headers, params=params, timeout=timeout
                )
            except httpx.RequestError as error:
                await patience.pause_or_raise(self._gone(error), limit_s=self._limit_s(error))
                continue
            self._answered = True
            if response.is_success or response.status_code in accept:
                return Answer(response.status_code, response.content)
            refusal = _refusal(response.status_code, response.content)
            if response.status_code not in TRY_LATER:
                raise refusal
            await patience.pause_or_raise(refusal, _retry_after_s(response))

    async def events(self, path: str) -> AsyncGenerator[tuple[str, Any], None]:
        """Server-sent events as (name, JSON), across broken connections, until the reader leaves.

        Raises RequestRefused, ServerGone.
        """
        last_id = ""
        patience = _Patience(self._retry_s)
        while True:
            self.http_requests += 1
            headers = {"Accept": "text/event-stream"} | ({"Last-Event-ID": last_id} if last_id else {})
            problem: RequestRefused | ServerGone = ServerGone(f"the stream of {self.url} ended too soon")
            retry_after_s, limit_s = None, self._retry_s
            try:
                async with self._long.stream("GET", path, headers=headers) as response:
                    self._answered = True
                    if response.is_success:
                        async with aclosing(EventSource(response).aiter_sse()) as events:
                            async for event in events:
                                if event.data:  # a comment after an event that had an id comes as one without data
                                    patience = _Patience(self._retry_s)
                                    last_id = event.id
                                    yield event.event, json.loads(event.data)
                    else:
                        problem = _refusal(response.status_code, await response.aread())
                        retry_after_s = _retry_after_s(response)
                        if response.status_code not in TRY_LATER:
                            raise problem
            except httpx.RequestError as error:
                problem, limit_s = self._gone(error), self._limit_s(error)
            except (SSEError, json.JSONDecodeError):
                problem = ServerGone(f"{self.url} sent a stream that is none of a Parrot server: check the URL")
            await patience.pause_or_raise(problem, retry_after_s, limit_s)

    def _limit_s(self, error: httpx.RequestError) -> float:
        never = isinstance(error, httpx.ConnectError) and not self._answered
        return self._first_retry_s if never else self._retry_s

    def _gone(self, error: httpx.RequestError) -> ServerGone:
        if isinstance(error, httpx.ConnectError):
            return ServerGone(
                f"no server answers at {self.url}: start one with `parrot serve`, or name none (neither in PARROT_URL nor "
                "otherwise), and programs start one of their own"
            )
        return ServerGone(f"the server at {self.url} broke off ({type(error).__name__})")


class _Patience:
    """How long to try again after the first failure, with growing pauses."""

    def __init__(self, total_s: float) -> None:
        self._total_s = total_s
        self._began_s: float | None = None
        self._pause_s = FIRST_PAUSE_S

    async def pause_or_raise(
        self, problem: Exception, at_least_s: float | None = None, limit_s: float = math.inf
    ) -> None:
        """Wait before the next try; after `limit_s`, where that is less, and after the whole time raise the problem."""
        now_s = asyncio.get_running_loop().time()
        self._began_s = now_s if self._began_s is None else self._began_s
        pause_s = max(self._pause_s, at_least_s or 0.0)
        if now_s + pause_s > self._began_s + min(self._total_s, limit_s):
            raise problem from None  # what the transport said is in it
        self._pause_s = min(self._pause_s * 2, LONGEST_PAUSE_S)
        await asyncio.sleep(pause_s)


def _content(body: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(body, allow_nan=False).encode()
    except ValueError:
        message = (
            "a number of the program (priority, deadline_s, budget, ...) is infinite or NaN: JSON has no such number"
        )
        raise ProgramError(message) from None


def _refusal(status: int, content: bytes) -> RequestRefused:
    try:
        problem = Problem.model_validate_json(content)
    except ValidationError:
        return RequestRefused("bad_reply", f"the server answered {status} without saying why", status=status)
    message = problem.detail or problem.title
    return RequestRefused(problem.type, message, status=status, call=problem.call_id, at=problem.at)


def _retry_after_s(response: httpx.Response) -> float | None:
    try:
        return float(response.headers.get("Retry-After", ""))
    except ValueError:
        return None
