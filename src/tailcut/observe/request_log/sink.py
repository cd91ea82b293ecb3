"""The sink that writes requests to files: a bounded queue, and one thread that makes records and writes them.

Files are appended to, rotated by size and age, and the oldest deleted. A file is locked (flock) while it is written, so
that other processes with the same folder neither delete nor convert it. A kill leaves whole lines and maybe a torn last
one: of .jsonl a part of a line, of .jsonl.gz a part of a member of the file (each write is a gzip member of its own,
RFC 1952, 2.2).
"""

from __future__ import annotations

import fcntl
import gzip
import logging
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tailcut.common.extras import install
from tailcut.errors import MissingExtra
from tailcut.manifest import Deployment, Manifest
from tailcut.manifest import RequestLogSettings as Section
from tailcut.observe.request_log.capture import Sampler
from tailcut.observe.request_log.record import EndedRequest, RecordWriter, Redaction, read_key
from tailcut.observe.sample import Sample, counter, gauge
from tailcut.observe.sinks import FinishedRequest, Sink
from tailcut.system.worker_thread import WorkerThread

log = logging.getLogger("tailcut.server")


_MOST_FILES = 1024
"""Files that wait; further ones are left to the next start."""
_SMALL_BYTES = 1 << 20
"""A file up to this size is converted in the end, too."""

Pause = Callable[[float], object]
Convert = Callable[[Path, Pause], Path]
"""Turns a complete .jsonl file into another one, deletes it, and returns the other; raises OSError, and what pausing
raises. The second argument is called between parts of the work with the seconds to leave to others."""


class _Ended(Exception):
    """The end of the process does not wait for this file."""


class Converter:
    """Converts one file after the other, in a thread of its own.

    Args:
        clock_s: a clock that never goes back.

    Attributes:
        converted: files, so far.
    """

    def __init__(self, convert: Convert, clock_s: Callable[[], float]) -> None:
        self.converted = 0
        self._convert = convert
        self._clock_s = clock_s
        self._until_s = float("inf")
        self._size_bytes = 0
        self._worker = WorkerThread(
            "tailcut-request-log-parquet", self._take, "a file of the request log stays as it is", most=_MOST_FILES
        )

    def start(self) -> None:
        """Start the thread."""
        self._worker.start()

    def offer(self, path: Path) -> None:
        """Have a complete file converted; one that is none is left alone."""
        if path.suffix == ".jsonl":
            self._worker.put(path)

    def close(self, timeout_s: float) -> None:
        """Convert the small files that wait, for at most ``timeout_s``; the others are left to the next start."""
        self._until_s = self._clock_s() + timeout_s
        self._worker.close(timeout_s)

    # -- Of the thread -----------------------------------------------------------------------------------------------

    def _take(self, paths: Sequence[Path]) -> None:
        for path in paths:
            self._convert_one(path)

    def _convert_one(self, path: Path) -> None:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return  # deleted, because the files are too large together
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._size_bytes = os.fstat(file).st_size
            self._pause(0.0)
            self._convert(path, self._pause)
            self.converted += 1
        except (BlockingIOError, FileNotFoundError, _Ended):
            pass  # another process writes it, or has converted it; or it stays for the next start
        except Exception as error:  # of the format's package; the lines are still there
            log.warning("request log: %s stays as it is, it cannot be converted: %s", path, error)
        finally:
            os.close(file)

    def _pause(self, seconds: float) -> None:
        """Leave the interpreter to others; raises ``_Ended`` where the end is near."""
        if self._worker.closing.wait(seconds) and (self._size_bytes > _SMALL_BYTES or self._clock_s() >= self._until_s):
            raise _Ended


_FORM = r"-\d{8}T\d{6}Z-[0-9a-f]{8}-\d{6}\.(jsonl|jsonl\.gz|parquet)"
_RETRY_S = 1.0
"""Between two tries to open a file where none can be written."""


def names_of(model: str = "") -> re.Pattern[str]:
    """Return the pattern of the names of a model's files; of any model's where it is empty."""
    return re.compile((re.escape(model) if model else r"[A-Za-z0-9_.-]+") + _FORM)


class LogFiles:
    """Appends lines to files of a folder. One thread owns them.

    Args:
        folder: made where it is not there, readable by its owner only.
        model: name of the model, and begin of the files' names.
        section: sizes, ages and the format.
        wall_ns: the time of day, for names.
        clock_s: a clock that never goes back, for ages.
        converter: takes complete files; None where they stay as they are.

    Attributes:
        size_bytes: of all files of the model, as of the last rotation or conversion and what was written since.
    """

    def __init__(
        self,
        folder: Path,
        model: str,
        section: Section,
        *,
        wall_ns: Callable[[], int],
        clock_s: Callable[[], float],
        converter: Converter | None = None,
    ) -> None:
        self._folder = folder
        self._model = model
        self._names = names_of(model)
        self._rotate_bytes, self._rotate_age_s = int(section.rotate_size_bytes), float(section.rotate_age_s)
        self._keep_bytes = int(section.keep_bytes)
        self._packed = section.format == "jsonl.gz"
        self._wall_ns, self._clock_s = wall_ns, clock_s
        self._converter = converter
        self._converted = 0
        self._id = secrets.token_hex(4)
        self._number = 0
        self._file = -1
        self._path = Path()
        self._written_bytes = 0
        self._begun_s = 0.0
        self._retry_s = float("-inf")
        self._failing = 0
        self.size_bytes = 0

    def start(self) -> None:
        """Take over what an earlier process left: hand on what it did not convert, and keep the bound on the size."""
        if not self._folder.exists():
            return
        try:
            for path in self._listed():
                self._complete(path)
            self._prune()
        except OSError as error:
            self._failed(error, 0)

    def write(self, lines: Sequence[bytes]) -> int:
        """Append lines, all or none of them; returns how many were written. Never raises OSError."""
        data = b"".join(lines)
        if self._packed:
            data = gzip.compress(data, 6, mtime=0)
        try:
            if self._file >= 0 and self._written_bytes and self._written_bytes + len(data) > self._rotate_bytes:
                self.rotate()
            if self._file < 0 and not self._open():
                self._failing += len(lines)
                return 0
            self._append(data)
        except OSError as error:
            self._failed(error, len(lines))
            return 0
        if self._failing:
            log.warning(
                "request log: dropped %d records while %s could not be written", self._failing - 1, self._folder
            )
            self._failing = 0
        return len(lines)

    def tick(self) -> None:
        """Complete a file that has reached its age, or that was deleted; see what became smaller by a conversion."""
        if self._file >= 0 and not os.fstat(self._file).st_nlink:
            os.close(self._file)
            self._file = -1
            self._keep_bound(self._folder)
        if self._file >= 0 and self._clock_s() - self._begun_s >= self._rotate_age_s:
            self.rotate()
        if self._converter is not None and self._converted != self._converter.converted:
            self._converted = self._converter.converted
            self._keep_bound(self._folder)

    def rotate(self) -> None:
        """Complete the file that is written, if there is one."""
        if self._file < 0:
            return
        path = self._path
        os.close(self._file)
        self._file = -1
        self._complete(path)
        self._keep_bound(path)

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _open(self) -> bool:
        """Begin a file; False where that failed a moment ago."""
        now_s = self._clock_s()
        if now_s < self._retry_s:
            return False
        self._retry_s = now_s + _RETRY_S
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._prune()
        self._number += 1
        moment = datetime.fromtimestamp(self._wall_ns() / 1e9, UTC).strftime("%Y%m%dT%H%M%SZ")
        suffix = "jsonl.gz" if self._packed else "jsonl"
        path = self._folder / f"{self._model}-{moment}-{self._id}-{self._number:06}.{suffix}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)
        with suppress(OSError):  # some file systems have no locks: another process may then delete the file early
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file, self._path, self._written_bytes, self._begun_s = file, path, 0, now_s
        self._retry_s = float("-inf")
        return True

    def _append(self, data: bytes) -> None:
        written = 0
        try:
            while written < len(data):
                written += os.write(self._file, data[written:])
        except OSError:
            if written:
                self._cut()
            raise
        self._written_bytes += len(data)
        self.size_bytes += len(data)

    def _cut(self) -> None:
        """Take back a part of a write; where that fails, too, the file ends here."""
        try:
            os.ftruncate(self._file, self._written_bytes)
        except OSError:
            os.close(self._file)
            self._file = -1

    def _complete(self, path: Path) -> None:
        if self._converter is not None:
            self._converter.offer(path)

    def _keep_bound(self, at: Path) -> None:
        try:
            self._prune()
        except OSError as error:
            log.warning("request log: files of %s cannot be deleted: %s", at, error.strerror)

    def _listed(self) -> list[Path]:
        """Return the model's files, the oldest first."""
        found = [path for path in self._folder.iterdir() if self._names.fullmatch(path.name)]
        return sorted(found, key=lambda path: path.name.removeprefix(self._model))

    def _prune(self) -> None:
        """Delete the oldest files, as far as there is no room for one more of full size."""
        sizes = {}
        with suppress(FileNotFoundError):
            for path in self._listed():
                with suppress(FileNotFoundError):
                    sizes[path] = path.stat().st_size
        for path in [each for each in sizes if each.suffix == ".jsonl" and each.with_suffix(".parquet") in sizes]:
            del sizes[path]  # it was converted, and is about to be deleted
        total = sum(sizes.values())
        for path, size in sizes.items():
            if total + self._rotate_bytes <= self._keep_bytes:
                break
            if not _is_locked(path):
                path.unlink(missing_ok=True)
                total -= size
        self.size_bytes = total

    def _failed(self, error: OSError, lines: int) -> None:
        if not self._failing:
            log.error(
                "the request log in %s cannot be written: %s; its records are dropped meanwhile; free space, or set "
                "request_log.path to a folder that can be written",
                self._folder,
                error.strerror or error,
            )
            self._failing = 1
        self._failing += lines


def _is_locked(path: Path) -> bool:
    """Whether a process writes a file."""
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


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
                ended = _ended(each)
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


def _ended(request: Any) -> EndedRequest:
    """Return what is logged of a ``RequestContext``."""
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
