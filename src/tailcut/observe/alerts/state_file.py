"""The alarms of a server in a file, so that one that fires is not sent again after a restart."""

from __future__ import annotations

import fcntl
import logging
import os
from pathlib import Path

import msgspec

from tailcut.errors import TailcutError
from tailcut.observe.alerts.alarms import Event, Memory
from tailcut.system.atomic_files import Staging

log = logging.getLogger("tailcut.server")

_MOST_BYTES = 4 * 1024 * 1024


class Kept(msgspec.Struct, kw_only=True):
    """What the file holds.

    Attributes:
        outbox: events that the webhook has not got yet.
    """

    memory: Memory = msgspec.field(default_factory=Memory)
    outbox: list[Event] = []


class StateFile:
    """Reads and writes the file; what cannot be is logged once and does not stop alerts. For one thread.

    One server has it at a time, which a lock beside it says. The kernel frees the lock when the server ends, or the
    last child that it forked.

    Args:
        path: None: nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written = b""
        self._failed = self._told = False
        self._is_open = self._closed = False
        self._lock = -1

    def open(self) -> Kept | None:
        """Take the file, and return what was kept: nothing where there is no file, or it is damaged.

        Returns:
            None while another server has the file, to be tried again; and after ``close``.
        """
        if self._closed:
            return None
        if not self._locked():
            if not self._told:
                log.warning(
                    "%s is used by another server that runs: until that one ends, alarms of this one are not kept over "
                    "a restart; give every server that shares the history its own name in observe.history.server",
                    self._path,
                )
            self._told = True
            return None
        self._is_open = True
        return self._read()

    @property
    def is_open(self) -> bool:
        """Whether this server has the file."""
        return self._is_open

    def write(self, kept: Kept) -> None:
        """Write what is to be kept, if it is not what was written last."""
        content = msgspec.json.encode(kept)
        if self._path is None or not self._is_open or content == self._written:
            return
        try:
            with Staging(self._path.parent, hint="free space, or give write permission") as staging:
                staging.write(self._path, content)
                staging.commit()
        except (TailcutError, OSError) as error:
            if not self._failed:
                log.warning(
                    "the state of the alerts is not kept: %s; after a restart alarms are sent again; the file is "
                    "beside the history: set observe.history.path to a folder that can be written",
                    error,
                )
            self._failed = True
            return
        self._written, self._failed = content, False

    def close(self) -> None:
        """Leave the file to another server, for good."""
        self._is_open, self._closed = False, True
        if self._lock >= 0:
            fcntl.flock(self._lock, fcntl.LOCK_UN)  # a child that was forked has the descriptor, too
            os.close(self._lock)
            self._lock = -1

    def _read(self) -> Kept:
        if self._path is None:
            return Kept()
        try:
            with self._path.open("rb") as file:
                kept = msgspec.json.decode(file.read(_MOST_BYTES), type=Kept)
        except FileNotFoundError:
            return Kept()
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("the state of the alerts in %s cannot be read (%s); it begins anew", self._path, error)
            return Kept()
        return kept if kept.memory.version == Memory().version else Kept()

    def _locked(self) -> bool:
        """Take the lock; where there can be none, the file counts as free."""
        if self._path is None:
            return True
        try:
            handle = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError:  # as writing the file will say
            return True
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        except OSError:  # a file system without locks
            os.close(handle)
            return True
        self._lock = handle
        return True
