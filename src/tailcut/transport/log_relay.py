"""Where the log goes: to stderr, by way of a pipe that is always read, because what is behind stderr may not be.

Whoever starts a server through a pipe and does not read it would otherwise stop it: once the pipe is full, the next
line of the log, or of what the model or a hook prints, waits for ever. With ``server.log = "json"`` all of stderr goes
this way, so that lines that no logger wrote become objects, too.
"""

from __future__ import annotations

import fcntl
import logging
import os
import select
import signal
import stat
import threading
from contextlib import suppress
from types import TracebackType

import msgspec

from tailcut import logs
from tailcut.common.json_values import UNREADABLE
from tailcut.logs import line_of

# Lines on stderr that no logger wrote, of native libraries or a crash, as JSON objects like all others.

_LONGEST_BYTES = 1 << 20
"""A line that is longer is passed on in parts."""


class _Logged(msgspec.Struct):
    """Fields that every line of the log has."""

    time: str
    level: str
    message: str


class StrayLines:
    """Passes on lines of the log as they are, and makes an object of each other line.

    Args:
        formatter: of the log.
    """

    def __init__(self, formatter: logging.Formatter) -> None:
        self._formatter = formatter
        self._decode = msgspec.json.Decoder(_Logged).decode
        self._rest = b""

    def feed(self, data: bytes) -> bytes:
        """Return the lines that are whole now; the beginning of one that is not is kept for the next call."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > _LONGEST_BYTES:
            lines.append(self._rest)
            self._rest = b""
        return b"".join(map(self._whole, lines))

    def end(self) -> bytes:
        """Return what was kept: a last line without an end."""
        rest, self._rest = self._rest, b""
        return self._whole(rest)

    def _whole(self, line: bytes) -> bytes:
        if line.startswith(b"{"):
            try:
                self._decode(line)
                return line + b"\n"
            except UNREADABLE:
                pass  # no line of the log, though it looks like one
        text = line.decode("utf-8", "replace").strip()
        return line_of(self._formatter, "stderr", logging.INFO, text) if text else b""


_PIPE_BYTES = 1 << 20
_HELD_BYTES = 1 << 20
"""What a reader that is slow may be behind; more is lost."""

_PIECE_BYTES = 4096
"""What a pipe that is ready takes without waiting (PIPE_BUF, pipe(7))."""

_LAST_S = 1.0
"""After the last line was written: how long the reader may take for what is left."""


class Outlet:
    """Puts itself between stderr and all who write to it, this process and its children, while it is entered.

    Only where stderr is a pipe or a socket, or the log is JSON: a file or a terminal takes what is written. It is read
    by a thread of this process, so that the last words of a child that crashed are heard as well.

    Args:
        form: of the log, "text" or "json".
        model: name of the deployment.

    Attributes:
        lost: lines that were dropped.
    """

    def __init__(self, form: str = "text", model: str = "") -> None:
        self.lost = 0
        self._formatter = logs.formatter(form, model)
        self._stray = StrayLines(self._formatter) if form == "json" else None
        self._behind = self._reading = -1
        self._held = bytearray()
        self._cut = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Outlet:
        with suppress(OSError):  # stderr is closed: nobody writes to it
            mode = os.fstat(2).st_mode
            if self._stray is not None or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
                self._behind = os.dup(2)
                self._reading, writing = os.pipe()
                with suppress(OSError, AttributeError):  # above the user's limit, or not Linux
                    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
                os.dup2(writing, 2)
                os.close(writing)
        return self

    def start(self) -> None:
        """Pass on what is written; only now, because a process that forks should have no threads yet."""
        if self._behind >= 0 and self._thread is None:
            self._thread = threading.Thread(target=self._pass_on, name="tailcut-outlet", daemon=True)
            self._thread.start()

    def leave(self) -> None:
        """Close the ends that only the thread uses; in a process that was forked.

        Otherwise it would be a reader of what it writes that never reads, and wait for itself once the thread is gone.
        """
        for end in (self._reading, self._behind):
            if end >= 0:
                os.close(end)
        self._behind = self._reading = -1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._behind >= 0:
            self.start()
            os.dup2(self._behind, 2)  # the thread sees the end where no child holds the pipe open
            if self._thread is not None:
                self._thread.join(2 * _LAST_S)

    def _pass_on(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the main thread
        sources, sink = select.poll(), select.poll()
        sources.register(self._reading, select.POLLIN)
        sink.register(self._behind, select.POLLOUT)
        both = select.poll()
        both.register(self._reading, select.POLLIN)
        both.register(self._behind, select.POLLOUT)
        while True:
            ready = dict((both if self._held else sources).poll())
            if self._behind in ready:
                self._give()
            if self._reading in ready:
                data = os.read(self._reading, _PIPE_BYTES)
                if not data:
                    break
                self._take(data if self._stray is None else self._stray.feed(data))
        if self._stray is not None:
            self._take(self._stray.end())
        while self._held and sink.poll(_LAST_S * 1e3):
            self._give()

    def _take(self, data: bytes) -> None:
        """Keep as many lines as there is room for."""
        if self._cut:  # this begins with the rest of a line whose beginning was lost
            _, ended, data = data.partition(b"\n")
            if not ended:
                return
            self._cut = False
            self.lost += 1
        room = _HELD_BYTES - len(self._held)
        if len(data) <= room:
            self._held += data
            return
        fits = data.rfind(b"\n", 0, max(room, 0)) + 1
        self._held += data[:fits]
        if not self._held.endswith(b"\n"):
            self._held += b"\n"  # the end of that line is lost
        self.lost += data.count(b"\n", fits)
        self._cut = not data.endswith(b"\n")

    def _give(self) -> None:
        """Write a piece; where all is written again that was held, say what was not."""
        try:
            del self._held[: os.write(self._behind, self._held[:_PIECE_BYTES])]
        except OSError:  # whoever read it has gone
            self._held.clear()
        if self.lost and not self._held:
            said = f"dropped {self.lost} lines of this log: the reader of stderr is too slow"
            self._held += logs.line_of(self._formatter, "tailcut.server", logging.WARNING, said)
            self.lost = 0
