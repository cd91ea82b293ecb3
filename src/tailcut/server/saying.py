"""Lines for the operator on stderr, wherever that leads: a full disk, or a pipe whose reader has gone."""

from __future__ import annotations

import os
from contextlib import suppress


def say(line: str) -> None:
    """Write one line, or nothing where it cannot be written: what cannot be said must not stop what is served.

    Not through ``sys.stderr``: signal handlers say things too, and may run in the middle of a write to it.
    """
    with suppress(OSError):
        os.write(2, f"{line}\n".encode())
