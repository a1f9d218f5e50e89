"""HTTP to an engine: connections kept and led through proxies, and event streams from bytes that are cut anywhere."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parrot_server.engines.event_lines import EventLines
from parrot_server.engines.http import EngineHTTP, Patience
from parrot_server.errors import EngineError, Fault, SetupError

pytestmark = pytest.mark.anyio
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}"
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[str]:
    """A server that does this with each connection; its address."""

    async def until_gone(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await serve(reader, writer)
        writer.close()

    server = await asyncio.start_server(until_gone, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


async def head(reader: asyncio.StreamReader) -> str:
    """The head of the next request."""
    return (await reader.readuntil(b"\r\n\r\n")).decode()


async def test_a_connection_is_used_again_and_a_request_goes_out_in_one_piece() -> None:
    connections, pieces = 0, []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while piece := await reader.read(65_536):
            pieces.append(piece)
            writer.write(OK)

    async with listening(serve) as address:
        http = EngineHTTP("engine", f"http://{address}/base/v1", None, Patience())
        for _ in range(3):
            await http.post("/path?x=1", {"key": "value"})
        await http.close()
    assert connections == 1
    assert len(pieces) == 3
    assert pieces[0].startswith(b"POST /base/path?x=1 HTTP/1.1\r\nHost: " + address.encode() + b"\r\n")
    assert pieces[0].endswith(b'\r\n\r\n{"key":"value"}')


@pytest.mark.parametrize("answer", [b"", b"no HTTP\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{}"])
async def test_an_answer_that_is_none_or_ends_early_is_the_engines_fault(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await head(reader)
        writer.write(answer)

    async with listening(serve) as address:
        http = EngineHTTP("engine", f"http://{address}", None, Patience())
        with pytest.raises(EngineError, match="broke off") as caught:
            await http.get("/")
        assert caught.value.fault is Fault.ENGINE
        await http.close()


@pytest.fixture
def proxied(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Sets the proxy for all addresses but those of this machine."""

    def set_proxy(address: str) -> None:
        for name in ("http_proxy", "https_proxy"):
            monkeypatch.setenv(name, f"http://user:p%40ss@{address}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.delenv(name, raising=False)

    return set_proxy


async def test_requests_to_other_machines_go_to_the_proxy(proxied: Callable[[str], None]) -> None:
    heads = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await head(reader))
        writer.write(OK)

    async with listening(serve) as address:
        proxied(address)
        http = EngineHTTP("engine", "http://engine.invalid:8000", None, Patience())
        assert await http.get("/v1/models") == {}
        await http.close()
    assert heads[0].startswith("GET http://engine.invalid:8000/v1/models HTTP/1.1\r\nHost: engine.invalid:8000\r\n")
    assert "\r\nProxy-Authorization: Basic dXNlcjpwQHNz\r\n" in heads[0]


async def test_a_proxy_that_does_not_put_through_is_named(proxied: Callable[[str], None]) -> None:
    heads = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await head(reader))
        writer.write(b"HTTP/1.1 403 Forbidden\r\ncontent-length: 0\r\n\r\n")

    async with listening(serve) as address:
        proxied(address)
        http = EngineHTTP("engine", "https://engine.invalid", None, Patience())
        with pytest.raises(EngineError, match="the proxy answers 403") as caught:
            await http.get("/v1/models")
        assert caught.value.type == "engine_gone"
        await http.close()
    assert heads[0].startswith("CONNECT engine.invalid:443 HTTP/1.1\r\n")


@given(st.lists(st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), min_size=1)), st.data())
def test_events_are_the_same_wherever_the_bytes_are_cut(datas: list[str], cuts: st.DataObject) -> None:
    end = cuts.draw(st.sampled_from(["\n", "\r\n"]))
    stream = "".join(f": comment{end}id: 7{end}data: {data}{end}{end}" for data in datas).encode()
    lines, events = EventLines(), []
    while stream:
        size = cuts.draw(st.integers(1, max(1, len(stream))))
        events += lines.feed(stream[:size])
        stream = stream[size:]
    assert events == datas


def test_an_event_of_several_lines_is_one_and_one_that_is_not_whole_is_none() -> None:
    lines = EventLines()
    assert lines.feed(b"data: a\ndata:b\ndata\n\n\n\nevent: x\n\ndata: c\n") == ["a\nb"]
    assert lines.feed(b"\n") == ["c"]


@pytest.mark.parametrize(
    ("url", "key"), [("http://a..b:9", None), (f"http://{'a' * 70}.invalid", None), ("http://user:pass@host", "key")]
)
def test_an_address_that_cannot_be_used_is_refused_at_once(url: str, key: str | None) -> None:
    with pytest.raises(SetupError, match="engine"):
        EngineHTTP("engine", url, key, Patience())


async def test_what_netrc_says_of_a_host_does_not_get_in_the_way_of_its_key(
    proxied: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    heads = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await head(reader))
        writer.write(OK)

    (tmp_path / "netrc").write_text("machine engine.invalid login other password other\n")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    async with listening(serve) as address:
        proxied(address)
        http = EngineHTTP("engine", "http://engine.invalid", "key", Patience())
        assert await http.get("/v1/models") == {}
        await http.close()
    assert "\r\nauthorization: Bearer key\r\n" in heads[0]
