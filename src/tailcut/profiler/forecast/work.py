"""What each request asks of the machine: its phases, the CPU and the waiting of each, without what it queued for.

A span's time holds what its request needed and what it waited for others. Waits for a thread, a core, a lock, the
event loop or the accepting of a connection are left out, but for what every such step costs when nobody is in the way
(the quickest tenth). When the requests are played through queues again, those for a thread, a core, and a lock or a
pool that enough is known of (``holding``) come back, as large as they then are.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tailcut.profiler.attribution.awaiting import ran_ns
from tailcut.profiler.attribution.cpu_split import (
    QUEUEING,
    WAITING,
    Bools,
    Floats,
    divide_own,
    fetch_lengths,
    handling_share,
    holds_loop,
)
from tailcut.profiler.attribution.gaps import attribute_gaps
from tailcut.profiler.attribution.model_steps import STEPS, outermost_steps
from tailcut.profiler.attribution.span_table import STAGE_AT, Flat, Ints, Name
from tailcut.profiler.attribution.stages import Attribution, self_of
from tailcut.profiler.attribution.stalls import Stalls
from tailcut.profiler.attribution.unattributed_cpu import computing_share, read_untold
from tailcut.profiler.forecast.lock_model import Holds, find_holds
from tailcut.profiler.forecast.phases import HANDLING, Job, Part
from tailcut.profiler.forecast.thread_pools import Pools, find_pools
from tailcut.profiler.records import Recording, Stage

_USUAL = 0.75
_MOST_OVERHEAD = 0.5
_LEAST_KEPT = 0.5
_HALF = 0.5


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
        holds: locks, semaphores and connection pools that were waited for, and executors.
        steps: of each name the index of the outermost preprocessing that it lies in, or -1.
    """

    jobs: tuple[Job, ...]
    numbers: Ints
    latency_ns: Floats
    names: tuple[Name, ...]
    rate: float
    threads: int
    cores: int
    holds: Holds
    steps: tuple[int, ...] = ()

    def label(self, name: int) -> str:
        """Return what a ``Part.name`` is called; empty where it is no span's."""
        return self.names[name].label if name >= 0 else ""

    def step_of(self, name: int) -> int:
        """Return the outermost preprocessing that a ``Part.name`` lies in, as an index of ``names``; -1: none."""
        return self.steps[name] if 0 <= name < len(self.steps) else -1

    @property
    def cpu_ns(self) -> float:
        """CPU time of a request, on average, but for what it does not wait for."""
        return float(np.mean([sum(part.cpu_ns for part in job) for job in self.jobs])) if self.jobs else 0.0

    @property
    def late_ns(self) -> float:
        """CPU time after the reply per request, on average."""
        found = [sum(part.cpu_ns for part in job if part.late) for job in self.jobs]
        return float(np.mean(found)) if found else 0.0

    def process_of(self, stage: Stage | None = None) -> float:
        """CPU time in worker processes of pools per request, on average: of a stage, or of all."""
        found = [sum(part.cpu_ns for part in job if part.process and stage in (None, part.stage)) for job in self.jobs]
        return float(np.mean(found)) if found else 0.0

    def beside_of(self, *, model: bool) -> float:
        """CPU time on other cores per request, on average: of the model's threads, or all else."""
        found = [sum(part.beside_ns for part in job if (part.stage == Stage.MODEL) == model) for job in self.jobs]
        return float(np.mean(found)) if found else 0.0

    def cpu_of(self, stage: Stage) -> float:
        """CPU time of a stage per request, on average."""
        found = [sum(part.cpu_ns for part in job if part.stage == stage) for job in self.jobs]
        return float(np.mean(found)) if found else 0.0

    def wait_of(self, stage: Stage) -> float:
        """Waiting in a stage per request, on average."""
        found = [sum(part.wait_ns for part in job if part.stage == stage) for job in self.jobs]
        return float(np.mean(found)) if found else 0.0

    def mean_ns(self, *stages: Stage) -> float:
        """CPU and waiting of these stages per request, on average."""
        found = [sum(part.cpu_ns + part.wait_ns for part in job if part.stage in stages) for job in self.jobs]
        return float(np.mean(found)) if found else 0.0

    @property
    def blocking_ns(self) -> float:
        """For how long a request waits and holds the event loop's thread meanwhile, on average."""
        found = [sum(part.wait_ns for part in job if part.blocks) for job in self.jobs]
        return float(np.mean(found)) if found else 0.0

    def held_ns(self, hold: int) -> float:
        """For how long a request holds a lock or a connection, on average, and computes or waits for others."""
        found = [
            sum(part.cpu_ns + part.wait_ns + part.after_ns for part in job if hold in part.held) for job in self.jobs
        ]
        return float(np.mean(found)) if found else 0.0

    def scaled(self, *, cpu: float = 1.0, wait: float = 1.0) -> Work:
        """Scale what every phase takes."""
        jobs = tuple(tuple(part.scaled(cpu=cpu, wait=wait) for part in job) for job in self.jobs)
        return replace(self, jobs=jobs)


def read_work(recording: Recording, found: Attribution) -> Work:
    """Read the work of a recording's requests."""
    flat = found.flat
    seen_ns = ran_ns(found, recording)
    cpu_ns, wait_ns = divide_own(flat, found.self_ns, found.delay_ns, _code_cpu_share(recording, found, seen_ns))
    pools = find_pools(found, recording.pilot.executors)
    holds = find_holds(flat, pools.executors, recording.waits if recording.traced < 1.0 else None)
    wait_ns[holds.waits] = 0.0
    network_ns = _way_ns(recording, found)
    # Samples are of code: nobody knows what a driver computes.
    seen_ns = seen_ns if recording.pilot.watched else np.zeros_like(seen_ns)
    unattributed = read_untold(recording, found, cpu_ns, wait_ns, network_ns, seen_ns)
    usual_ns = float(np.quantile(network_ns, _USUAL)) if len(network_ns) else 0.0
    rest_ns = found.stage_ns[:, STAGE_AT[Stage.UNATTRIBUTED]]
    order = np.lexsort((flat.start_ns, flat.request))
    edges = np.searchsorted(flat.request[order], np.arange(len(flat.requests) + 1))
    lengths, handling = fetch_lengths(flat, cpu_ns), handling_share(flat)
    blocks = holds_loop(flat, cpu_ns, wait_ns, seen_ns)
    spans = _Spans(flat, cpu_ns, wait_ns, lengths, handling, holds, pools, unattributed.model_share, blocks)
    jobs: list[Job] = []
    for number in range(len(flat.requests)):
        # Beyond what is usual, the network of one machine is the server's kernel waiting for a core.
        way_ns = min(float(network_ns[number]), usual_ns)
        parts = [Part(Stage.NETWORK, -1, unattributed.served_ns, way_ns, False, loop=True)]
        parts += spans.parts(order[edges[number] : edges[number + 1]].tolist(), float(unattributed.driving_ns[number]))
        parts.append(Part(Stage.UNATTRIBUTED, -1, 0.0, float(rest_ns[number]), False, beside_ns=unattributed.beside_ns))
        parts += unattributed.late[number]
        jobs.append(tuple(parts))
    work = Work(
        jobs=tuple(jobs),
        numbers=np.array([one.number for one in flat.requests], dtype=np.int64),
        latency_ns=flat.wall_ns.astype(np.float64),
        names=flat.names,
        rate=recording.rate,
        threads=recording.pilot.threads,
        cores=int(recording.machine.get("cores", "1")),
        holds=holds,
        steps=_steps(found),
    )
    return _without_profiling(work, recording)


@dataclass(frozen=True)
class _Spans:
    """Spans with the CPU and the waiting of their own, to be laid out in parts.

    Attributes:
        full_ns: how long each fetch waits with nothing beside it.
        handling: share of each one's CPU that goes with the fetches.
        pools: where they ran.
        beside: of a model's own time, what its other threads compute meanwhile.
        blocks: whether each one's wait holds the event loop.
    """

    flat: Flat
    cpu_ns: Floats
    wait_ns: Floats
    full_ns: Floats
    handling: Floats
    holds: Holds
    pools: Pools
    beside: float
    blocks: Bools

    def parts(self, spans: list[int], driving_ns: float) -> list[Part]:
        """Lay out a request's spans, in the order of their start, after what drivers compute for it beside them."""
        laid = [Part(Stage.SQL, HANDLING, driving_ns, 0.0, False, loop=True)] if driving_ns else []
        later: list[Part] = []
        for place, span in enumerate(spans):
            if self.cpu_ns[span] + self.wait_ns[span] <= 0:
                continue
            whole, part_of, share = self._held(span)
            if later and set(later[0].held) <= set(whole):
                laid, later = laid + later, []
            laid += self._parts(span, 1.0 - share, whole)
            if share:
                inside = self._parts(span, share, tuple(sorted((*whole, *part_of))))
                # What code does with a lock is where the calls are that it makes with it.
                follows = any(set(part_of) <= set(self._held(one)[0]) for one in spans[place + 1 :])
                laid, later = (laid, later + inside) if follows else (laid + inside, later)
        return laid + later

    def _held(self, span: int) -> tuple[tuple[int, ...], tuple[int, ...], float]:
        """What is held in all of a span's own time, what in a part of it, and how large that is."""
        if not self.holds.found:
            return (), (), 0.0
        shares = self.holds.share[:, span]
        whole = tuple(np.flatnonzero(shares >= 1.0).tolist())
        part_of = tuple(np.flatnonzero((shares > 0.0) & (shares < 1.0)).tolist())
        return whole, part_of, float(shares[list(part_of)].max()) if part_of else 0.0

    def _parts(self, span: int, share: float, held: tuple[int, ...]) -> list[Part]:
        name, thread = int(self.flat.name[span]), bool(self.pools.in_pool[span])
        cpu_ns, wait_ns = float(self.cpu_ns[span]) * share, float(self.wait_ns[span]) * share
        handling_ns = cpu_ns * float(self.handling[span])
        stage = self.flat.names[name].stage
        beside_ns = (cpu_ns + wait_ns) * self.beside if stage is Stage.MODEL else 0.0
        # Also where it is laid in two parts, it is one fetch.
        full_ns = float(self.full_ns[span]) if share >= _HALF else 0.0
        from_ns = float(self.flat.start_ns[span] - self.flat.intended_ns[self.flat.request[span]]) if full_ns else 0.0
        own = Part(stage, name, cpu_ns - handling_ns, wait_ns, thread, held, beside_ns, full_ns, from_ns=from_ns)
        loop = not self.flat.thread[self.pools.host[span]]
        process = bool(self.pools.in_process[span])
        own = own._replace(loop=loop, blocks=bool(self.blocks[span]), process=process)
        handling = Part(Stage.SQL, HANDLING, handling_ns, 0.0, thread, held, loop=loop, process=process)
        return [handling, own] if handling_ns else [own]


def _steps(found: Attribution) -> tuple[int, ...]:
    """Name the outermost preprocessing that spans of each name lie in, as their first one does."""
    flat = found.flat
    outer = outermost_steps(found, frozenset({Stage.PREPROCESS}))
    steps = [-1] * len(flat.names)
    for span in np.flatnonzero(outer >= 0)[::-1].tolist():
        steps[flat.name[span]] = int(flat.name[outer[span]])
    return tuple(steps)


def _way_ns(recording: Recording, found: Attribution) -> Ints:
    """What each request was between client and server, whoever was late there, but for what held the event loop.

    On one machine most of it is the kernel's: waking up who reads, which the simulation has no other place for.
    """
    flat = found.flat
    stage_ns = np.zeros_like(found.stage_ns)
    if len(flat.requests):
        place_of = {one.number: place for place, one in enumerate(flat.requests)}
        wall_ns = int(flat.intended_ns.min()), int(flat.done_ns.max())
        attribute_gaps(flat, found.gaps, Stalls.of(recording.moments, place_of, wall_ns), stage_ns)
    place = STAGE_AT[Stage.NETWORK]
    return np.maximum(stage_ns[:, place], found.stage_ns[:, place])


def _without_profiling(work: Work, recording: Recording) -> Work:
    """Take out what profiling added to the median request: CPU, and none of it inside models and their steps.

    More than half as much again is no profiling, but something else that ran while it was measured.
    """
    overhead = recording.overhead
    if overhead is None or not 0 < overhead.p50_share <= _MOST_OVERHEAD or not work.jobs:
        return work
    plain_ns = float(np.median(work.latency_ns)) / (1.0 + overhead.p50_share)
    added_ns = overhead.p50_share * plain_ns
    shrinking_ns = max(work.cpu_ns - sum(map(work.cpu_of, STEPS)), 1.0)
    kept = max(1.0 - added_ns / shrinking_ns, _LEAST_KEPT)
    jobs = tuple(
        tuple(part if part.stage in STEPS else part._replace(cpu_ns=part.cpu_ns * kept) for part in job)
        for job in work.jobs
    )
    return replace(work, jobs=jobs, latency_ns=work.latency_ns / (1.0 + overhead.p50_share))


def _code_cpu_share(recording: Recording, found: Attribution, seen_ns: Floats) -> float:
    """How much of the event loop's code whose CPU time nobody told was computing; 1 where that is not known."""
    flat = found.flat
    code = ~flat.is_of(QUEUEING | WAITING) & (self_of(flat, flat.cpu_ns) < 0) & (flat.thread == 0)
    return computing_share(recording, found, code, seen_ns)
