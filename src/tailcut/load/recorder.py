"""What happened to each request, in preallocated arrays: an assignment per event while the load runs."""

from __future__ import annotations

import re
from array import array
from enum import IntEnum

import numpy as np

from tailcut.common.slo import CLIENT_STATUSES, Objectives, Tally
from tailcut.load.arrivals import Offsets
from tailcut.load.samples import Samples

_MAX_NAMES = 64
_MAX_BODIES = 5
_BODY_BYTES = 300
_DESCRIPTION = re.compile(rb"""\s*;\s*desc\s*=\s*(?:"(?:[^"\\]|\\.)*"|[^;,\s]*)""", re.IGNORECASE)
_DURATION = re.compile(rb"\s*([^;\s]+)\s*;\s*dur\s*=\s*\"?([\d.eE+-]+)\"?", re.IGNORECASE)


class LoadFailure(IntEnum):
    """Why a request has no HTTP status. Stored in the place of one, hence negative."""

    CONNECT = -1
    EOF = -2
    TIMEOUT = -3
    PROTOCOL = -4
    ABORTED = -5


class LoadRecorder:
    """The record of one run. Request ``i`` is the one with the i-th intended time.

    Args:
        offsets: intended send times, ns from the start, ascending, shape [n].
        measured_from_ns: requests intended before it are warm-up.
        objectives: what is counted while the run goes on, so that a hopeless run can be ended.
    """

    def __init__(self, offsets: Offsets, measured_from_ns: int, objectives: Objectives) -> None:
        count = int(offsets.size)
        self.count = count
        self.intended = array("q", offsets.tobytes())
        self.sent = array("q", bytes(8 * count))
        self.done = array("q", bytes(8 * count))
        self.status = array("h", bytes(2 * count))
        self.cache = array("b", bytes(count))
        self.stages: dict[bytes, array[float]] = {}
        self.cache_names: dict[bytes, int] = {b"": 0}
        self.bodies: dict[int, str] = {}
        self.measured_from_ns = measured_from_ns
        self.first_measured = int(np.searchsorted(offsets, measured_from_ns))
        self.limits_ns = tuple(one.limit_ns for one in objectives.latency)
        self.tally = Tally(planned=count - self.first_measured, failed=0, late=[0] * len(self.limits_ns))
        self.finished = 0
        self.delayed_by_cap = 0
        self.connections_opened = 0
        self.sent_again = 0
        self.max_outstanding = 0
        self.start_ns = 0

    def finish(self, index: int, status: int, now_ns: int) -> None:
        """Record the end of a request: an HTTP status or a ``LoadFailure``."""
        self.done[index] = now_ns
        self.status[index] = status
        self.finished += 1
        if index < self.first_measured:
            return
        if status in CLIENT_STATUSES:
            self.tally.planned -= 1
            return
        answered = 200 <= status < 300
        if not answered:
            self.tally.failed += 1
        latency_ns = now_ns - self.start_ns - self.intended[index]
        for place, limit_ns in enumerate(self.limits_ns):
            if not answered or latency_ns > limit_ns:
                self.tally.late[place] += 1

    def server_timing(self, index: int, value: bytes) -> None:
        """Take in a Server-Timing header. Source: https://www.w3.org/TR/server-timing/."""
        if b"desc" in value:
            value = _DESCRIPTION.sub(b"", value)
        for part in value.split(b","):
            name, _, duration = part.partition(b";dur=")
            if not duration:
                name, duration = _loose(part)
            column = self.stages.get(name.strip())
            if column is None:
                column = self._new_stage(name.strip())
                if column is None:
                    continue
            try:
                column[index] = float(duration)
            except ValueError:
                continue

    def cache_outcome(self, index: int, value: bytes) -> None:
        """Take in an X-Tailcut-Cache header."""
        code = self.cache_names.get(value)
        if code is None:
            code = len(self.cache_names)
            if code >= _MAX_NAMES:
                return
            self.cache_names[value] = code
        self.cache[index] = code

    def failed_body(self, status: int, body: bytes) -> None:
        """Keep the first answer of each failing status: it usually says what is wrong."""
        if status not in self.bodies and len(self.bodies) < _MAX_BODIES:
            self.bodies[status] = body[:_BODY_BYTES].decode("utf-8", "replace")

    def tally_now(self, now_ns: int, oldest_unfinished: int) -> Tally:
        """Count what is lost so far, requests that still wait beyond a limit included."""
        waited_ns = now_ns - self.start_ns
        late = list(self.tally.late)
        for index in range(max(oldest_unfinished, self.first_measured), self.count):
            age_ns = waited_ns - self.intended[index]
            if age_ns <= 0:
                break
            if not self.done[index]:
                for place, limit_ns in enumerate(self.limits_ns):
                    late[place] += age_ns > limit_ns
        return Tally(planned=self.tally.planned, failed=self.tally.failed, late=late)

    def samples(self) -> Samples:
        """Hand out everything as arrays; times count from the run's start."""
        done = np.frombuffer(self.done, dtype=np.int64)
        sent = np.frombuffer(self.sent, dtype=np.int64)
        names = [name.decode("latin-1") for name in self.cache_names]
        return Samples(
            intended_ns=np.frombuffer(self.intended, dtype=np.int64),
            sent_ns=np.where(sent > 0, sent - self.start_ns, -1),
            done_ns=np.where(done > 0, done - self.start_ns, -1),
            status=np.frombuffer(self.status, dtype=np.int16),
            cache=np.frombuffer(self.cache, dtype=np.int8),
            cache_names=tuple(names),
            stages_ms={
                name.decode("latin-1"): np.frombuffer(column, dtype=np.float32) for name, column in self.stages.items()
            },
            measured_from_ns=self.measured_from_ns,
        )

    def _new_stage(self, name: bytes) -> array[float] | None:
        if not name or len(self.stages) >= _MAX_NAMES:
            return None
        column = self.stages[name] = array("f", np.full(self.count, np.nan, np.float32).tobytes())
        return column


def _loose(part: bytes) -> tuple[bytes, bytes]:
    """Name and duration of a metric that is written with spaces or quotes; a name alone has no duration to record."""
    match = _DURATION.match(part)
    return (match[1], match[2]) if match else (b"", b"")
