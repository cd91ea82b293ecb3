"""Foretold beside measured, in turns: a ladder of one round, then a profile, and so on.

    python -m benchmarks.profile_ladder_rounds [--rounds 3] [--comfortable 80] [--rates 110] [--keep FOLDER]

What a machine that others share can do wanders by a third within minutes, which is more than a forecast may be off. So
each round's profile is taken right after its ladder, and medians over the rounds are compared. All rungs must bear the
rates: the p95 of a queue that grows says how long was measured, and nothing else. What is in the folder from an earlier
run is not run again.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from itertools import combinations, pairwise
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.profile_ladder import FOLDER, Found, find, options_of
from benchmarks.profile_ladder_report import WITHIN, Compared
from tailcut.gate.distributions import student_quantile
from tailcut.ladder.machine import commit_of
from tailcut.profiler.levers.priors import THREAD_SHARE

_BEFORE_S = 12.0
"""Of a server that was just started: what the ladder leaves out."""
_SURE = 0.975
"""Two-sided 95 %."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--comfortable", type=float, default=80.0, help="the pilot is profiled at this rate, too")
    parser.add_argument("--rates", default="110", help="others, for the ladder")
    parser.add_argument(
        "--seconds", type=float, default=8.0,
        help="of each rung and rate; 8 s meet or miss the moments at which the features of all flights change",
    )  # fmt: skip
    parser.add_argument("--keep", type=Path, default=Path("profile_ladder_rounds"), help="for ladders and recordings")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/profile_ladder_rounds.md"))
    options = parser.parse_args()
    rounds = []
    for number in range(1, options.rounds + 1):
        folder = options.keep / f"round{number}"
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "ladder.json").exists():
            _climb(folder, options, number)
        rounds.append(_profiled(folder, options.seconds))
    text = render(rounds, commit_of(Path.cwd()))
    options.out.write_text(text, encoding="utf-8")
    print(text)


def _climb(folder: Path, options: argparse.Namespace, seed: int) -> None:
    command = [sys.executable, "-m", "tailcut", "ladder", "--manifest", str(FOLDER)]
    command += ["--duration", f"{options.seconds:g}s", "--parity", "0"]
    command += ["--rounds", "1", "--seed", str(seed), "--no-capacity", "--comfortable", str(options.comfortable)]
    subprocess.run([*command, "--rates", options.rates, "--out", str(folder)], check=True)


def _profiled(folder: Path, seconds: float) -> Found:
    # The same requests as the ladder's, which come after those with which a server settles.
    arguments = ["--ladder", str(folder / "ladder.json"), "--save", str(folder)]
    arguments += ["--duration", f"{seconds + _BEFORE_S:g}"]
    recording, runs = folder / "recording.tailcut", folder / "runs.msgpack"
    if recording.exists() and runs.exists():
        arguments += ["--recording", str(recording), "--runs", str(runs)]
    return find(options_of(arguments))


def render(rounds: Sequence[Found], commit: str) -> str:
    """Write the report."""
    first = rounds[0]
    parts = [
        "# What profiles foretell, and what ladders measured in the same minutes",
        f"`python -m benchmarks.profile_ladder_rounds` at commit {commit} on {first.recording.machine.get('cpu', '?')}:"
        f" {len(rounds)} rounds, each a ladder ({first.ladder.settings['measured'].partition(',')[0]}) and then"
        f" the pilot profiled at"
        f" {first.recording.rate:g} requests/s for {first.recording.duration_s:g} s, which is all that the forecasts"
        " know, beside five small runs on the idle machine. Nothing of the rungs was run for them; that looking tensors"
        " up takes 0.3 of tailcut's own path comes from the stages of earlier ladders, and that handing a batch over"
        f" takes {THREAD_SHARE:g} of it from those of 26 November 2026. Medians over the rounds (least to most).",
        _table([one.with_runs for one in rounds]),
        "## From the profiles alone\n\nThe pilot's own queries, and factors from elsewhere.",
        _table([one.without_runs for one in rounds]),
    ]
    return "\n\n".join(parts) + "\n"


def _table(rounds: Sequence[Sequence[Compared]]) -> str:
    lines = [
        "| rung | at | foretold p95 ms | measured | error of the medians | within 25 % | in each round |",
        "|---|---|---|---|---|---|---|",
    ]
    holds = 0
    for mine in zip(*rounds, strict=True):
        foretold, measured = [one.foretold.p95_ms for one in mine], [one.measured_ms for one in mine]
        error = median(foretold) / median(measured) - 1.0
        holds += abs(error) <= WITHIN
        lines.append(
            f"| {mine[0].rung} | {mine[0].rate:g}/s | {_spread(foretold)} | {_spread(measured)} | {error:+.0%}"
            f" | {'yes' if abs(error) <= WITHIN else 'no'} | {', '.join(f'{one.error:+.0%}' for one in mine)} |"
        )
    orders = []
    for rate in dict.fromkeys(one.rate for one in rounds[0]):
        at = [[one for one in each if one.rate == rate] for each in rounds]
        orders.append(
            f"At {rate:g}/s the rungs in the order of what they win: foretold {_order(at, foretold=True)}; measured"
            f" {_order(at, foretold=False)}. {_pairs(at)}"
        )
    return "\n".join([*lines, "", f"Within 25 %: {holds} of {len(rounds[0])}.", *orders])


def _spread(values: Sequence[float]) -> str:
    return f"{median(values):.3g} ({min(values):.3g}-{max(values):.3g})"


def _order(rounds: Sequence[Sequence[Compared]], *, foretold: bool) -> str:
    """Rungs by the medians of what they take off the p95 of the rung before."""
    p95s = [
        median([one.foretold.p95_ms if foretold else one.measured_ms for one in mine])
        for mine in zip(*rounds, strict=True)
    ]
    won = dict(zip([one.rung for one in rounds[0][1:]], _won(p95s), strict=True))
    return ", ".join(f"{rung} ({won[rung]:+.2g} ms)" for rung in sorted(won, key=lambda rung: -won[rung]))


def _pairs(rounds: Sequence[Sequence[Compared]]) -> str:
    """Say of which two rungs one surely wins more than the other, and whether that is foretold."""
    if len(rounds) < 2:
        return "One round does not say which of two rungs surely wins more."
    rungs = [one.rung for one in rounds[0][1:]]
    measured = np.array([_won([one.measured_ms for one in each]) for each in rounds])
    foretold = _won([median([one.foretold.p95_ms for one in mine]) for mine in zip(*rounds, strict=True)])
    told, missed, unsure = 0, list[str](), list[str]()
    for first, second in combinations(range(len(rungs)), 2):
        more = measured[:, first] - measured[:, second]
        beside = student_quantile(_SURE, len(rounds) - 1) * float(more.std(ddof=1)) / len(rounds) ** 0.5
        names = f"{rungs[first]} / {rungs[second]} ({more.mean():+.2g} +- {beside:.2g} ms)"
        if abs(more.mean()) <= beside:
            unsure.append(names)
        elif (foretold[first] - foretold[second]) * more.mean() > 0:  # a tie is not foretold
            told += 1
        else:
            missed.append(names)
    text = f"Of {told + len(missed)} pairs of rungs of which one surely wins more {told} are foretold so"
    if missed:
        text += f", not so {', '.join(missed)}"
    if unsure:
        text += f"; 95 % intervals of the rounds' differences leave open {', '.join(unsure)}"
    return f"{text}."


def _won(p95s: Sequence[float]) -> list[float]:
    return [before - after for before, after in pairwise(p95s)]


if __name__ == "__main__":
    main()
