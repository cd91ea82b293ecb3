"""Requests in flight, or parsed but not started."""

from __future__ import annotations

from collections.abc import Sized


class InFlight:
    """As long as there are requests.

    Attributes:
        coming: requests that the HTTP server has read, whose handling begins within this turn of the event loop.
    """

    __slots__ = ("_in_flight", "coming")

    def __init__(self, in_flight: Sized) -> None:
        self._in_flight = in_flight
        self.coming = 0

    def __len__(self) -> int:
        return len(self._in_flight) + self.coming
