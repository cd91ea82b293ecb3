"""Hands what one model finished to the sinks, many requests at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tailcut.common.tensors import Arrays, Keys
from tailcut.observe.recorder import Recorder
from tailcut.observe.sample import counter
from tailcut.observe.sinks import FinishedBatch, FinishedRequest, Sinks, VariantSwitch

DEVICE_BUSY = counter(
    "tailcut_device_busy_seconds",
    "Seconds in which executors held the device; only for variants that run on a device.",
    "variant",
    "version",
)

_AT_ONCE = 64
"""Requests that are handed over together: counting in NumPy then takes a fifth of the time of one after the other, and
holds the event loop up for less than a tenth of a millisecond."""


class ModelSinks:
    """Hands what one model finished to its metrics, then to the sinks of the host. Owned by the event loop.

    Attributes:
        metrics: of the model.
    """

    def __init__(self, model: str, others: Sinks | None = None, window_s: float = 60.0) -> None:
        self.metrics = Recorder(window_s)
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

    @property
    def wants_batches(self) -> bool:
        """Whether anything wants more of a batch than its rows and duration."""
        return bool(self._others.of_batches)

    def batch(self, batch: FinishedBatch) -> None:
        """Take a batch that ran."""
        self.metrics.on_batch(self._model, batch)
        self._others.batch(self._model, batch)

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


class VariantBatches:
    """Tells the sinks of the batches of one variant, and sums how long they held a device.

    Attributes:
        busy_ns: time of all batches, which a GPU-hour is paid for; executors that share a device count each.
    """

    def __init__(self, variant: str, version: str, sinks: ModelSinks) -> None:
        self._variant, self._version = variant, version
        self._sinks = sinks
        self.busy_ns = 0

    def batch(
        self,
        rows: int,
        duration_ns: int,
        inputs: Sequence[Arrays],
        outputs: Sequence[Arrays],
        entities: Sequence[Keys | None] = (),
    ) -> None:
        """Note a batch that ran."""
        self.busy_ns += duration_ns
        if not self._sinks.wants_batches:
            self._sinks.metrics.count_batch(rows, duration_ns)
            return
        self._sinks.batch(FinishedBatch(self._variant, self._version, rows, duration_ns, inputs, outputs, entities))
