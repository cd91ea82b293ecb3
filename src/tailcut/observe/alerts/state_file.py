"""The alarms of a server in a file, so that one that fires is not sent again after a restart."""

from __future__ import annotations

import logging
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
    """Reads and writes the file; what cannot be is logged once and does not stop alerts.

    Args:
        path: None: nothing is kept.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._written = b""
        self._failed = False

    def read(self) -> Kept:
        """Return what was kept; nothing where there is no file, or it is damaged."""
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

    def write(self, kept: Kept) -> None:
        """Write what is to be kept, if it is not what was written last."""
        content = msgspec.json.encode(kept)
        if self._path is None or content == self._written:
            return
        try:
            with Staging(self._path.parent, hint="free space, or give write permission") as staging:
                staging.write(self._path, content)
                staging.commit()
        except (TailcutError, OSError) as error:
            if not self._failed:
                log.warning("the state of the alerts is not kept: %s; after a restart alarms are sent again", error)
            self._failed = True
            return
        self._written, self._failed = content, False
