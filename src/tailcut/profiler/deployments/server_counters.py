"""What a served deployment counts of itself, and what the kernel counts of its threads."""

from __future__ import annotations

import json
import re
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from tailcut.system.cpu_time import schedules_ns

_SAMPLE = re.compile(r"^(\w+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)
_LABEL = re.compile(r'\w+="[^"]*"')


class Spent(NamedTuple):
    """Nanoseconds that threads ran, and that they were ready to and waited for a core."""

    ran_ns: float
    waited_ns: float

    @property
    def running(self) -> float:
        """Share of the time ready in which they ran; 1 where they never were."""
        ready_ns = self.ran_ns + self.waited_ns
        return self.ran_ns / ready_ns if ready_ns else 1.0


class Counters(NamedTuple):
    """What had been counted at one moment.

    Attributes:
        metrics: values of /metrics by name and labels.
        batches: rows -> how many batches, and their nanoseconds.
        threads: of each process of the server but the supervisor: time by thread, its children's included.
        own: threads of such a process itself.
    """

    metrics: dict[str, float]
    batches: dict[int, tuple[float, float]]
    threads: dict[int, dict[int, tuple[int, int]]]
    own: dict[int, set[int]]


def read_counters(port: int, name: str, pid: int) -> Counters:
    """Ask a server on this machine and the kernel.

    Args:
        name: of the model.
        pid: of the supervisor.
    """
    stats = json.loads(_get(f"http://127.0.0.1:{port}/v2/models/{name}/stats"))["model_stats"][0]
    workers = _children(pid)
    return Counters(
        metrics={
            key: float(value) for key, value in _SAMPLE.findall(_get(f"http://127.0.0.1:{port}/metrics").decode())
        },
        batches={
            int(each["batch_size"]): (float(each["compute_infer"]["count"]), float(each["compute_infer"]["ns"]))
            for each in stats["batch_stats"]
        },
        threads={worker: schedules_ns(worker) for worker in workers},
        own={worker: _threads(worker) for worker in workers},
    )


class Counted(NamedTuple):
    """What was counted between two moments."""

    before: Counters
    after: Counters

    def metric(self, name: str) -> float:
        """Return by how much counters of this name, with at least its labels, have grown together."""
        found = [(key, value) for key, value in self.after.metrics.items() if _same(key, name)]
        return sum(value - self.before.metrics.get(key, 0.0) for key, value in found)

    def batches(self) -> dict[int, tuple[float, float]]:
        """Return rows -> how many batches, and their nanoseconds."""
        found = {}
        for rows, (count, ns) in sorted(self.after.batches.items()):
            earlier, earlier_ns = self.before.batches.get(rows, (0.0, 0.0))
            if count > earlier:
                found[rows] = (count - earlier, ns - earlier_ns)
        return found

    def spent(self) -> tuple[Spent, Spent, Spent]:
        """Return what the event loop's thread spent, other threads of its process, and the processes that it started.

        The event loop runs in the first thread of the worker, which is the child of the supervisor that works most.
        """
        grown = {
            process: {thread: self._grown(process, thread, now) for thread, now in threads.items()}
            for process, threads in self.after.threads.items()
        }
        worker = max(grown, key=lambda process: grown[process].get(process, (0, 0))[0])
        own = self.after.own[worker]
        loop = [spent for thread, spent in grown[worker].items() if thread == worker]
        beside = [spent for thread, spent in grown[worker].items() if thread in own and thread != worker]
        apart = [spent for process, threads in grown.items() for thread, spent in threads.items() if thread not in own]
        return _sum(loop), _sum(beside), _sum(apart)

    def _grown(self, process: int, thread: int, now: tuple[int, int]) -> tuple[int, int]:
        ran, waited = self.before.threads.get(process, {}).get(thread, (0, 0))
        return now[0] - ran, now[1] - waited


def _sum(spent: list[tuple[int, int]]) -> Spent:
    return Spent(float(sum(ran for ran, _ in spent)), float(sum(waited for _, waited in spent)))


def _same(key: str, name: str) -> bool:
    wanted, _, labels = name.partition("{")
    found, _, have = key.partition("{")
    return wanted == found and set(_LABEL.findall(labels)) <= set(_LABEL.findall(have))


def _get(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=10) as reply:  # noqa: S310  # of a server on this machine
        found: bytes = reply.read()
        return found


def _children(pid: int) -> list[int]:
    found: list[str] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += (task / "children").read_text().split()
    return [int(child) for child in found]


def _threads(pid: int) -> set[int]:
    with suppress(OSError):
        return {int(task.name) for task in Path(f"/proc/{pid}/task").iterdir()}
    return set()
