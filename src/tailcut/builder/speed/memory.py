"""Resident memory of a child and all that it started, from /proc."""

from __future__ import annotations

import os
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SESSION_FIELD = 3
"""Of /proc/PID/stat, counted from behind the command's closing bracket: state, ppid, pgrp, session (proc(5))."""
_RSS_FIELD = 21


def session_bytes(session: int, proc: Path = Path("/proc")) -> int:
    """Sum the resident memory of every process of a session; shared pages count once per process.

    Args:
        session: number of the session, which is its leader's process id.
    """
    total = 0
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        fields = stat.rpartition(")")[2].split()
        if int(fields[_SESSION_FIELD]) == session:
            total += int(fields[_RSS_FIELD]) * _PAGE_BYTES
    return total
