"""Hands what one model finished to the sinks, many requests at a time."""

from __future__ import annotations

import asyncio

from tailcut.observe.recorder import Recorder
from tailcut.observe.sinks import FinishedRequest, Sinks, VariantSwitch

_AT_ONCE = 64
"""Requests that are handed over together: counting in NumPy then takes a fifth of the time of one after the other, and
holds the event loop up for less than a tenth of a millisecond."""


class ModelSinks:
    """Hands what one model finished to its metrics, then to the sinks of the host. Owned by the event loop.

    Attributes:
        metrics: of the model.
    """

    def __init__(self, model: str, others: Sinks | None = None) -> None:
        self.metrics = Recorder()
        self.metrics.flush = self.flush
        self._model = model
        self._others = Sinks() if others is None else others
        self._ended: list[FinishedRequest] = []

    def request(self, request: FinishedRequest) -> None:
        """Take a request that has ended."""
        ended = self._ended
        ended.append(request)
        if len(ended) == _AT_ONCE:
            # In the next turn: the reply of this request goes first.
            asyncio.get_running_loop().call_soon(self.flush)

    def batch(self, rows: int, duration_ns: int) -> None:
        """Take a batch that ran."""
        self.metrics.on_batch(self._model, rows, duration_ns)
        if self._others.all:
            self._others.batch(self._model, rows, duration_ns)

    def switch(self, switch: VariantSwitch) -> None:
        """Take a switch; requests that ended before are handed over first."""
        self.flush()
        self.metrics.on_switch(self._model, switch)
        self._others.switch(self._model, switch)

    def flush(self) -> None:
        """Hand over what has ended; called every 0.1 s, and before the metrics are read."""
        if self._ended:
            ended, self._ended = self._ended, []
            self.metrics.on_requests(self._model, ended)
            self._others.requests(self._model, ended)
