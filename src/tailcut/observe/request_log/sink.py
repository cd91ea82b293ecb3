"""The sink that writes requests to files: a bounded queue, and one thread that makes records and writes them."""

from __future__ import annotations

import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, cast

from tailcut.common.extras import install
from tailcut.errors import MissingExtra
from tailcut.manifest import Deployment, Manifest
from tailcut.observe.request_log.capture import Capture, Sampler
from tailcut.observe.request_log.files import Convert, Converter, LogFiles
from tailcut.observe.request_log.record import EndedRequest, RecordWriter
from tailcut.observe.request_log.values import Redaction, read_key
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.observe.sinks import FinishedRequest, Sink
from tailcut.system.worker_thread import WorkerThread

log = logging.getLogger("tailcut.server")

WRITTEN = counter("tailcut_request_log_written", "Requests that the request log has written.")
DROPPED = counter(
    "tailcut_request_log_dropped",
    "Sampled requests that the request log has not written: queue (its thread is too slow), disk (full or read-only) "
    "or record (a value that cannot be written).",
    "reason",
)
SIZE = gauge("tailcut_request_log_size_bytes", "Size of the model's request log files.")

_MOST_WAITING = 4096
_MOST_BYTES = 64 << 20
"""Records that wait for the thread, and their memory: what comes beyond is dropped and counted."""

_AT_ONCE = 512
_AT_ONCE_BYTES = 256 << 10
"""Records that the thread takes together, and bytes of lines that are written together."""

_WAIT_S = 1.0
"""Between two looks at the age of the file where nothing is to be written."""

_CONVERT_S = 1.0
"""In the end, for small files."""

_SECTIONS = ("inputs", "rows", "entities", "outputs", "predictions", "tenant", "request_id", "trace")


class _Served(Protocol):
    version: str


class _Logged(FinishedRequest, Protocol):
    """The part of ``RequestContext`` that is written."""

    logged: Capture
    served: _Served | None
    priority: int
    request_id: str
    deadline_ns: int
    asked_ns: int


class RequestLog(Sink):
    """Writes the sampled requests of one model; nothing of it blocks the event loop.

    Args:
        manifest: of the model; its ``request_log.path`` is not empty.
        wall_ns, clock_ns: the time of day, and the clock of the requests' timings.

    Attributes:
        sampler: draws the requests; those that it draws have a ``Capture``.
        written: records on the disk.
        dropped: records that are not, by reason: "queue" (the thread is too slow), "disk", or "record" (a value that
            cannot be written).

    Raises:
        StartError: the key of the hashes cannot be read; MissingExtra: the format's package is missing.
    """

    def __init__(
        self,
        manifest: Manifest,
        *,
        wall_ns: Callable[[], int] = time.time_ns,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        section = manifest.deployment.request_log
        self._model = manifest.deployment.name
        self.folder = manifest.directory / section.path
        key = read_key(section.hash_key, manifest.directory) if section.hash else b""
        run = f"{os.getpid()}-{secrets.token_hex(4)}"
        redaction = Redaction(section.hash, section.drop, key)
        self._records = RecordWriter(manifest.deployment, redaction, run, wall_ns(), clock_ns())
        self._converter = Converter(_parquet(), time.monotonic) if section.format == "parquet" else None
        self._files = LogFiles(
            self.folder, self._model, section, wall_ns=wall_ns, clock_s=time.monotonic, converter=self._converter
        )
        self.sampler = Sampler(float(section.share))
        self.written = 0
        self.dropped: Counter[str] = Counter(queue=0, disk=0, record=0)
        self._told = False
        self._worker: WorkerThread[EndedRequest] = WorkerThread(
            "tailcut-request-log",
            self._write,
            "requests are missing in the request log",
            most=_MOST_WAITING,
            most_bytes=_MOST_BYTES,
            at_once=_AT_ONCE,
            every_s=_WAIT_S,
            begin=self._files.start,
            end=self._files.rotate,
        )
        _tell_unknown(manifest.deployment)

    def start(self) -> None:
        """Start to write."""
        if self._converter is not None:
            self._converter.start()
        self._worker.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, for a bounded time; it blocks. Large files are left to the next start to convert."""
        until_s = time.monotonic() + timeout_s
        self._worker.close(timeout_s)
        if self._converter is not None:
            self._converter.close(min(max(until_s - time.monotonic(), 0.0), _CONVERT_S))

    def on_requests(self, model: str, requests: Sequence[FinishedRequest]) -> None:
        """Queue the requests that were sampled."""
        if model != self._model:
            return
        for each in requests:
            if getattr(each, "logged", None) is not None:
                ended = _ended(cast(_Logged, each))
                self.dropped["queue"] += not self._worker.put(ended, size_bytes=ended.capture.size_bytes)

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows."""
        yield WRITTEN(float(self.written))
        for reason, count in self.dropped.items():
            yield DROPPED(float(count), reason)
        yield SIZE(float(self._files.size_bytes))

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _write(self, ended: Sequence[EndedRequest]) -> None:
        lines: list[bytes] = []
        size_bytes = 0
        for each in ended:
            line = self._line(each)
            lines += [line] if line else []
            size_bytes += len(line)
            if size_bytes >= _AT_ONCE_BYTES:
                self._append(lines)
                lines, size_bytes = [], 0
        if lines:
            self._append(lines)
        self._files.tick()

    def _append(self, lines: Sequence[bytes]) -> None:
        done = self._files.write(lines)
        self.written += done
        self.dropped["disk"] += len(lines) - done

    def _line(self, ended: EndedRequest) -> bytes:
        """Return a record; empty where a value cannot be written, which is logged once."""
        try:
            return self._records.line(ended)
        except Exception as error:  # of values that a user's hook made
            self.dropped["record"] += 1
            if not self._told:
                self._told = True
                log.warning("request log: a record cannot be written, later ones are only counted: %s", error)
            return b""


def _ended(request: _Logged) -> EndedRequest:
    timings = request.timings
    return EndedRequest(
        route=request.route,
        code=request.code,
        variant=request.variant,
        version="" if request.served is None else request.served.version,
        cache=request.cache,
        tenant=request.tenant,
        priority=request.priority,
        request_id=request.request_id,
        start_ns=timings.start_ns,
        total_ns=timings.total_ns,
        deadline_ns=request.deadline_ns - timings.start_ns,
        asked_ns=request.asked_ns,
        stages_ns=timings.ns,
        capture=request.logged,
    )


def _parquet() -> Convert:
    try:
        from tailcut.observe.request_log import parquet
    except ImportError as error:
        raise MissingExtra(
            "request_log.format is 'parquet', but pyarrow is not installed",
            hint=f"{install('pyarrow')}, or set request_log.format = 'jsonl'",
        ) from error
    return parquet.convert


def _tell_unknown(deployment: Deployment) -> None:
    """Tell the operator of names that are no field of the manifest: a slip of the pen would show what is to be hid."""
    section, model = deployment.request_log, deployment.model
    known = {*_SECTIONS, *deployment.features.entity, *(each.name for each in model.fields)}
    for tensor in (*model.inputs, *model.outputs):
        known |= {tensor.name, *tensor.columns}
    unknown = [name for name in (*section.hash, *section.drop) if name.rpartition(".")[2] not in known]
    if unknown:
        log.warning(
            "request_log.hash and drop name %s, which the manifest does not know: only requests with such a field are "
            "affected, so check the spelling",
            ", ".join(unknown),
            extra={"model": deployment.name},
        )
