"""Record an unmodified ASGI application under open-loop load: requests with their spans, and what held them up."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from time import process_time

import msgspec

from tailcut.errors import LoadTestError, ProfileError
from tailcut.load import LoadPlan, Samples, measure
from tailcut.load.payloads import build_requests
from tailcut.load.plan import parse_url
from tailcut.load.summary import RunFacts
from tailcut.profiler.assembling import Run, assemble
from tailcut.profiler.child_channel import Heard, Options, Said
from tailcut.profiler.diagnosis import choose_path, explain_answers
from tailcut.profiler.launching import PilotProcess
from tailcut.profiler.plan import PilotPlan, check_pilot
from tailcut.profiler.recording.captured import FoundLayers
from tailcut.profiler.recording.places import Places
from tailcut.profiler.records import Recording, Sample
from tailcut.profiler.spying import Spy
from tailcut.profiler.trials import OnStep, check_answered, check_rate, try_rate
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
        on_step: hears what is being done.

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
    with _start(plan) as pilot:
        ready = pilot.wait_ready(plan.ready_s, say)
        load = _load_plan(plan, pilot, ready)
        _probe(load, pilot, ready)
        say(f"trying {plan.rate:g} requests/s")
        try_rate(load, plan.target)
        return _profiled(plan, load, pilot, ready, say)


def _profiled(plan: PilotPlan, load: LoadPlan, pilot: PilotProcess, ready: Said, say: OnStep) -> Recording:
    """Record, and all that needs the process that was recorded."""
    load = msgspec.structs.replace(load, duration_s=plan.recorded_s)
    stops = plan.recorded_s < plan.duration_s
    first = f", the first {plan.max_requests:,} requests of {plan.duration_s:g} s" if stops else ""
    say(f"recording for {plan.recorded_s:.3g} s at {plan.rate:g} requests/s{first}")
    pilot.begin()
    before, machine_s, own_s = computed_ns(), machine_seconds(), process_time()
    samples, facts = measure(load)
    database_s = computed_between_s(before, computed_ns())
    machine_s, own_s = machine_seconds() - machine_s, process_time() - own_s
    heard = pilot.heard()
    _check_answers(load, pilot, ready, samples, facts, heard)
    check_answered(load, samples)
    check_rate(load, samples, facts, plan.target)
    rate, seconds = min(_LOOKS, _STACKS / len(threads_ns(pilot.pid))), min(plan.sample_s, plan.duration_s)
    looks, problem = _looks(plan, load, pilot, heard, rate, seconds)
    run = Run(
        load=load, ready=ready, samples=samples, facts=facts, heard=heard,
        looks=looks, looks_interval_ns=int(1e9 / rate), looks_s=seconds, spy_problem=problem,
        asked_loop=plan.loop, planned_s=plan.duration_s, database_s=database_s,
        others_s=max(machine_s - own_s - database_s, 0.0),
    )  # fmt: skip
    found = _layers(pilot, say) if plan.layers else FoundLayers()
    recording = assemble(plan.target, run)
    return msgspec.structs.replace(
        recording, layers=found.layers, conversions=found.conversions, notes=(*recording.notes, *found.notes)
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
    plan: PilotPlan, load: LoadPlan, pilot: PilotProcess, heard: Heard, rate: float, seconds: float
) -> tuple[tuple[Sample, ...], str]:
    """Send the load once more and look at the stacks meanwhile; where that fails, say why: the recording is whole."""
    # Numbered too: only what belongs to a request is handed to threads in a way that their stacks show.
    sampled = msgspec.structs.replace(load, duration_s=seconds, warmup_s=0.0, seed=load.seed + 2)
    try:
        with Spy(pilot.pid, rate) as spy:
            measure(sampled)
            spy.stop()
            return spy.samples(heard.requests, Places(plan.directory)), spy.problem
    except (LoadTestError, ProfileError, OSError) as error:
        return (), f"the run in which stacks are sampled failed ({getattr(error, 'message', error)})"


def _start(plan: PilotPlan) -> PilotProcess:
    options = Options(target=plan.target, report=-1, profiled=True, loop=plan.loop)
    return PilotProcess(options, directory=Path(plan.directory), environment=plan.environment)


def _load_plan(plan: PilotPlan, pilot: PilotProcess, ready: Said) -> LoadPlan:
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
    requests = build_requests(load, parse_url(load.url), 1)
    own_path = requests[0].split(b" ", 2)[1] != b"/"
    path = plan.path or ("" if own_path else choose_path(ready.routes, load.http_method))
    return msgspec.structs.replace(load, url=f"{pilot.url}/{path.lstrip('/')}")


def _probe(load: LoadPlan, pilot: PilotProcess, ready: Said) -> None:
    """A few requests first, so that a wrong path or payload shows before anything is measured."""
    few = msgspec.structs.replace(
        load, rate=_PROBE_RATE, arrivals="constant", duration_s=_PROBE_S, warmup_s=0.0,
        timeout_s=_PROBE_TIMEOUT_S,
    )  # fmt: skip
    samples, facts = measure(few)
    _check_answers(load, pilot, ready, samples, facts, pilot.heard())


def _check_answers(
    load: LoadPlan, pilot: PilotProcess, ready: Said, samples: Samples, facts: RunFacts, heard: Heard
) -> None:
    asked = f"{load.http_method} {parse_url(load.url).path}"
    statuses = Counter(samples.status[samples.status != 0].tolist())
    error = explain_answers(statuses, facts.bodies, heard.failures, ready.routes, asked=asked, log=pilot.log())
    if error is not None:
        raise error


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
