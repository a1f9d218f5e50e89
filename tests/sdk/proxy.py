"""A TCP proxy that does to connections what networks do: cut answers into bytes, and break them off."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

Deliver = Callable[[int, Iterator[bytes], Callable[[bytes], None]], None]
"""Gets the number of the connection, the pieces of its answer, and what sends a piece on; returning breaks it off."""


def byte_by_byte(number: int, pieces: Iterator[bytes], send: Callable[[bytes], None]) -> None:
    """Every byte in a packet of its own."""
    for piece in pieces:
        for at in range(len(piece)):
            send(piece[at : at + 1])


def plainly(number: int, pieces: Iterator[bytes], send: Callable[[bytes], None]) -> None:
    """As it comes."""
    for piece in pieces:
        send(piece)


def breaking(connections: Collection[int], after_bytes: int) -> Deliver:
    """These connections, counted from 0, break off after so many bytes of their answers."""

    def deliver(number: int, pieces: Iterator[bytes], send: Callable[[bytes], None]) -> None:
        left = after_bytes if number in connections else 1 << 60
        for piece in pieces:
            send(piece[:left])
            left -= len(piece)
            if left <= 0:
                return

    return deliver


@contextmanager
def proxy(url: str, deliver: Deliver, port: int = 0) -> Iterator[str]:
    """Stand before a server; yields the proxy's URL."""
    host, _, server_port = url.removeprefix("http://").rpartition(":")
    listener = socket.create_server(("127.0.0.1", port))
    sockets: list[socket.socket] = [listener]
    threads: list[threading.Thread] = []

    def forward(number: int, client: socket.socket) -> None:
        server = socket.create_connection((host, int(server_port)))
        server.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sockets.extend((client, server))
        requests = threading.Thread(target=copy, args=(client, server))
        requests.start()
        with contextlib.suppress(OSError):
            deliver(number, received(server), client.sendall)
        for side in (client, server):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)
        requests.join()

    def copy(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            for piece in received(source):
                target.sendall(piece)
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def received(source: socket.socket) -> Iterator[bytes]:
        with contextlib.suppress(OSError):
            while piece := source.recv(65536):
                yield piece

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=forward, args=(len(threads), client)))
                threads[-1].start()

    accepting = threading.Thread(target=accept)
    accepting.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        for each in sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()
        for thread in (accepting, *threads):
            thread.join(10)
