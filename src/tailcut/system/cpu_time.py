"""CPU seconds of a process and its children (Linux)."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tailcut.errors import LoadTestError

_KTHREADD = 2
"""Process id of the parent of all threads of the kernel."""


def own_seconds(pid: int) -> float | None:
    """Read the CPU time of one process, of all threads that it has or had, to the nanosecond.

    /proc counts in ticks of 10 ms: as much as fifty requests to a small model take. The clock's number is made as
    Linux makes it (include/linux/posix-timers.h, MAKE_PROCESS_CPUCLOCK with CPUCLOCK_SCHED).

    Returns:
        None where the process has ended, or the kernel has no such clock.
    """
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return None


def machine_seconds(proc: Path = Path("/proc")) -> float:
    """Return the CPU seconds that the machine's cores have computed since it started; 0 without /proc.

    Args:
        proc: where the proc file system is mounted; proc(5), the first line of ``stat`` without "idle" and "iowait".
    """
    with suppress(OSError, ValueError):
        user, nice, system, _, _, irq, softirq, *_ = map(int, (proc / "stat").read_text().split("\n", 1)[0].split()[1:])
        return (user + nice + system + irq + softirq) / os.sysconf("SC_CLK_TCK")
    return 0.0


def cpu_seconds(pid: int, proc: Path = Path("/proc"), own: Callable[[int], float | None] = own_seconds) -> float:
    """Sum user and system time of ``pid``, its living descendants and the children that they have waited for.

    Args:
        pid: root of the process tree.
        proc: where the proc file system is mounted.
        own: CPU time of a living process without its children; None where only ``proc`` has it.

    Raises:
        LoadTestError: there is no such process, or no /proc.
    """
    stats = process_stats(proc)
    if pid not in stats:
        raise LoadTestError(
            f"process {pid} is not visible in {proc}",
            hint="give the --pid of a running process on this machine; CPU time needs Linux",
        )
    children: dict[int, list[int]] = {}
    for child, stat in stats.items():
        children.setdefault(stat.parent, []).append(child)
    tick_s = 1.0 / os.sysconf("SC_CLK_TCK")
    total_s, queue = 0.0, [pid]
    while queue:
        one = queue.pop()
        precise_s = own(one)
        total_s += stats[one].own_ticks * tick_s if precise_s is None else precise_s
        total_s += stats[one].waited_ticks * tick_s
        queue.extend(children.get(one, ()))
    return total_s


def other_seconds(own_pid: int, proc: Path = Path("/proc")) -> float:
    """Sum the CPU time of all processes but ``own_pid`` and its living descendants, and of the hypervisor (steal).

    Kernel threads are left out, because the load of the caller's own sockets runs in them too. The time of a process
    that ended counts as its parent's, once the parent has waited for it. 0 where there is no /proc.
    """
    stats = process_stats(proc)
    own = {own_pid}
    while more := {pid for pid, stat in stats.items() if stat.parent in own} - own:
        own |= more
    others = (stat for pid, stat in stats.items() if pid not in own and _KTHREADD not in (pid, stat.parent))
    ticks = sum(stat.own_ticks + stat.waited_ticks for stat in others)
    with suppress(OSError, ValueError, IndexError):
        ticks += int((proc / "stat").read_text().split(maxsplit=9)[8])
    return ticks / os.sysconf("SC_CLK_TCK")


def threads_ns(pid: int) -> dict[int, int]:
    """Read the CPU nanoseconds of every living thread of ``pid`` and of its living descendants, by thread.

    Empty where the process has ended; threads that the kernel does not tell of are left out. Source: the kernel's
    Documentation/scheduler/sched-stats.rst, "/proc/<pid>/schedstat".
    """
    found: dict[int, int] = {}
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError, ValueError, IndexError):  # it has ended, or is not told
                found[int(task.name)] = int((task / "schedstat").read_text().split()[0])
                for child in (task / "children").read_text().split():
                    found |= threads_ns(int(child))
    return found


class ProcessStat(NamedTuple):
    """One process: CPU time of its own and of children that it has waited for, and resident memory."""

    parent: int
    session: int
    own_ticks: int
    waited_ticks: int
    pages: int


def process_stats(proc: Path = Path("/proc")) -> dict[int, ProcessStat]:
    """Read every process by its id; none where there is no /proc."""
    found: dict[int, ProcessStat] = {}
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
            user, system, waited_user, waited_system = (int(ticks) for ticks in fields[11:15])
            found[int(entry.name)] = ProcessStat(
                int(fields[1]), int(fields[3]), user + system, waited_user + waited_system, int(fields[21])
            )
    return found
