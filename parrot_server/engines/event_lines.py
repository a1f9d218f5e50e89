"""Server-sent events from bytes that may be cut anywhere."""

from __future__ import annotations


class EventLines:
    """Takes a stream's bytes; gives the data of each event that has become whole. Other fields than data are of no use to us.

    Source: WHATWG HTML Living Standard, "Server-sent events", 9.2.6; without lone CR as line end, which no server sends.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[str] = []

    def feed(self, piece: bytes) -> list[str]:
        """The data of the events that end in this piece."""
        *lines, self._rest = (self._rest + piece).split(b"\n")
        events: list[str] = []
        for raw in lines:
            line = raw.removesuffix(b"\r")
            if line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" ").decode("utf-8", "replace"))
            elif not line and self._data:
                if data := "\n".join(self._data):
                    events.append(data)
                self._data.clear()
        return events
