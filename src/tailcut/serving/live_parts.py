"""Gives the live figures what other parts of a host know: drift, kept requests."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from tailcut.observe.drift_sink import DriftSink
from tailcut.observe.live.figures import KeptRequest, RequestDetail
from tailcut.observe.live.live import Live
from tailcut.observe.live.providers import drift_figures, kept_requests, request_detail
from tailcut.observe.traces.kept import Ring
from tailcut.serving.tracing import HostTraces

_REQUESTS_PER_S = 2_000
"""That are looked through: with many traces in memory the list is made less often than once a second."""


def show_parts(live: Live, drift: DriftSink, traces: HostTraces) -> None:
    """Have the live figures show drift, and kept requests where traces are on."""
    live.drift = lambda name: drift_figures(drift.state(name))
    if traces.sink is None:
        return

    def request(key: str) -> RequestDetail | None:
        found = traces.find(key)
        return None if found is None else request_detail(found)

    live.kept, live.request = _KeptRequests(traces.sink.ring), request


class _KeptRequests:
    """The slowest and the failed requests that are held, by model."""

    def __init__(self, ring: Ring, wall_s: Callable[[], float] = time.time) -> None:
        self._ring = ring
        self._wall_s = wall_s
        self._due_s = 0.0
        self._found: Mapping[str, Sequence[KeptRequest]] = {}

    def __call__(self) -> Mapping[str, Sequence[KeptRequest]]:
        now_s = self._wall_s()
        if not 0 <= self._due_s - now_s < 3600:  # a clock that was set back must not stop it
            self._due_s = now_s + len(self._ring) / _REQUESTS_PER_S
            self._found = kept_requests(self._ring, now_s)
        return self._found
