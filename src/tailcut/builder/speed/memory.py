"""Resident memory of a child and all that it started."""

from __future__ import annotations

import os

from tailcut.system.cpu_time import process_stats


def session_bytes(session: int) -> int:
    """Sum the resident memory of every process of a session; shared pages count once per process.

    Args:
        session: number of the session, which is its leader's process id.
    """
    pages = sum(stat.pages for stat in process_stats().values() if stat.session == session)
    return pages * os.sysconf("SC_PAGE_SIZE")
