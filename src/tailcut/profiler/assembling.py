"""What the client, the application and the sampler saw of one run, put together as a recording."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from tailcut.ladder.machine import machine_facts
from tailcut.load import LoadPlan, Samples, summarise_run
from tailcut.load.summary import RunFacts
from tailcut.profiler.attribution.background_calls import background_notes
from tailcut.profiler.child_channel import Heard, Said
from tailcut.profiler.records import Pilot, Recording, Request, Sample

_RAISED = re.compile(r"([A-Za-z_][\w.]*)(?::|\Z)")
_FRAME = re.compile(r'\s+File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>\S+)')
_SAYS_NOTHING = frozenset({"accept", "accept-encoding", "content-type", "content-encoding", "user-agent"})
"""Headers by which no answer goes."""
LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib/python3|^<")
"""Files in a traceback that are not the application's."""


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run of the load on a profiled application.

    Args:
        load: what was sent.
        ready: what the application said when it was ready.
        samples, facts: the client's side.
        heard: the server's side.
        looks: what was sampled from outside; ``looks_interval_ns`` is the time between two, ``looks_s`` that of all.
        spy_problem: why nothing was; empty where it was.
        asked_loop: which event loop the application was to have.
        planned_s: seconds that were to be recorded, where so many requests stopped the load sooner.
        database_s: CPU seconds of the databases on this machine, in the whole run.
        others_s: the same of the application and of everything else but databases and the load generator.
    """

    load: LoadPlan
    ready: Said
    samples: Samples
    facts: RunFacts
    heard: Heard
    looks: tuple[Sample, ...]
    looks_interval_ns: int
    looks_s: float = 0.0
    spy_problem: str
    asked_loop: str = "auto"
    planned_s: float = 0.0
    database_s: float = 0.0
    others_s: float = 0.0


def assemble(target: str, run: Run) -> Recording:
    """Make the recording of a run."""
    heard, load = run.heard, run.load
    requests = match_requests(run.samples, run.facts.start_ns, heard.requests)
    whole_s = load.duration_s + load.warmup_s
    return Recording(
        target=target,
        rate=load.rate or 0.0,
        duration_s=load.duration_s,
        requests=requests,
        moments=tuple(sorted(heard.moments, key=lambda one: one.start_ns)),
        samples=run.looks,
        sample_interval_ns=0 if run.spy_problem else run.looks_interval_ns,
        sampled_s=0.0 if run.spy_problem else run.looks_s,
        machine=machine_facts(),
        pilot=Pilot(
            loop=run.ready.loop,
            watched=True,
            threads=run.ready.threads,
            hooks=heard.hooks,
            versions=run.ready.versions,
            libraries=heard.libraries,
            cpu_s=run.facts.cpu_s or 0.0,
            # The whole run is counted, warm-up included.
            database_s=run.database_s * load.duration_s / whole_s,
            others_s=max(run.others_s * load.duration_s / whole_s - (run.facts.cpu_s or 0.0), 0.0),
            other_cores=max((os.cpu_count() or 1) - len(os.sched_getaffinity(0)), 0),
            window_s=run.facts.window_s,
        ),
        background_calls=heard.background_calls,
        notes=tuple(_notes(run)),
    )


def _notes(run: Run) -> Iterator[str]:
    ready = run.ready
    if run.planned_s > run.load.duration_s:
        count = round((run.load.rate or 0.0) * run.load.duration_s)
        yield (
            f"recorded {run.load.duration_s:.3g} s of {run.planned_s:g} s (the first {count:,} requests): a higher"
            " percentile in --slo, such as p99, records more"
        )
    same = [name.lower() for name, _ in run.load.headers if name.lower() not in _SAYS_NOTHING]
    if same:
        yield (
            f"all requests had the same {' and '.join(same)}: where queries or answers go by that, fewer repeat than is"
            " told, and a cache's keys have to hold it"
        )
    if ready.loop != ready.usual_loop:
        yield (
            f"ran on {ready.loop}'s event loop, as it was told to; uvicorn would have taken {ready.usual_loop}, on"
            " which requests take less of a core"
        )
    elif run.asked_loop == "auto" and ready.loop == "uvloop":
        yield "ran on uvloop, which tailcut brings with it and uvicorn then takes: without it, --loop asyncio is nearer"
    if run.spy_problem:
        yield (
            f"{run.spy_problem}: no stacks were sampled, and the time of a handler is not divided among the functions"
            " that it calls"
        )
    yield from run.heard.notes
    yield from background_notes(run.heard.background_calls, run.load.duration_s + run.load.warmup_s)
    result = summarise_run(run.load, run.samples, run.facts)
    if result.answered < result.requests:
        counts = {**result.statuses, **result.errors}
        yield "not every request was answered 2xx: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
    if run.heard.failures:
        yield f"the application raised: {raised(run.heard.failures[0])}"
    yield from result.warnings


def raised(trace: str) -> str:
    """Name the exception at the end of a traceback and where it was raised; not its text, which may hold payloads."""
    lines = trace.splitlines()
    frames = [(number, found) for number, line in enumerate(lines) if (found := _FRAME.match(line))]
    # Below the innermost frame comes the exception; its text may have lines of its own.
    below = lines[frames[-1][0] + 1 :] if frames else lines[-1:]
    name = next((found[1] for line in below if (found := _RAISED.match(line))), "")
    own = [found for _, found in frames if not LIBRARY.search(found["file"])] or [found for _, found in frames]
    place = f" in {own[-1]['name']} ({Path(own[-1]['file']).name}:{own[-1]['line']})" if own else ""
    return f"{name.rpartition('.')[2] or 'an exception'}{place}"


def match_requests(samples: Samples, start_ns: int, heard: Iterable[Request]) -> tuple[Request, ...]:
    """Give each measured request of the load what the server knows of it.

    Args:
        samples: the client's; times count from ``start_ns``.
        start_ns: of the monotonic clock.
        heard: the server's, in any order; a number that comes twice (a client that sent again) counts once.
    """
    server = {one.number: one for one in heard}
    found = []
    columns = zip(
        samples.intended_ns.tolist(),
        samples.sent_ns.tolist(),
        samples.done_ns.tolist(),
        samples.status.tolist(),
        strict=True,
    )
    for number, (intended_ns, sent_ns, done_ns, status) in enumerate(columns):
        if intended_ns < samples.measured_from_ns or status == 0:
            continue
        times = {
            "intended_ns": start_ns + intended_ns,
            "sent_ns": start_ns + sent_ns if sent_ns >= 0 else -1,
            "done_ns": start_ns + done_ns if done_ns >= 0 else -1,
            "status": status,
        }
        known = server.get(number)
        if known is None:
            found.append(Request(number=number, **times))
        else:
            found.append(msgspec.structs.replace(known, **times))
    return tuple(found)
