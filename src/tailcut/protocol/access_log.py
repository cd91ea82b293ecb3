"""The access log: a line of JSON for a share of all requests, and for each that failed or was slow.

No bodies and no tokens: a line has what a reply's own headers say. It is written by a thread, so that a slow disk or a
full pipe holds no request up; lines that it cannot keep up with are dropped and counted.
"""

from __future__ import annotations

import logging
import os
import random
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from time import perf_counter_ns
from typing import Any, BinaryIO

import msgspec

from tailcut.errors import StartError
from tailcut.manifest.host import HostManifest
from tailcut.protocol.http import REQUEST_ID, Body, Chunks, HeaderMap, Reply, clipped, request_id, traceparent
from tailcut.system.worker_thread import WorkerThread

log = logging.getLogger("tailcut.server")

_WAITING_LINES, _LINES_AT_ONCE = 10_000, 100
_CLOSE_S = 2.0
_MODEL = re.compile(r"/(?:v2(?:/repository)?/models|predict)/([^/]+)")
_SLOW_NS = 1_000_000_000
"""Where no model says what is slow."""
_FROM_REPLY = {
    "x-tailcut-variant": "variant",
    "x-tailcut-version": "version",
    "x-tailcut-cache": "cache",
    "server-timing": "timing",
    REQUEST_ID: "request_id",
}


class AccessLog:
    """Logs what another answers.

    Args:
        sample: returns a number from 0 to below 1.

    Raises:
        StartError: the file cannot be written.
    """

    def __init__(
        self,
        handle: Callable[[str, str, HeaderMap, Body], Awaitable[Reply]],
        manifest: HostManifest,
        sample: Callable[[], float] = random.random,
    ) -> None:
        server = manifest.server
        self._handle = handle
        self._only = manifest.name if manifest.is_single else ""
        self._sample = sample
        self._share = float(server.access_log_share)
        self._slow_ns = {
            hosted.name: int(float(server.access_log_slow_s or slo.p99_s or slo.timeout_s) * 1e9)
            for hosted in manifest.models
            if hosted.manifest is not None and (slo := hosted.manifest.deployment.slo)
        }
        self._usual_slow_ns = max(self._slow_ns.values(), default=_SLOW_NS)
        self._encode = msgspec.json.Encoder().encode
        self._dropped = 0
        file = _opened(manifest, server.access_log)
        self._lines: WorkerThread[bytes] = WorkerThread(
            "tailcut-access-log",
            _Writer(file).write,
            "lines of the access log are lost",
            most=_WAITING_LINES,
            at_once=_LINES_AT_ONCE,
            end=file.close,
        )
        self._lines.start()

    async def handle(self, method: str, path: str, headers: HeaderMap, body: Body) -> Reply:
        """Answer one request and log it, if it is one of those; one that is answered in parts when it ends."""
        started_ns = perf_counter_ns()
        reply = await self._handle(method, path, headers, body)
        if reply.chunks is not None:

            def ended(size_bytes: int, failure: Mapping[str, str] | None) -> None:
                took_ns = perf_counter_ns() - started_ns
                model = self._model_of(path)
                if self.wants(model, took_ns, failed=failure is not None):
                    self.write(
                        model,
                        method,
                        path,
                        reply.status,
                        took_ns,
                        size_bytes,
                        headers,
                        reply.headers,
                        failure,
                    )

            reply.chunks = _Counted(reply.chunks, ended)
            return reply
        took_ns = perf_counter_ns() - started_ns
        model = self._model_of(path)
        if self.wants(model, took_ns, failed=reply.status >= 400):
            error = _error(reply.body) if reply.status >= 400 else None
            self.write(model, method, path, reply.status, took_ns, len(reply.body), headers, reply.headers, error)
        return reply

    def _model_of(self, path: str) -> str:
        """Return whose request it is by its path; empty where it is no model's."""
        if self._only:
            return self._only
        found = _MODEL.match(path)
        return clipped(found[1]) if found is not None else ""

    def wants(self, model: str, took_ns: int, *, failed: bool) -> bool:
        """Return whether a request is one of those that are logged."""
        slow_ns = self._slow_ns.get(model, self._usual_slow_ns)
        return failed or took_ns >= slow_ns or self._sample() < self._share

    def close(self) -> None:
        """Write what waits, for a bounded time."""
        self._lines.close(_CLOSE_S)

    def write(
        self,
        model: str,
        method: str,
        path: str,
        status: int | str,
        took_ns: int,
        size_bytes: int,
        headers: HeaderMap,
        said: Iterable[tuple[str, str]],
        error: object = None,
    ) -> None:
        """Hand a line to the thread that writes.

        Args:
            model: whose request it is; empty where it is none's.
            size_bytes: of the reply's body.
            headers: of the request.
            said: headers of the reply.
            error: code and incident of a request that failed.
        """
        line: dict[str, Any] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": "info" if error is None else "warning",
            "logger": "tailcut.access",
            "message": f"{clipped(method)} {clipped(path)} {status}",
            "model": model,
            "method": clipped(method),
            "path": clipped(path),
            "status": status,
            "ms": round(took_ns / 1e6, 3),
            "bytes": size_bytes,
            "trace": traceparent(headers),
        }
        if named := request_id(headers):
            line["request_id"] = named
        line.update((_FROM_REPLY[name], value) for name, value in said if name in _FROM_REPLY)
        if error is not None:
            line["error"] = error
        if self._dropped:
            line["dropped_before"] = self._dropped
        self._dropped = 0 if self._lines.put(self._encode(line) + b"\n") else self._dropped + 1


class _Counted:
    """A body that is made while it is sent, and tells its size and how it ended when it is closed."""

    def __init__(self, chunks: Chunks, ended: Callable[[int, Mapping[str, str] | None], None]) -> None:
        self._chunks = chunks
        self._made = aiter(chunks)
        self._ended = ended
        self._size_bytes = 0
        self.left_s = chunks.left_s

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        chunk = await anext(self._made)
        self._size_bytes += len(chunk)
        return chunk

    async def aclose(self) -> None:
        try:
            await self._chunks.aclose()
        finally:
            self._ended(self._size_bytes, self._chunks.failure)

    @property
    def failure(self) -> Mapping[str, str] | None:
        return self._chunks.failure


def _error(body: bytes) -> Any:
    """Return an error's code and incident; its message may quote what the client sent."""
    try:
        said = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return None
    if not isinstance(said, dict):
        return None
    return {name: said[name] for name in ("code", "incident") if name in said}


def check_log(manifest: HostManifest) -> None:
    """Refuse an access log that cannot be written; raises StartError."""
    where = manifest.server.access_log
    if where:
        _opened(manifest, where).close()


def _opened(manifest: HostManifest, where: str) -> BinaryIO:
    if where == "stderr":
        # A file of its own on the same descriptor: a buffered write of another thread cannot come between.
        return os.fdopen(os.dup(sys.stderr.fileno()), "wb", buffering=0)
    try:
        return (manifest.directory / where).open("ab", buffering=0)
    except OSError as error:
        raise StartError(
            f"the access log {manifest.directory / where} cannot be written: {error.strerror}",
            hint="set server.access_log to 'stderr', or to a file in an existing folder",
        ) from error


class _Writer:
    """Writes lines, in a thread. While the file takes none, on a full disk say, they are lost, and it says how many."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._lost = 0
        self._cut = False

    def write(self, lines: Sequence[bytes]) -> None:
        """Write lines, one by one: a pipe takes each whole or not at all."""
        for line in lines:
            self._write(line)

    def _write(self, line: bytes) -> None:
        reason = "it takes a part of a line only"
        data = b"\n" + line if self._cut else line
        try:
            written = self._file.write(data) or 0
        except OSError as error:
            written, reason = 0, error.strerror or type(error).__name__
        self._cut = (self._cut and not written) or 0 < written < len(data)
        if written < len(data):
            self._lost += 1
            if self._lost == 1:
                log.error("the access log cannot be written: %s; its lines are dropped meanwhile", reason)
        elif self._lost:
            log.warning("access log: dropped %d lines while it could not be written", self._lost)
            self._lost = 0
