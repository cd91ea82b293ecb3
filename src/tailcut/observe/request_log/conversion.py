"""Converts complete files in a thread of its own: a file of 64 MiB takes seconds, and records come meanwhile."""

from __future__ import annotations

import fcntl
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

log = logging.getLogger("tailcut.server")

_MOST_FILES = 1024
"""Files that wait; of more, the oldest are left to the next start."""
_SMALL_BYTES = 1 << 20
"""A file up to this size is converted in the end, too."""

Pause = Callable[[float], object]
Convert = Callable[[Path, Pause], Path]
"""Turns a complete .jsonl file into another one, deletes it, and returns the other; raises OSError, and what pausing
raises. The second argument is called between parts of the work with the seconds to leave to others."""


class _Ended(Exception):
    """The end of the process does not wait for this file."""


class Converter:
    """Converts one file after the other. ``offer`` may be called by any thread.

    Args:
        clock_s: a clock that never goes back.

    Attributes:
        converted: files, so far.
    """

    def __init__(self, convert: Convert, clock_s: Callable[[], float]) -> None:
        self.converted = 0
        self._convert = convert
        self._clock_s = clock_s
        self._waiting: deque[Path] = deque(maxlen=_MOST_FILES)
        self._offered = threading.Event()
        self._closing = threading.Event()
        self._until_s = float("inf")
        self._size_bytes = 0
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start the thread."""
        self._thread = threading.Thread(target=self._run, name="tailcut-request-log-parquet", daemon=True)
        self._thread.start()

    def offer(self, path: Path) -> None:
        """Have a complete file converted; one that is none is left alone."""
        if path.suffix == ".jsonl":
            self._waiting.append(path)
            self._offered.set()

    def close(self, timeout_s: float) -> None:
        """Convert the small files that wait, for at most ``timeout_s``; the others are left to the next start."""
        self._until_s = self._clock_s() + timeout_s
        self._closing.set()
        self._offered.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    # -- Of the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_closing = False
        while not is_closing:
            self._offered.wait()
            self._offered.clear()
            is_closing = self._closing.is_set()  # first: what was offered before the end is looked at
            while self._waiting:
                self._take(self._waiting.popleft())

    def _take(self, path: Path) -> None:
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
        if self._closing.wait(seconds) and (self._size_bytes > _SMALL_BYTES or self._clock_s() >= self._until_s):
            raise _Ended
