"""What databases on this machine compute, told by their processes: they share its cores with who asks them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

_NAMES = frozenset({"postgres", "postmaster", "mysqld", "mariadbd"})
"""As the kernel calls them. What runs inside the application's process (SQLite) is counted there."""

_FIELD_CPU_NS = 0


def computed_ns(proc: Path = Path("/proc")) -> dict[int, int]:
    """Return nanoseconds that each database process of this machine has had of a core, by process.

    Args:
        proc: where the kernel tells of processes: proc(5), ``comm`` and ``schedstat``, which everybody may read.

    Processes in another container are not seen, nor databases on another machine.
    """
    found: dict[int, int] = {}
    for entry in proc.iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "comm").read_text().strip() in _NAMES:
                found[int(entry.name)] = int((entry / "schedstat").read_text().split()[_FIELD_CPU_NS])
        except (OSError, ValueError, IndexError):
            continue  # it ended, or the kernel keeps no such statistics
    return found


def computed_between_s(before: Mapping[int, int], after: Mapping[int, int]) -> float:
    """Return seconds of a core that they had between two looks; of those that ended meanwhile it is not known."""
    return sum(now - before.get(process, 0) for process, now in after.items()) / 1e9
