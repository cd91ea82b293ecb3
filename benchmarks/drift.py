"""The drift detector in simulated months: false alarms, and how soon a shift of one column is found.

    python -m benchmarks.drift [--months 500] [--runs 200] [--out FOLDER]

40 correlated columns of numbers and the output of a logistic model on five of them; the reference is 1,000 rows. Rows
belong to entities, of which some are met more often than others; half of a column's variance is the entity's own, so
that it is met again whenever its entity is. A month has 20,000 rows, a window is a day.

- **No drift**: traffic from the population of the reference, 50 months on each reference, of which the detector may
  give 1 false alarm a month. Beside it, on the rows of the first 10 months of each: a Kolmogorov-Smirnov test of every
  column and day against the reference at p < 0.05, and the detector's own bets as if the reference were the population.
- **A shift**: a day or more without drift, then one column is moved by a part of its standard deviation.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from benchmarks.overhead import commit, cpu
from tailcut.observe.drift.detector import MONTH_S, Detector, DriftSettings
from tailcut.observe.drift.sketch import Sketch, effective_rows, sketch

COLUMNS = 40
REFERENCE = 1000
PER_MONTH = 20_000
BLOCK, QUIET_BLOCK = 50, 250
"""Rows that the detector is given at once: with a shift, and in months without one."""
BESIDE = 10
"""Months of each reference in which the other methods are played beside the detector."""
WITHIN = 2000
"""Rows within which a shift is to be found."""
BEFORE = 2000
DAY = PER_MONTH // 30
_AT_ONCE = 5000

Doubles = npt.NDArray[np.float64]
Keys = npt.NDArray[np.int64]


class Entities(NamedTuple):
    """How many entities there are, and how unevenly they are met: the shape of a gamma law, smaller is more uneven."""

    number: int
    shape: float


POPULATIONS = {"5,000 entities": Entities(5_000, 1.0), "2,000 entities, some often": Entities(2_000, 0.5)}

BAR = "5,000 entities"


class World:
    """A population of entities with correlated columns.

    Args:
        seed: of its draws.
        entities: see ``Entities``.
    """

    def __init__(self, seed: int, entities: Entities) -> None:
        self.random = np.random.default_rng(seed)
        loadings = self.random.normal(size=(COLUMNS, 8))
        covariance = loadings @ loadings.T + 4.0 * np.eye(COLUMNS)
        scale = np.sqrt(np.diag(covariance))
        self._root = np.linalg.cholesky(covariance / np.outer(scale, scale)).T
        self._own = self.random.normal(size=(entities.number, COLUMNS)) @ self._root
        met = np.cumsum(self.random.gamma(entities.shape, size=entities.number))
        self._met = met / met[-1]

    def rows(self, count: int) -> tuple[Doubles, Keys]:
        """Draw (rows, columns) of values, each of variance 1, and (rows,) of keys."""
        who = np.minimum(np.searchsorted(self._met, self.random.random(count)), len(self._met) - 1)
        fresh = self.random.normal(size=(count, COLUMNS)) @ self._root
        return np.sqrt(0.5) * (self._own[who] + fresh), who.astype(np.int64) + 1

    def reference(self) -> tuple[Doubles, tuple[Sketch, ...]]:
        """Draw a reference: its rows with the output, and the sketches."""
        rows, who = self.rows(REFERENCE)
        worth = effective_rows(who, REFERENCE)
        values = with_output(rows)
        names = [*(f"column {place}" for place in range(COLUMNS)), "output"]
        return values, tuple(
            sketch("input" if place < COLUMNS else "output", name, values[:, place], worth)
            for place, name in enumerate(names)
        )


def with_output(rows: Doubles) -> Doubles:
    """Add the output of the model, (rows, columns + 1)."""
    return np.column_stack([rows, 1 / (1 + np.exp(-rows[:, :5].sum(axis=1)))])


def played(
    detector: Detector, values: Doubles, who: Keys, row: int, block_rows: int = BLOCK
) -> list[tuple[int, tuple[str, ...]]]:
    """Give rows to a detector; return its alarms: the rows up to each, and the columns it names.

    Args:
        row: number of rows given before.
    """
    alarms = []
    for begin in range(0, len(values), block_rows):
        block = slice(begin, begin + block_rows)
        end = row + begin + len(values[block])
        alarm = detector.update(list(values[block].T), end * MONTH_S / PER_MONTH, who[block])
        if alarm is not None:
            alarms.append((end, tuple(each.name for each in alarm.columns)))
    return alarms


class Quiet(NamedTuple):
    """What months without drift gave.

    Attributes:
        months: of traffic.
        alarms: of the detector.
        certain: alarms of the same bets as if the reference were the population, in the first ``BESIDE`` months.
        days: windows that the tests were made on, of the same months.
        days_alarmed: with a Kolmogorov-Smirnov test below 0.05 of any column.
        tests_alarmed: share of the tests that were below 0.05.
        counted: share of the rows that were their entity's first of the day.
    """

    months: int
    alarms: int
    certain: int
    days: int
    days_alarmed: int
    tests_alarmed: float
    counted: float


def quiet_months(seed: int, entities: Entities, months: int) -> Quiet:
    """Play months of traffic from the population of one reference."""
    world = World(seed, entities)
    values, sketches = world.reference()
    detector = Detector(sketches, DriftSettings())
    certain = Detector(
        [replace(each, effective_rows=1e12) for each in sketches], DriftSettings(min_effect=0.0, psi=0.0)
    )
    alarms = certainly = row = 0
    left = np.empty((0, COLUMNS + 1))
    tests: list[npt.NDArray[np.bool_]] = []
    for _ in range(months * PER_MONTH // _AT_ONCE):
        rows, who = world.rows(_AT_ONCE)
        new = with_output(rows)
        alarms += len(played(detector, new, who, row, QUIET_BLOCK))
        row += _AT_ONCE
        if row > BESIDE * PER_MONTH:
            continue
        certainly += len(played(certain, new, who, row - _AT_ONCE, QUIET_BLOCK))
        left = np.concatenate([left, new])
        while len(left) >= DAY:
            tests.append(differing(values, left[:DAY]))
            left = left[DAY:]
    below = np.array(tests)
    counted = detector.counted / detector.rows
    return Quiet(months, alarms, certainly, len(below), int(below.any(axis=1).sum()), float(below.mean()), counted)


def differing(first: Doubles, second: Doubles) -> npt.NDArray[np.bool_]:
    """Tell of which columns a two-sample Kolmogorov-Smirnov test has p < 0.05, (columns,); asymptotic law."""
    n, m = len(first), len(second)
    limit = 1.3581 * np.sqrt((n + m) / (n * m))
    both = np.concatenate([first, second])
    steps = np.where((np.arange(n + m) < n)[:, None], 1 / n, -1 / m)
    walked = np.cumsum(np.take_along_axis(np.broadcast_to(steps, both.shape), np.argsort(both, axis=0), axis=0), axis=0)
    return np.asarray(np.abs(walked).max(axis=0) > limit, np.bool_)


def found_after(seed: int, entities: Entities, shift: float) -> int | None:
    """Shift one column; return after how many rows an alarm named it, None where none did within ``WITHIN``."""
    world = World(seed, entities)
    _, sketches = world.reference()
    detector = Detector(sketches, DriftSettings())
    rows, who = world.rows(BEFORE + WITHIN)
    column = int(world.random.integers(COLUMNS))
    rows[BEFORE:, column] += shift * world.random.choice([-1.0, 1.0])
    for row, names in played(detector, with_output(rows), who, 0):
        if row > BEFORE and f"column {column}" in names:
            return row - BEFORE
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--months", type=int, default=500)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "commit": commit(), "date": time.strftime("%Y-%m-%d"), "cpu": cpu(), "python": platform.python_version(),
        "settings": DriftSettings()._asdict(), "quiet": {}, "shifts": {},
    }  # fmt: skip
    for name, entities in POPULATIONS.items():
        months = arguments.months if name == BAR else arguments.months // 5
        each = min(50, months)
        found = [quiet_months(seed, entities, each) for seed in range(months // each)]
        result["quiet"][name] = together(found)
        sys.stderr.write(f"{name}: {result['quiet'][name]}\n")
        for shift in (0.25, 0.5, 1.0):
            delays = [found_after(1000 + seed, entities, shift) for seed in range(arguments.runs)]
            result["shifts"].setdefault(name, {})[str(shift)] = summary(delays)
            sys.stderr.write(f"{name}, shift {shift}: {result['shifts'][name][str(shift)]}\n")
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "drift.json").write_text(json.dumps(result, indent=1) + "\n")
    text = render(result)
    (arguments.out / "drift.md").write_text(text)
    sys.stdout.write(text)


def together(found: list[Quiet]) -> dict[str, float]:
    """Add up what several references gave."""
    days = sum(each.days for each in found)
    return {
        "references": len(found),
        "months": sum(each.months for each in found),
        "alarms": sum(each.alarms for each in found),
        "certain": sum(each.certain for each in found),
        "days": days,
        "days_alarmed": sum(each.days_alarmed for each in found),
        "tests_alarmed": sum(each.tests_alarmed * each.days for each in found) / days,
        "counted": sum(each.counted for each in found) / len(found),
    }


def summary(delays: list[int | None]) -> dict[str, float]:
    """Say how many runs were found, and after how many rows."""
    known = [each for each in delays if each is not None]
    found: dict[str, float] = {"runs": len(delays), "found": len(known)}
    return found | ({"median": float(np.median(known)), "p95": float(np.quantile(known, 0.95))} if known else {})


def render(result: dict[str, Any]) -> str:
    """Write the page."""
    settings = result["settings"]
    lines = [
        "# Drift in simulated months",
        "",
        f"`python -m benchmarks.drift` at commit {result['commit']}, {result['date']}, on {result['cpu']}, Python "
        f"{result['python']}. A reference of 1,000 rows, 40 correlated columns and an output, 20,000 rows a month; "
        f"false_alarms_per_month = {settings['false_alarms_per_month']:g}, min_effect = {settings['min_effect']:g}, "
        f"psi = {settings['psi']:g}, window = a day.",
        "",
        f"Without drift; the two other methods on the rows of the first {BESIDE} months of each reference:",
        "",
        "| population | months, references | rows that count | false alarms | KS test per column and day: days with an "
        "alarm | KS: tests below 0.05 | bets as if the reference were exact: alarms |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, quiet in result["quiet"].items():
        days = f"{quiet['days_alarmed']:,} of {quiet['days']:,} ({quiet['days_alarmed'] / quiet['days']:.0%})"
        lines.append(
            f"| {name} | {quiet['months']}, {quiet['references']} | {quiet['counted']:.0%} | {quiet['alarms']} "
            f"| {days} | {quiet['tests_alarmed']:.1%} | {quiet['certain']:,} |"
        )
    lines += [
        "",
        "One of the 40 columns shifted, found (and named) within 2,000 rows:",
        "",
        "| population | shift, standard deviations | runs found | rows until the alarm: median | 95 % |",
        "|---|---|---|---|---|",
    ]
    for name, shifts in result["shifts"].items():
        for shift, found in shifts.items():
            rows = f"{found['median']:,.0f} | {found['p95']:,.0f}" if found["found"] else "- | -"
            lines.append(f"| {name} | {shift} | {found['found']} of {found['runs']} | {rows} |")
    half = result["shifts"][BAR]["0.5"]
    met = half["found"] >= 0.95 * half["runs"]
    held = all(
        each["alarms"] <= each["months"] * settings["false_alarms_per_month"] for each in result["quiet"].values()
    )
    lines += [
        "",
        f"Bars: at most 1 false alarm a month: {'met' if held else 'missed'}; half a standard deviation found within "
        f"2,000 rows in 95 % of runs ({BAR}): {'met' if met else 'missed'}. Where entities repeat more, fewer rows "
        "count, and the reference is worth fewer than its 1,000.",
    ]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
