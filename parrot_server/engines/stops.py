"""Stop strings: the text up to the first of them, whatever the pieces it comes in."""

from __future__ import annotations

from collections.abc import Sequence


class StopFilter:
    """Cuts a stream of text at the first stop string, and gives out nothing that could turn out to be part of one.

        out = stops.feed(piece)      # what may be given out now; "" while it could still become a stop string
        if stops.fired is not None:  # the stream is over
        out = stops.flush()          # at the stream's own end: what was held back

    Of several stop strings the one that is complete first wins, and of those that end together the longest, so the
    outcome does not depend on how the text was cut into pieces.

    Args:
        stops: the stop strings, none of them empty.
        keep: whether the stop string itself belongs to the text.

    Raises:
        ValueError: a stop string is empty.
    """

    def __init__(self, stops: Sequence[str], keep: bool = False) -> None:
        if "" in stops:
            raise ValueError("a stop string must not be empty")
        self.fired: str | None = None
        self._stops = tuple(stops)
        self._keep = keep
        self._held = ""

    def feed(self, text: str) -> str:
        """Take a piece, return what may be given out. After a stop string has fired everything is swallowed."""
        if self.fired is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        ends = [(begin + len(stop), begin, stop) for stop in self._stops if (begin := text.find(stop)) >= 0]
        if ends:
            end, begin, self.fired = min(ends)
            self._held = ""
            return text[: end if self._keep else begin]
        held = self._could_begin_a_stop(text)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def flush(self) -> str:
        """Return what was held back: the stream has ended without becoming the stop string it looked like."""
        held, self._held = self._held, ""
        return held

    def _could_begin_a_stop(self, text: str) -> int:
        """The length of the longest end of `text` with which some stop string begins."""
        longest = max(map(len, self._stops)) - 1
        for length in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stops):
                return length
        return 0
