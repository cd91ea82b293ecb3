"""CPU seconds of a process and its children, from /proc (Linux)."""

from __future__ import annotations

import os
from pathlib import Path

from tailcut.errors import LoadTestError


def cpu_seconds(pid: int, proc: Path = Path("/proc")) -> float:
    """Sum user and system time of ``pid``, its living descendants and the children that they have waited for.

    Args:
        pid: root of the process tree.
        proc: where the proc file system is mounted.

    Raises:
        LoadTestError: there is no such process, or no /proc.
    """
    stats = _stats(proc)
    if pid not in stats:
        raise LoadTestError(
            f"process {pid} is not to be seen under {proc}",
            hint="give the --pid of a running process on this machine; CPU time needs Linux",
        )
    children: dict[int, list[int]] = {}
    for child, (parent, _) in stats.items():
        children.setdefault(parent, []).append(child)
    ticks, queue = 0, [pid]
    while queue:
        one = queue.pop()
        ticks += stats[one][1]
        queue.extend(children.get(one, ()))
    return ticks / os.sysconf("SC_CLK_TCK")


def _stats(proc: Path) -> dict[int, tuple[int, int]]:
    found: dict[int, tuple[int, int]] = {}
    if not proc.is_dir():
        return found
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "stat").read_bytes()
            except OSError:
                continue  # it ended meanwhile
            # The command (field 2) may hold spaces, brackets, half a letter; the last ")" ends it. Source: man 5 proc.
            fields = text.rpartition(b")")[2].split()
            found[int(entry.name)] = (int(fields[1]), sum(int(ticks) for ticks in fields[11:15]))
    return found
