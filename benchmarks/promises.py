"""What `tailcut profile` promises of work that a service hands over, beside what removing that work wins.

    python -m benchmarks.promises [--rounds 5] [--seconds 12] [--out benchmarks/results/promises.md]

The planted service (tests/integration/profile_handing.py) has each route twice: with a process pool or background
work, and without. A route is profiled once a round; then both are asked in turn, without profiling. A promise holds
where the median of its rounds is within 25 % of the median of what was won. On a machine with other work the profile
itself says that its levers are doubtful: such rounds are counted and left out.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.overhead import commit, cpu
from tailcut.common.slo import Objectives
from tailcut.common.statistics import percentile
from tailcut.load import LoadPlan, measure
from tailcut.profiler.child_channel import Options
from tailcut.profiler.launching import PilotProcess
from tailcut.profiler.pilot import record
from tailcut.profiler.plan import PilotPlan
from tailcut.report.profile.json import advice_of

_SERVICE = Path(__file__).parents[1] / "tests/integration/profile_handing.py"
_RATE = 10.0
_MS = 15.0
_WITHIN = 0.25


class Case(NamedTuple):
    """A route, the same without its work, and the lever that removes it; ``best``: by its bound."""

    path: str
    without: str
    lever: str
    best: bool = False


_CASES = (
    Case("/pool", "/pool/without", "no process pool", best=True),
    Case("/shipped", "/shipped/inline", "no process pool"),
    Case("/background", "/plain", "no background work"),
    Case("/task", "/plain", "no background work"),
)


def main() -> int:
    """Print the table; the exit code is 1 where a promise did not hold."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=12.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        f"# Promises\n\n{cpu()}, commit {commit()}, {options.rounds} rounds of {options.seconds:g} s, {_RATE:g}/s.\n",
        "| route | without | lever | p95 promised, ms | p95 won, ms | promised / won | doubtful rounds |",
        "|---|---|---|---:|---:|---:|---:|",
    ]
    held = True
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shutil.copy(_SERVICE, folder / "handing.py")
        (folder / "bodies.jsonl").write_text(json.dumps({"ms": _MS}) + "\n")
        for case in _CASES:
            promised, won, doubtful = _compare(case, folder, options.rounds, options.seconds)
            row = f"| {case.path} | {case.without} | {case.lever} | "
            if not promised:
                lines.append(f"{row}doubtful | {statistics.median(won):.2f} | | {doubtful} |")
                held = False
                continue
            ratio = statistics.median(promised) / statistics.median(won)
            held = held and abs(ratio - 1.0) <= _WITHIN
            lines.append(f"{row}{_of(promised)} | {_of(won)} | {ratio:.2f} | {doubtful} |")
    text = "\n".join(lines) + "\n"
    sys.stdout.write(text)
    if options.out:
        options.out.write_text(text)
    return 0 if held else 1


def _compare(case: Case, folder: Path, rounds: int, seconds: float) -> tuple[list[float], list[float], int]:
    promised: list[float] = []
    won: list[float] = []
    with PilotProcess(Options(target="handing:app", report=-1, profiled=False), directory=folder) as process:
        process.wait_ready(60.0)
        for _ in range(rounds):
            if (found := _promised(case, folder, seconds)) is not None:
                promised.append(found)
            won.append(_p95_ms(process, folder, case.path, seconds) - _p95_ms(process, folder, case.without, seconds))
    return promised, won, rounds - len(promised)


def _promised(case: Case, folder: Path, seconds: float) -> float | None:
    """Profile a route; return what its lever wins of the p95 in milliseconds, None where the profile doubts it."""
    recording = record(
        PilotPlan(
            target="handing:app", path=case.path, payloads=str(folder / "bodies.jsonl"), directory=str(folder),
            rate=_RATE, duration_s=seconds, warmup_s=1.0, sample_s=1.0, layers=False,
        )
    )  # fmt: skip
    advice = advice_of(recording, Objectives(), None, ())
    if advice is None or advice.doubts:
        return None
    lever = next(one for one in advice.levers if one.lever == case.lever)
    return advice.now.p95_ms - (lever.bound_p95_ms if case.best else lever.p95_ms)


def _p95_ms(process: PilotProcess, folder: Path, path: str, seconds: float) -> float:
    plan = LoadPlan(
        url=f"{process.url}{path}", rate=_RATE, duration_s=seconds, warmup_s=1.0, pid=process.pid,
        payloads=str(folder / "bodies.jsonl"), method="POST",
    )  # fmt: skip
    samples, _ = measure(plan)
    took_ms = (samples.done_ns - samples.intended_ns)[samples.status == 200] / 1e6
    return percentile(np.asarray(took_ms), 0.95)


def _of(values: list[float]) -> str:
    return f"{statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


if __name__ == "__main__":
    raise SystemExit(main())
