"""A line on stderr that says how a load run is doing."""

from __future__ import annotations

import time
from types import TracebackType

from tailcut.cli.console import stderr
from tailcut.load import Progress

_TERMINAL_EVERY_S = 0.25
_FILE_EVERY_S = 5.0
_WIDTH = 100


class ProgressLine:
    """Rewrites one line on a terminal; elsewhere writes a line every few seconds.

    A redrawing display would take milliseconds from the generator's own event loop and show up as send lag.
    """

    def __init__(self) -> None:
        self._console = stderr()
        self._terminal = self._console.is_terminal
        self._every_s = _TERMINAL_EVERY_S if self._terminal else _FILE_EVERY_S
        self._next_s = time.monotonic() + self._every_s
        self._drawn = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._clear()

    def show(self, progress: Progress) -> None:
        """Take in how the run is doing; writes only when it is time to."""
        now_s = time.monotonic()
        if now_s < self._next_s:
            return
        self._next_s = now_s + self._every_s
        text = (
            f"{max(progress.elapsed_s, 0):5.1f}/{progress.total_s:.0f} s  sent {progress.sent}/{progress.planned}"
            f"  outstanding {progress.outstanding}  failed {progress.failed}  late {progress.late}"
        )
        if self._terminal:
            self._console.file.write("\r" + text[:_WIDTH].ljust(_WIDTH))
            self._console.file.flush()
            self._drawn = True
        else:
            self._console.file.write(text + "\n")

    def note(self, text: str) -> None:
        """Write a line that stays."""
        self._clear()
        self._console.out(text)

    def _clear(self) -> None:
        if self._drawn:
            self._console.file.write("\r" + " " * _WIDTH + "\r")
            self._console.file.flush()
            self._drawn = False
