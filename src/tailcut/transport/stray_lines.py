"""Lines on stderr that no logger wrote, of native libraries or a crash, as JSON objects like all others."""

from __future__ import annotations

import logging

import msgspec

from tailcut.common.json_values import UNREADABLE
from tailcut.logs import line_of

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
