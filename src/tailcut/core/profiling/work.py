"""What each request asks of the machine: its phases, the CPU and the waiting of each, without what it queued for.

A span's time holds what its request needed and what it waited for others. Waits for a thread, a core, a lock, the
event loop or the accepting of a connection are left out, but for what every such step costs when nobody is in the way
(the quickest tenth): they come back, as large as they then are, when the requests are played through queues again.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.core.profiling.attribution import Attribution, self_of
from tailcut.core.profiling.flat import STAGE_AT, Flat, Ints, Name
from tailcut.core.profiling.records import Recording, Stage

QUEUEING = frozenset({Stage.WAIT, Stage.LOCK, Stage.LOOP, Stage.ACCEPT})
WAITING = frozenset({Stage.SQL, Stage.CACHE, Stage.HTTP, Stage.RECEIVE, Stage.NETWORK, Stage.UNATTRIBUTED})
"""Stages that take no CPU where nobody says how much: a driver's own is in what the process used beside the spans."""
FETCHING = frozenset({Stage.SQL, Stage.CACHE, Stage.HTTP})

_UNHINDERED = 0.1


class Part(NamedTuple):
    """A phase of one request.

    Attributes:
        stage: what it is.
        name: index into ``Work.names``; -1: no span.
        cpu_ns, wait_ns: how long it computes, and how long it waits for something outside the process.
        thread: it runs in a pool's thread, else on the event loop.
    """

    stage: Stage
    name: int
    cpu_ns: float
    wait_ns: float
    thread: bool


Job = tuple[Part, ...]


@dataclass(frozen=True)
class Work:
    """The requests of a recording as work to be done.

    Attributes:
        jobs: phases of each request, in order; n of them.
        numbers: of the requests, as recorded, shape [n].
        latency_ns: as measured, shape [n].
        names: of spans.
        rate: requests per second that were sent.
        threads: of the pool for synchronous handlers; 0: not known.
        cores: that the process could use.
    """

    jobs: tuple[Job, ...]
    numbers: Ints
    latency_ns: npt.NDArray[np.float64]
    names: tuple[Name, ...]
    rate: float
    threads: int
    cores: int

    @property
    def cpu_ns(self) -> float:
        """CPU time of a request, on average."""
        return float(np.mean([sum(part.cpu_ns for part in job) for job in self.jobs])) if self.jobs else 0.0

    def cpu_of(self, stage: Stage) -> float:
        """CPU time of a stage per request, on average."""
        found = [sum(part.cpu_ns for part in job if part.stage == stage) for job in self.jobs]
        return float(np.mean(found)) if found else 0.0

    def mean_ns(self, *stages: Stage) -> float:
        """CPU and waiting of these stages per request, on average."""
        found = [sum(part.cpu_ns + part.wait_ns for part in job if part.stage in stages) for job in self.jobs]
        return float(np.mean(found)) if found else 0.0

    def scaled(self, *, cpu: float = 1.0, wait: float = 1.0) -> Work:
        """Scale what every phase takes."""
        jobs = tuple(
            tuple(part._replace(cpu_ns=part.cpu_ns * cpu, wait_ns=part.wait_ns * wait) for part in job)
            for job in self.jobs
        )
        return replace(self, jobs=jobs)


def read_work(recording: Recording, found: Attribution) -> Work:
    """Read the work of a recording's requests."""
    flat = found.flat
    cpu_ns, wait_ns = _divide(flat, found.self_ns, _code_cpu_share(recording, found))
    outside_ns = _outside_cpu_ns(recording, found, cpu_ns)
    network_ns = found.stage_ns[:, STAGE_AT[Stage.NETWORK]]
    usual_ns = float(np.median(network_ns)) if len(network_ns) else 0.0
    rest_ns = found.stage_ns[:, STAGE_AT[Stage.UNATTRIBUTED]]
    order = np.lexsort((flat.start_ns, flat.request))
    edges = np.searchsorted(flat.request[order], np.arange(len(flat.requests) + 1))
    jobs: list[Job] = []
    for number in range(len(flat.requests)):
        # Beyond what is usual, the network of one machine is the server's kernel waiting for a core.
        parts = [Part(Stage.NETWORK, -1, outside_ns, min(float(network_ns[number]), usual_ns), False)]
        for span in order[edges[number] : edges[number + 1]].tolist():
            stage = flat.names[flat.name[span]].stage
            if cpu_ns[span] + wait_ns[span] > 0:
                thread = bool(flat.thread[span])
                parts.append(Part(stage, int(flat.name[span]), float(cpu_ns[span]), float(wait_ns[span]), thread))
        parts.append(Part(Stage.UNATTRIBUTED, -1, 0.0, float(rest_ns[number]), False))
        jobs.append(tuple(parts))
    return Work(
        jobs=tuple(jobs),
        numbers=np.array([one.number for one in flat.requests], dtype=np.int64),
        latency_ns=flat.wall_ns.astype(np.float64),
        names=flat.names,
        rate=recording.rate,
        threads=recording.pilot.threads,
        cores=int(recording.machine.get("cores", "1")),
    )


def _divide(flat: Flat, self_ns: Ints, code_share: float) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Divide each span's own time into CPU and waiting, shape [spans] each."""
    stages = [name.stage for name in flat.names]
    queueing = np.array([stage in QUEUEING for stage in stages], dtype=bool)[flat.name]
    waiting = np.array([stage in WAITING for stage in stages], dtype=bool)[flat.name]
    known = self_of(flat, flat.cpu_ns)
    cpu_ns = np.where(waiting, 0.0, self_ns * code_share)
    cpu_ns = np.where(known >= 0, np.minimum(known, self_ns), cpu_ns)
    cpu_ns, covered = _share_out(flat, self_ns.astype(np.float64), cpu_ns)
    wait_ns = np.where(covered | (known >= 0) | waiting | queueing, self_ns - cpu_ns, self_ns * (1.0 - code_share))
    for name in np.flatnonzero([stage in QUEUEING for stage in stages]).tolist():
        mine = flat.name == name
        cpu_ns[mine] = 0.0
        wait_ns[mine] = np.minimum(wait_ns[mine], np.quantile(self_ns[mine], _UNHINDERED))
    return cpu_ns, np.maximum(wait_ns, 0.0)


def _share_out(
    flat: Flat, self_ns: npt.NDArray[np.float64], cpu_ns: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Where a span's CPU time is known and that of spans inside it is not, give it to its own code first.

    What is left is the inner spans' (a driver that reads rows), in proportion to their length.

    Returns:
        the CPU time, and which spans it was found for in this way, shape [spans] each.
    """
    cpu_ns = cpu_ns.copy()
    covered = np.zeros(len(self_ns), dtype=bool)
    inner = np.flatnonzero((flat.parent >= 0) & (flat.cpu_ns < 0))
    inner = inner[(flat.thread[inner] == flat.thread[flat.parent[inner]]) & (flat.cpu_ns[flat.parent[inner]] >= 0)]
    if not len(inner):
        return cpu_ns, covered
    outer = flat.parent[inner]
    parents = np.unique(outer)
    rest = np.zeros(len(self_ns))
    rest[parents] = flat.cpu_ns[parents]
    told = np.flatnonzero((flat.parent >= 0) & (flat.cpu_ns >= 0))
    np.subtract.at(rest, flat.parent[told], flat.cpu_ns[told].astype(np.float64))
    own = np.minimum(np.maximum(rest, 0.0), self_ns)
    length = np.zeros(len(self_ns))
    np.add.at(length, outer, self_ns[inner])
    share = np.divide(np.maximum(rest - own, 0.0), length, out=np.zeros(len(self_ns)), where=length > 0)
    cpu_ns[parents] = own[parents]
    cpu_ns[inner] = self_ns[inner] * np.minimum(share[outer], 1.0)
    covered[parents] = covered[inner] = True
    return cpu_ns, covered


def _code_cpu_share(recording: Recording, found: Attribution) -> float:
    """How much of the code whose CPU time nobody told was computing: what the process used beside the known spans.

    1 where that is not known. Code that awaits what is not hooked seems to run, but takes no core.
    """
    flat, pilot = found.flat, recording.pilot
    stages = [name.stage for name in flat.names]
    computing = np.array([stage not in QUEUEING | WAITING for stage in stages], dtype=bool)[flat.name]
    unknown_ns = float(found.self_ns[computing & (self_of(flat, flat.cpu_ns) < 0) & (flat.thread == 0)].sum())
    if not pilot.cpu_s or not unknown_ns:
        return 1.0
    roots = (flat.cpu_ns >= 0) & ((flat.parent < 0) | (flat.cpu_ns[flat.parent] < 0))
    left_ns = pilot.cpu_s * 1e9 * _seen_share(recording, found) - float(flat.cpu_ns[roots].sum())
    return min(max(left_ns / unknown_ns, 0.0), 1.0)


def _outside_cpu_ns(recording: Recording, found: Attribution, cpu_ns: npt.NDArray[np.float64]) -> float:
    """CPU time per request that no span tells of: the HTTP server, drivers that await, the interpreter's own."""
    if not recording.pilot.cpu_s or not found.flat.requests:
        return 0.0
    whole_ns = recording.pilot.cpu_s * 1e9 * _seen_share(recording, found)
    return max((whole_ns - float(cpu_ns.sum())) / len(found.flat.requests), 0.0)


def _seen_share(recording: Recording, found: Attribution) -> float:
    """How much of the process's window the good requests are responsible for."""
    return len(found.flat.requests) / max(len(recording.requests), 1)
