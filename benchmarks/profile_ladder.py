"""The advice of a pilot's profile beside what a ladder measured.  python -m benchmarks.profile_ladder

Profiles the flight_risk pilot at the ladder's comfortable rate (or reads a kept recording), pulls the levers of each
rung in the ladder's order, and puts range and bound beside the rung's measured p95. The ladder must be of this machine.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import NamedTuple

from tailcut.load.machine import commit_of
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.advice import advise
from tailcut.profiler.levers.known import LeverAssumptions, know
from tailcut.profiler.levers.work import End, LeverName, RequestWork, pull, read_work, shorten_queues
from tailcut.profiler.payload_log import sent_payloads
from tailcut.profiler.pilot import record
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import Recording, load_recording, save_recording
from tailcut.report.ladder.file import COMFORTABLE, LadderRecord, load_ladder

RUNGS: Mapping[str, tuple[LeverName, ...]] = {
    "pilot": (),
    "levers off": ("serving path",),
    "+ feature cache": ("concurrent I/O", "feature cache"),
    "+ ONNX": ("runtime",),
    "+ INT8": ("INT8",),
    "+ batching, warm executors": ("batching",),
    "+ prediction caches": ("prediction cache",),
}
"""The levers that each rung adds to those before it."""
_PAYLOADS = "flight_risk.traffic:board"
_WARM_S = 10.0
"""So long the ladder's servers settle too before they are measured: caches are full then."""
_SHARE = 0.95
_SAME_RATE = 0.1
"""By more than this share a recording's rate may not differ from the ladder's: waits would."""


class Compared(NamedTuple):
    """A rung: the p95 of the ladder's rounds, and what the advice says of it, best, worst and at the very best."""

    rung: str
    measured_ms: tuple[float, ...]
    best_ms: float
    worst_ms: float
    bound_ms: float

    @property
    def p95_ms(self) -> float:
        """The median round."""
        return median(self.measured_ms)

    @property
    def below(self) -> bool:
        """Whether the median round is below the bound. The pilot has none: no lever is pulled."""
        return bool(RUNGS[self.rung]) and self.p95_ms < self.bound_ms


def main(arguments: Sequence[str] | None = None) -> None:
    """Profile, compare, write the report."""
    options = _options(arguments)
    ladder = load_ladder(options.ladder)
    measured = p95s(ladder)
    rate = next(one.rate for rung in ladder.rungs for one in rung.measurements if one.rate_name == COMFORTABLE)
    sys.path.append(str(options.folder.resolve().parent))
    os.environ.setdefault("FLIGHT_RISK_HOME", str((options.folder / ".artifacts").resolve()))
    recording = load_recording(options.recording) if options.recording else _record(options, rate)
    if abs(recording.rate / rate - 1.0) > _SAME_RATE:
        raise SystemExit(
            f"error: recorded at {recording.rate:g} requests/s, the ladder's comfortable rate is {rate:g}\n\n"
            "hint: leave --recording out"
        )
    if options.save:
        save_recording(recording, options.save)
    sent = sent_payloads(_PAYLOADS, rate=recording.rate, count=1 + max(one.number for one in recording.requests))
    diversity = sent.diversity()
    # The ladder's servers have one core, and the load the other.
    known = replace(know(recording, sent.bodies, diversity, recording.rate), cores=1)
    found = attribute(recording)
    compared = compare(read_work(recording, found, known), known, measured, recording.rate)
    advice = advise(recording, known=known, diversity=diversity, found=found)
    first = advice.levers[0].lever if advice is not None and advice.levers[0].worth else ""
    text = render(compared, first, recording, ladder, commit_of(Path.cwd()))
    options.out.write_text(text, encoding="utf-8")
    print(text)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("examples/flight_risk"), help="of the trained example")
    parser.add_argument("--ladder", type=Path, default=Path("benchmarks/results/ladder/ladder.json"))
    parser.add_argument("--duration", type=float, default=20.0, help="seconds recorded")
    parser.add_argument("--recording", type=Path, help="of an earlier run, instead of a new one")
    parser.add_argument("--save", type=Path, help="keep the recording in this file")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/profile_ladder.md"))
    return parser.parse_args(arguments)


def _record(options: argparse.Namespace, rate: float) -> Recording:
    from flight_risk.stacks import stack

    def step(text: str) -> None:
        print(text, flush=True)
        os.sched_setaffinity(0, {0} if "start" in text else {1})  # as the ladder: the server on core 0, the load on 1

    examples = str(options.folder.resolve().parent)
    cores = os.sched_getaffinity(0)
    try:
        with stack() as variables:
            return record(
                PilotPlan(
                    target="flight_risk.pilot.app:app", payloads=_PAYLOADS, path="/predict", rate=rate,
                    duration_s=options.duration, warmup_s=_WARM_S, directory=examples,
                    environment={**variables, "PYTHONPATH": examples},
                ),
                on_step=step,
            )  # fmt: skip
    finally:
        os.sched_setaffinity(0, cores)


def p95s(ladder: LadderRecord) -> dict[str, tuple[float, ...]]:
    """Return the p95 of each round at the comfortable rate, in milliseconds, by rung; only of rungs that ran.

    Raises:
        SystemExit: the ladder has no such rate, or a rung whose levers are not known.
    """
    found = {
        rung.name: tuple(
            one.latency_ms.p95
            for one in rung.measurements
            if one.rate_name == COMFORTABLE and one.latency_ms is not None
        )
        for rung in ladder.rungs
        if rung.ran
    }
    if unknown := [name for name in found if name not in RUNGS]:
        raise SystemExit(f"error: rung {unknown[0]!r} of the ladder has no levers\n\nhint: it is one of {list(RUNGS)}")
    if not found or not all(found.values()):
        raise SystemExit("error: the ladder has no comfortable rate\n\nhint: run `tailcut ladder` with a pilot")
    return found


def compare(
    work: RequestWork, known: LeverAssumptions, measured: Mapping[str, Sequence[float]], rate: float
) -> list[Compared]:
    """Pull the levers of each rung that was measured, in order.

    Args:
        measured: p95 of each round in milliseconds, by rung.
        rate: requests per second.
    """
    ends: tuple[End, End, End] = ("best", "worst", "bound")
    left = dict.fromkeys(ends, work)
    compared = []
    for rung, rounds_ms in measured.items():
        for end in ends:
            for lever in RUNGS[rung]:
                left[end] = pull(left[end], lever, known, end)
        best, worst, bound = (shorten_queues(work, left[end], rate, end).percentile_ms(_SHARE) for end in ends)
        compared.append(Compared(rung, tuple(rounds_ms), best, max(best, worst), min(best, bound)))
    return compared


def render(compared: Sequence[Compared], first: str, recording: Recording, ladder: LadderRecord, commit: str) -> str:
    """Write the report.

    Args:
        first: the lever that the advice puts first; empty: none.
    """
    lines = [
        "# The advice of a profile, and what the ladder measured",
        "",
        f"`python -m benchmarks.profile_ladder` at commit {commit} on {recording.machine.get('cpu', '?')}: the"
        f" flight_risk pilot profiled at {recording.rate:g} requests/s for {recording.duration_s:g} s, beside the"
        f" ladder of {ladder.created[:10]} at commit {ladder.commit} on {ladder.machine.get('cpu', '?')}.",
        "",
        "| rung | measured p95 ms (rounds) | best to worst | bound | where the median is |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {one.rung} | {one.p95_ms:.3g} ({min(one.measured_ms):.3g}-{max(one.measured_ms):.3g})"
        f" | {one.best_ms:.3g} to {one.worst_ms:.3g} | {one.bound_ms:.3g} | {_place(one)} |"
        for one in compared
    ]
    return "\n".join([*lines, "", *verdicts(compared, first)]) + "\n"


def verdicts(compared: Sequence[Compared], first: str) -> list[str]:
    """Say whether a bound was broken, and whether the rung that won most is the one that the advice has first."""
    below = [one.rung for one in compared if one.below]
    won = {after.rung: before.p95_ms - after.p95_ms for before, after in pairwise(compared)}
    told = {after.rung: before.best_ms - after.best_ms for before, after in pairwise(compared)}
    most = max(won, key=lambda rung: won[rung])
    said = "the advice has no lever to pull"
    if first:
        said = f"the first lever of the advice, {first}, is {'' if first in RUNGS[most] else 'not '}part of it"
    return [
        f"- Below the bound: {', '.join(below) or 'no rung'}.",
        f"- The rung that won most is {most} ({won[most]:.3g} ms); {said}.",
        f"- In the ladder's order the best figures have {max(told, key=lambda rung: told[rung])} win most.",
    ]


def _place(one: Compared) -> str:
    if not RUNGS[one.rung]:
        return "-"
    if one.below:
        return "below the bound"
    if one.p95_ms < one.best_ms:
        return "better than the range"
    return "in the range" if one.p95_ms <= one.worst_ms else "worse than the range"


if __name__ == "__main__":
    main()
