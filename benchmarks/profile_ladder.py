"""Does a profile of the pilot foretell what the ladder then measures?  python -m benchmarks.profile_ladder

Profiles the flight_risk pilot, foretells the p95 and the capacity of every rung, in the ladder's own order, and puts
them beside a ladder's file. Nothing of the rungs is run: beside the profile there are five small runs on an idle
machine (the model's calls on each runtime, the manifest's queries, the pilot's, tailcut's own path, which keys repeat).
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import msgspec

from benchmarks.profile_ladder_report import STEEP, Compared, compare, render
from benchmarks.profile_ladder_runs import Hits, Window, hits_at, known_of
from tailcut.ladder.machine import commit_of
from tailcut.manifest import load
from tailcut.profiler.attribution.budget import make_budget
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.deployments.own_path import with_path
from tailcut.profiler.files import load_recording, save_recording
from tailcut.profiler.forecast.calibration import Calibration, calibrate
from tailcut.profiler.forecast.forecast import Forecast, forecast
from tailcut.profiler.forecast.state import Known, LeverName, State
from tailcut.profiler.forecast.work import read_work
from tailcut.profiler.levers.levers import begin, pull
from tailcut.profiler.levers.priors import Prior, measured
from tailcut.profiler.pilot import record
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import Recording
from tailcut.report.ladder.file import COMFORTABLE, LadderRecord, load_ladder

FOLDER = Path("examples/flight_risk")
RUNGS: tuple[tuple[str, tuple[LeverName, ...]], ...] = (
    ("pilot", ()),
    ("levers off", ("serving path",)),
    ("+ feature cache", ("concurrent I/O", "feature cache")),
    ("+ ONNX", ("runtime",)),
    ("+ batching, warm executors", ("batching",)),
    ("+ prediction caches", ("prediction cache",)),
)
"""The ladder's rungs in levers. "+ INT8" was refused by the gate, and is foretold to gain nothing."""
_MEASURED = re.compile(r"([\d.]+) s per rung, rate and round, after ([\d.]+) s of it(?:, and ([\d.]+) s more)?")
"""How a ladder's file says it (``tailcut.ladder.options.describe``)."""


class Found(NamedTuple):
    """A ladder, a profile, and every rung foretold and measured: with the small runs, and from the profile alone."""

    ladder: LadderRecord
    recording: Recording
    known: Known
    with_runs: list[Compared]
    without_runs: list[Compared]


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile, foretell, compare, write the report."""
    options = options_of(arguments)
    found = find(options)
    text = render(
        found.ladder,
        found.recording,
        make_budget(found.recording),
        found.known,
        found.with_runs,
        found.without_runs,
        commit=commit_of(Path.cwd()),
    )
    options.out.write_text(text, encoding="utf-8")
    print(text)


def find(options: argparse.Namespace) -> Found:
    """Profile, unless there is a recording, and foretell.

    Args:
        options: as ``options_of`` reads them.
    """
    ladder = load_ladder(options.ladder)
    examples = str(options.folder.resolve().parent)
    if examples not in sys.path:  # once, for all rounds
        sys.path.append(examples)
    os.environ.setdefault("FLIGHT_RISK_HOME", str((options.folder / ".artifacts").resolve()))
    window = _window(ladder)
    options.rate = options.rate or window.rate  # what a request takes of a core depends on how often one comes
    recording, known = _kept(options, window) if options.recording and options.runs else _run(options, window)
    recording = _measured_by_the_ladder(recording, window)
    # What a profile says on its own: queries as recorded, nothing known of the database, factors from elsewhere.
    alone = Known(
        feature_hits=known.feature_hits, int8=known.int8, family="torch",
        path=known.path, path_slope=known.path_slope, path_waits_ns=known.path_waits_ns,
    )  # fmt: skip
    rates = _rates(ladder)
    if len(rates) > 2:
        raise SystemExit(f"the ladder has {len(rates)} rates, this can compare 2\n\nhint: tailcut ladder --rates RATE")
    hits = {name: hits_at(load(options.folder), window, rate) for name, rate in rates.items()}
    known = _knowing(known, hits[COMFORTABLE])
    with_runs, without_runs = (_foretell(recording, ladder, one, hits) for one in (known, alone))
    return Found(ladder, recording, known, with_runs, without_runs)


def _kept(options: argparse.Namespace, window: Window) -> tuple[Recording, Known]:
    """Take what an earlier comparison recorded and ran: only what is made of it may differ."""
    known = msgspec.msgpack.decode(options.runs.read_bytes(), type=Known)
    for numbers in filter(None, (known.feature_hits, known.fetches)):
        if not numbers.keys() >= set(range(window.first, window.end)):
            raise SystemExit(
                f"{options.runs} knows requests {min(numbers)} to {max(numbers)}, and the ladder measured"
                f" {window.first} to {window.end - 1}\n\nhint: run them again, without --runs (or with another --keep)"
            )
    return load_recording(options.recording), known


def _run(options: argparse.Namespace, window: Window) -> tuple[Recording, Known]:
    """Profile, unless there is a recording; run what a profile cannot know."""
    from flight_risk.stacks import stack

    with stack() as variables, _set(variables):
        recording = load_recording(options.recording) if options.recording else _record(options, variables)
        os.sched_setaffinity(0, {0})
        known = _with_database(known_of(load(options.folder), window, recording.rate), variables)
        pilot = recording.pilot
        known = replace(known, path=_path(recording), path_slope=pilot.path_slope, path_waits_ns=pilot.path_waits_ns)
    if options.save:
        save_recording(recording, options.save / "recording.tailcut")
        (options.save / "runs.msgpack").write_bytes(msgspec.msgpack.encode(known))
    return recording, known


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=FOLDER, help="of the trained and built example")
    parser.add_argument("--ladder", type=Path, default=Path("benchmarks/results/ladder/ladder.json"))
    parser.add_argument(
        "--rate",
        type=float,
        help="the pilot is profiled at, requests per second; by default the ladder's comfortable one",
    )
    parser.add_argument("--duration", type=float, default=20.0, help="seconds")
    parser.add_argument("--recording", type=Path, help="of an earlier run, instead of a new one")
    parser.add_argument("--runs", type=Path, help="small runs of an earlier run, with --recording: nothing is run then")
    parser.add_argument("--save", type=Path, help="keep recording.tailcut and runs.msgpack in this folder")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/profile_ladder.md"))
    return parser.parse_args(arguments)


def _record(options: argparse.Namespace, variables: dict[str, str]) -> Recording:
    examples = options.folder.resolve().parent

    def step(text: str) -> None:
        print(text, flush=True)
        # As the ladder does it: the server on the first core, the load on the second.
        os.sched_setaffinity(0, {0} if "start" in text else {1})

    recording = record(
        PilotPlan(
            target="flight_risk.pilot.app:app", payloads="flight_risk.traffic:board", path="/predict",
            rate=options.rate, duration_s=options.duration, warmup_s=3.0, directory=str(examples),
            environment={**variables, "PYTHONPATH": str(examples)}, overhead_rounds=6, overhead_s=3.0,
        ),
        on_step=step,
    )  # fmt: skip
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return with_path(recording, on_step=print)


@contextmanager
def _set(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables, and what cores are used, for what is run here and for nobody after it."""
    before, cores = dict(os.environ), os.sched_getaffinity(0)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        os.sched_setaffinity(0, cores)


def _path(recording: Recording) -> Prior | None:
    """What tailcut's path takes here, as `tailcut profile` has measured it with the recording."""
    path_ns = recording.pilot.path_ns
    return measured(path_ns, f"at {recording.rate:g} requests/s") if path_ns else None


def _window(ladder: LadderRecord) -> Window:
    """Which requests the ladder measured at the pilot's comfortable rate: each server begins with an empty cache."""
    rate = _rates(ladder)[COMFORTABLE]
    found = _MEASURED.match(ladder.settings["measured"])
    if found is None:
        raise SystemExit(
            f"{ladder.settings['measured']!r} does not say what the ladder measured\n\nhint: climb it again"
        )
    # Ladders of before servers settled do not say so.
    duration_s, warm_s, settle_s = (float(one or 0.0) for one in found.groups())
    first_s = settle_s + warm_s
    return Window(rate=rate, first=round(first_s * rate), end=round((first_s + duration_s) * rate), warm_s=warm_s)


def _measured_by_the_ladder(recording: Recording, window: Window) -> Recording:
    """Keep the requests with the numbers that the ladder measured: what is in a cache depends on how many came before.

    A ladder with a seed of its own asked for other flights, drawn in the same way.
    """
    requests, others = (
        tuple(one for one in of if window.first <= one.number < window.end)
        for of in (recording.requests, recording.untraced)
    )
    part = (len(requests) + len(others)) / max(len(recording.requests) + len(recording.untraced), 1)
    pilot = msgspec.structs.replace(recording.pilot, cpu_s=recording.pilot.cpu_s * part)
    return msgspec.structs.replace(recording, requests=requests, untraced=others, pilot=pilot)


def _with_database(known: Known, variables: Mapping[str, str]) -> Known:
    """Say which cores the database has: all of the machine, as the ladder has it; the server has the first of them."""
    if not variables["FLIGHT_RISK_DATABASE"].startswith("postgresql://"):
        return known
    return replace(known, database_cores=max((os.cpu_count() or 1) - 1, 0), database_beside=True)


def _rates(ladder: LadderRecord) -> dict[str, float]:
    """Requests per second, by the names that the ladder has for them."""
    return {one.rate_name: one.rate for rung in ladder.rungs for one in rung.measurements}


def _foretell(recording: Recording, ladder: LadderRecord, known: Known, hits: Mapping[str, Hits]) -> list[Compared]:
    state, calibration = calibrate(begin(read_work(recording, attribute(recording)), known))
    # Of a prediction cache's entries, more are asked for again within their life the more requests come.
    states = {name: replace(state, known=_knowing(known, one)) for name, one in hits.items()}
    compared: list[Compared] = []
    for name, levers in RUNGS:
        for rate_name in ladder.rate_names:
            for lever in levers:
                states[rate_name] = pull(states[rate_name], lever)
            compared.append(_rung(states[rate_name], name, rate_name, ladder, calibration))
    return compared


def _knowing(known: Known, hits: Hits) -> Known:
    return replace(known, prediction_hits=hits.entity, tensor_hits=hits.tensor)


def _rung(state: State, name: str, rate_name: str, ladder: LadderRecord, calibration: Calibration) -> Compared:
    rung = next(one for one in ladder.rungs if one.name == name)
    measured = [one for one in rung.measurements if one.rate_name == rate_name]
    rate = measured[0].rate
    foretold: Forecast = forecast(state, rate, limit_ms=25.0)
    quicker, slower = (
        forecast(replace(state, work=state.work.scaled(cpu=1.0 + part)), rate).p95_ms for part in (-STEEP, STEEP)
    )
    return compare(name, rate_name, measured, rung.capacity, foretold, calibration, (quicker, slower))


if __name__ == "__main__":
    main()
