"""Record an unmodified ASGI application under open-loop load: requests with their spans, and what held them up."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import process_time

import msgspec

from tailcut.errors import LoadTestError, ProfileError
from tailcut.load import LoadPlan, LoadResult, Samples, measure, summarise_run
from tailcut.load.machine import machine_facts
from tailcut.load.payloads import bodies
from tailcut.load.plan import parse_url
from tailcut.load.recorder import LoadFailure
from tailcut.load.summary import RunFacts
from tailcut.profiler.attribution.background_calls import background_notes
from tailcut.profiler.child_channel import ChildEvent, Options, RecordedRun
from tailcut.profiler.diagnosis import choose_path, explain_answers
from tailcut.profiler.launching import PilotProcess
from tailcut.profiler.outside import check_rate
from tailcut.profiler.plan import PilotPlan, check_pilot
from tailcut.profiler.recording.captured import FoundLayers
from tailcut.profiler.recording.places import Places
from tailcut.profiler.records import ProfiledProcess, RecordedRequest, Recording, StackSample
from tailcut.profiler.stack_sampler import sample_stacks, samples_of
from tailcut.system.cpu_time import machine_seconds, threads_ns

HEADER = "x-tailcut-profile"
"""With a request's number: only such requests are profiled."""

_LOOKS, _STACKS = 500.0, 5000.0
"""Per second; each look reads every thread's stack. Most looks at quick code are lost: its stacks change meanwhile."""
_PROBE_RATE = 20.0
_PROBE_S = 0.3
_PROBE_TIMEOUT_S = 30.0


def record(plan: PilotPlan, *, on_step: OnStep | None = None) -> Recording:
    """Run the application under the load and record where its requests' time goes.

    The application runs in a child process under uvicorn and is stopped at the end, whatever happens.

    Args:
        plan: what to do.
        on_step: called with what is being done.

    Raises:
        ProfileError: the application does not import, start or answer, or cannot bear the rate (with the rate that it
            can); the plan makes no sense.
        LoadTestError: the payloads cannot be read.
        MissingExtra: uvicorn is not installed.
    """
    with _importable(plan.directory):
        check_pilot(plan)
        return _record(plan, on_step or (lambda _: None))


def _record(plan: PilotPlan, say: OnStep) -> Recording:
    say(f"starting {plan.target}")
    options = Options(target=plan.target, profiled=True, loop=plan.loop)
    with PilotProcess(options, directory=Path(plan.directory), environment=plan.environment) as pilot:
        ready = pilot.wait_ready(plan.ready_s, say)
        load = _load_plan(plan, pilot, ready)
        _probe(load, pilot, ready)
        say(f"trying {plan.rate:g} requests/s")
        try_rate(load, plan.target)
        return _profiled(plan, load, pilot, ready, say)


def _profiled(plan: PilotPlan, load: LoadPlan, pilot: PilotProcess, ready: ChildEvent, say: OnStep) -> Recording:
    """Record, and all that needs the process that was recorded."""
    load = msgspec.structs.replace(load, duration_s=plan.recorded_s)
    stops = plan.recorded_s < plan.duration_s
    first = f", the first {plan.max_requests:,} requests of {plan.duration_s:g} s" if stops else ""
    say(f"recording for {plan.recorded_s:.3g} s at {plan.rate:g} requests/s{first}")
    pilot.begin()
    before, machine_s, own_s = computed_ns(), machine_seconds(), process_time()
    samples, facts = measure(load)
    database_s = computed_between_s(before, computed_ns())
    others_s = max(machine_seconds() - machine_s - (process_time() - own_s) - database_s, 0.0)
    recorded = pilot.recorded()
    _check_answers(load, pilot, ready, samples, facts, recorded)
    check_answered(load, samples)
    check_rate(summarise_run(load, samples, facts), plan.target)
    rate, seconds = min(_LOOKS, _STACKS / len(threads_ns(pilot.pid))), min(plan.sample_s, plan.duration_s)
    looks, problem = _looks(plan, load, pilot, recorded, rate, seconds)
    found = _layers(pilot, say) if plan.layers else FoundLayers()
    whole_s, cpu_s = load.duration_s + load.warmup_s, facts.cpu_s or 0.0
    return Recording(
        target=plan.target,
        rate=plan.rate,
        duration_s=load.duration_s,
        requests=match_requests(samples, facts.start_ns, recorded.requests),
        moments=tuple(sorted(recorded.moments, key=lambda one: one.start_ns)),
        samples=looks,
        sample_interval_ns=0 if problem else int(1e9 / rate),
        sampled_s=0.0 if problem else seconds,
        machine=machine_facts(),
        pilot=ProfiledProcess(
            loop=ready.loop,
            watched=True,
            threads=ready.threads,
            hooks=recorded.hooks,
            versions=ready.versions,
            libraries=recorded.libraries,
            cpu_s=cpu_s,
            # The whole run is counted, warm-up included.
            database_s=database_s * load.duration_s / whole_s,
            others_s=max(others_s * load.duration_s / whole_s - cpu_s, 0.0),
            other_cores=max((os.cpu_count() or 1) - len(os.sched_getaffinity(0)), 0),
            window_s=facts.window_s,
        ),
        layers=found.layers,
        conversions=found.conversions,
        background_calls=recorded.background_calls,
        notes=(
            *_setting_notes(plan, load, ready, problem),
            *_run_notes(load, recorded, summarise_run(load, samples, facts)),
            *found.notes,
        ),
    )


def _layers(pilot: PilotProcess, say: OnStep) -> FoundLayers:
    """Time the layers of its models; where that breaks it, the recording is still whole."""
    say("timing the layers of its models")
    try:
        return pilot.layers()
    except ProfileError as error:
        return FoundLayers(notes=(f"no slow layers: {error.message}",))


@contextmanager
def _importable(directory: str) -> Iterator[None]:
    """Payloads that are made by a function of the application's are found where it is."""
    folder = str(Path(directory).resolve())
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def _looks(
    plan: PilotPlan, load: LoadPlan, pilot: PilotProcess, recorded: RecordedRun, rate: float, seconds: float
) -> tuple[tuple[StackSample, ...], str]:
    """Send the load once more and look at the stacks meanwhile; where that fails, say why: the recording is whole."""
    # Numbered too: only what belongs to a request is handed to threads in a way that their stacks show.
    sampled = msgspec.structs.replace(load, duration_s=seconds, warmup_s=0.0, seed=load.seed + 2)
    try:
        stacks, problem = sample_stacks(pilot.pid, rate, lambda: measure(sampled))
    except (LoadTestError, ProfileError, OSError) as error:
        return (), f"the run in which stacks are sampled failed ({getattr(error, 'message', error)})"
    return samples_of(stacks, int(1e9 / rate), recorded.requests, Places(plan.directory)), problem


def _load_plan(plan: PilotPlan, pilot: PilotProcess, ready: ChildEvent) -> LoadPlan:
    load = LoadPlan(
        url=pilot.url,
        rate=plan.rate,
        duration_s=plan.duration_s,
        warmup_s=plan.warmup_s,
        payloads=plan.payloads,
        method=plan.method,
        headers=plan.headers,
        timeout_s=plan.timeout_s,
        pid=pilot.pid,
        seed=plan.seed,
        numbered=HEADER,
    )
    has_paths = next(bodies(load)).path not in {"", "/"}
    path = plan.path or ("" if has_paths else choose_path(ready.routes, load.http_method))
    return msgspec.structs.replace(load, url=f"{pilot.url}/{path.lstrip('/')}")


def _probe(load: LoadPlan, pilot: PilotProcess, ready: ChildEvent) -> None:
    """A few requests first, so that a wrong path or payload shows before anything is measured."""
    few = msgspec.structs.replace(
        load, rate=_PROBE_RATE, arrivals="constant", duration_s=_PROBE_S, warmup_s=0.0,
        timeout_s=_PROBE_TIMEOUT_S,
    )  # fmt: skip
    samples, facts = measure(few)
    _check_answers(load, pilot, ready, samples, facts, pilot.recorded())


def _check_answers(
    load: LoadPlan, pilot: PilotProcess, ready: ChildEvent, samples: Samples, facts: RunFacts, recorded: RecordedRun
) -> None:
    asked = f"{load.http_method} {parse_url(load.url).path}"
    statuses = Counter(samples.status[samples.status != 0].tolist())
    error = explain_answers(statuses, facts.bodies, recorded.failures, ready.routes, asked=asked, log=pilot.log())
    if error is not None:
        raise error


_NAMES = frozenset({"postgres", "postmaster", "mysqld", "mariadbd"})
"""As the kernel calls them. What runs inside the application's process (SQLite) is counted there."""

_FIELD_CPU_NS = 0


def computed_ns(proc: Path = Path("/proc")) -> dict[int, int]:
    """Return nanoseconds that each database process of this machine has had of a core, by process.

    Args:
        proc: the kernel's files of processes: proc(5), ``comm`` and ``schedstat``, which need no rights.

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


# -- Trials ------------------------------------------------------------------------------------------------------------


_TRIAL_S = 2.0
_LONGEST_TRIAL_S = 8.0
_TRIAL_REQUESTS = 60
_MOST_LOST = 0.02

OnStep = Callable[[str], None]
"""Called with what is being done, in words."""


def try_rate(load: LoadPlan, target: str) -> None:
    """Send the load for some seconds.

    Raises:
        ProfileError: answers do not keep up with its rate; with one that the application sustains.
    """
    trial = _trial(load)
    check_rate(summarise_run(trial, *measure(trial)), target)


def check_answered(load: LoadPlan, samples: Samples) -> None:
    """Refuse an application that leaves requests without an answer, at a rate that it bears.

    Raises:
        ProfileError: more than one in fifty had none.
    """
    measured = (samples.intended_ns >= samples.measured_from_ns) & (samples.status != 0)
    silent, requests = int((measured & (samples.status < 0)).sum()), int(measured.sum())
    if silent <= _MOST_LOST * requests:
        return
    late = int((measured & (samples.status == LoadFailure.TIMEOUT)).sum())
    if late <= silent / 2:
        raise ProfileError(
            f"{silent} of {requests} requests got no answer, {silent - late} of them because their"
            " connections ended without one, at a rate that was fine before",
            hint="see what it printed: a process of the application may have died, or its server may end connections",
        )
    raise ProfileError(
        f"{silent} of {requests} requests got no answer within {load.timeout_s:g} s, at a rate that was fine before",
        hint="the application hangs at times: look at its threads while it does (py-spy dump --pid), at its locks and "
        "its database; if it is only slow, allow more with --timeout",
    )


def _trial(load: LoadPlan) -> LoadPlan:
    # What is in flight at the window's edges must not decide.
    duration_s = min(max(_TRIAL_S, _TRIAL_REQUESTS / (load.rate or 1.0)), _LONGEST_TRIAL_S)
    return msgspec.structs.replace(load, duration_s=duration_s, warmup_s=1.0, seed=load.seed + 1)


# -- Assembling --------------------------------------------------------------------------------------------------------


_RAISED = re.compile(r"([A-Za-z_][\w.]*)(?::|\Z)")
_FRAME = re.compile(r'\s+File "(?P<file>.+)", line (?P<line>\d+), in (?P<name>\S+)')
_SAYS_NOTHING = frozenset({"accept", "accept-encoding", "content-type", "content-encoding", "user-agent"})
"""Headers by which no answer goes."""
LIBRARY = re.compile(r"/site-packages/|/dist-packages/|/lib/python3|^<")
"""Files in a traceback that are not the application's."""


def _setting_notes(plan: PilotPlan, load: LoadPlan, ready: ChildEvent, sampling_problem: str) -> Iterator[str]:
    """Say how what was recorded differs from the plan, and from the application as it is deployed."""
    if plan.duration_s > load.duration_s:
        count = round(plan.rate * load.duration_s)
        yield (
            f"recorded {load.duration_s:.3g} s of {plan.duration_s:g} s (the first {count:,} requests): a higher"
            " percentile in --slo, such as p99, records more"
        )
    same = [name.lower() for name, _ in load.headers if name.lower() not in _SAYS_NOTHING]
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
    elif plan.loop == "auto" and ready.loop == "uvloop":
        yield "ran on uvloop, which tailcut brings with it and uvicorn then takes: without it, --loop asyncio is nearer"
    if sampling_problem:
        yield (
            f"{sampling_problem}: no stacks were sampled, and the time of a handler is not divided among the functions"
            " that it calls"
        )


def _run_notes(load: LoadPlan, recorded: RecordedRun, result: LoadResult) -> Iterator[str]:
    """Say what the run itself showed."""
    yield from recorded.notes
    yield from background_notes(recorded.background_calls, load.duration_s + load.warmup_s)
    if result.answered < result.requests:
        counts = {**result.statuses, **result.errors}
        yield "not every request was answered 2xx: " + ", ".join(f"{count} {kind}" for kind, count in counts.items())
    if recorded.failures:
        yield f"the application raised: {raised(recorded.failures[0])}"
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


def match_requests(samples: Samples, start_ns: int, recorded: Iterable[RecordedRequest]) -> tuple[RecordedRequest, ...]:
    """Join each measured request of the load with the server's record of it.

    Args:
        samples: the client's; times count from ``start_ns``.
        start_ns: of the monotonic clock.
        recorded: the server's, in any order; a number that comes twice (a client that sent again) counts once.
    """
    server = {one.number: one for one in recorded}
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
            found.append(RecordedRequest(number=number, **times))
        else:
            found.append(msgspec.structs.replace(known, **times))
    return tuple(found)
