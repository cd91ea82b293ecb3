"""The figures that every form of the ladder's report shows, worked out once from its file."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import msgspec

from tailcut.common.statistics import Spread, spread
from tailcut.common.timings import STAGE_NAMES
from tailcut.report.document import first_line
from tailcut.report.ladder.file import COMFORTABLE, LadderRecord, Measurement, RungRecord

PERCENTILES = ("p50", "p95", "p99")


class RateFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One rung at one rate over all rounds. Spreads: median round, lowest and highest round."""

    latency_ms: dict[str, Spread]
    failed_share: float
    saturated: bool
    cpu_s_per_1000: Spread | None
    stages_ms: dict[str, float]
    cache: dict[str, int]

    @property
    def trouble(self) -> str:
        """What a saturated rung looked like; empty where it kept up."""
        if not self.saturated:
            return ""
        return f"! {self.failed_share:.0%} failed" if self.failed_share >= 0.005 else "! falling behind"


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """What one rung did to the p95, against the rung below it that ran."""

    before_ms: float
    after_ms: float
    clear: bool
    """Whether the rounds of both rungs do not overlap: otherwise the change may be noise."""

    @property
    def share(self) -> float:
        """Change as a share of the p95 before; negative is faster."""
        return self.after_ms / self.before_ms - 1 if self.before_ms else 0.0


class RungFigures(msgspec.Struct, frozen=True, kw_only=True):
    """One row of the ladder."""

    record: RungRecord
    rates: dict[str, RateFigures]
    change: dict[str, Change]

    @property
    def status(self) -> str:
        """Why the rung has no figures; empty where it has."""
        if self.record.refused:
            return f"refused: {first_line(self.record.refused)}"
        if self.record.failed:
            return f"failed: {first_line(self.record.failed)}"
        return "" if self.record.ran else "not run"

    @property
    def capacity(self) -> float | None:
        """Requests per second within the SLO."""
        return self.record.capacity.rate if self.record.capacity is not None else None

    @property
    def unfound(self) -> bool:
        """Whether the search for the capacity ran out of time before any rate passed: nothing is known then."""
        found = self.record.capacity
        return found is not None and found.rate == 0 and not found.complete


def ladder_figures(ladder: LadderRecord) -> tuple[RungFigures, ...]:
    """Work out every row, in the order of the rungs."""
    rows: list[RungFigures] = []
    below: RungFigures | None = None
    for record in ladder.rungs:
        rates = {name: figures for name in ladder.rate_names if (figures := _at(record, name)) is not None}
        change = {}
        if below is not None:
            change = {name: _change(below.rates[name], rates[name]) for name in rates if name in below.rates}
        row = RungFigures(record=record, rates=rates, change={k: one for k, one in change.items() if one})
        rows.append(row)
        if row.rates and not row.status:
            below = row
    return tuple(rows)


def rate_title(ladder: LadderRecord, name: str) -> str:
    """Say a rate in words: its number, and where it came from."""
    rates = [one.rate for rung in ladder.rungs for one in rung.measurements if one.rate_name == name]
    number = f"{rates[0]:.3g} req/s" if rates else name
    return f"{number} (comfortable for the pilot)" if name == COMFORTABLE else number


def stage_order(names: set[str]) -> list[str]:
    """Sort stages as a request meets them; unknown ones at the end, ``total`` left out."""
    known = [name for name in STAGE_NAMES if name in names]
    return known + sorted(names - set(known) - {"total"})


def _at(record: RungRecord, name: str) -> RateFigures | None:
    rounds = [one for one in record.measurements if one.rate_name == name]
    if not rounds:
        return None
    shapes = [one.latency_ms for one in rounds if one.latency_ms is not None]
    cpu = [one.cpu_s_per_1000 for one in rounds if one.cpu_s_per_1000 is not None]
    requests = sum(one.requests for one in rounds)
    return RateFigures(
        latency_ms={q: spread([getattr(shape, q) for shape in shapes]) for q in PERCENTILES} if shapes else {},
        failed_share=1 - sum(one.answered for one in rounds) / requests if requests else 0.0,
        saturated=any(one.saturated for one in rounds),
        cpu_s_per_1000=spread(cpu) if cpu else None,
        stages_ms=_stage_means(rounds),
        cache=dict(sum((Counter(one.cache) for one in rounds), Counter())),
    )


def _stage_means(rounds: list[Measurement]) -> dict[str, float]:
    timed = [one for one in rounds if one.stages_ms]
    names = {name for one in timed for name in one.stages_ms}
    return {name: fmean(one.stages_ms.get(name, 0.0) for one in timed) for name in sorted(names)}


def _change(before: RateFigures, after: RateFigures) -> Change | None:
    if "p95" not in before.latency_ms or "p95" not in after.latency_ms:
        return None
    old, new = before.latency_ms["p95"], after.latency_ms["p95"]
    clear = new.high < old.low or new.low > old.high
    return Change(before_ms=old.mid, after_ms=new.mid, clear=clear)


def headline(ladder: LadderRecord) -> list[tuple[str, str]]:
    """What to see first: (figure, what it is), from the pilot to the last rung that ran."""
    ran = [row for row in ladder_figures(ladder) if row.rates and not row.status]
    if len(ran) < 2:
        return []
    first, last = ran[0], ran[-1]
    found = []
    for name in ladder.rate_names:
        both = [row.rates[name].latency_ms.get("p95") for row in (first, last) if name in row.rates]
        if len(both) == 2 and both[0] is not None and both[1] is not None:
            found.append(
                (
                    f"{plain(both[0].mid)} → {plain(both[1].mid)} ms",
                    f"p95 at {rate_title(ladder, name)}, {percent(both[1].mid / both[0].mid - 1)}"
                    f" from {first.record.name} to {last.record.name}",
                )
            )
    if first.capacity is not None and last.capacity is not None and not (first.unfound or last.unfound):
        found.append((f"{plain(first.capacity)} → {plain(last.capacity)} req/s", _times(ladder, first, last)))
    return found


def percent(share: float) -> str:
    """Format a change with its sign; -99.6 % must not be read as "gone"."""
    return f"{share * 100:+.{1 if share < -0.985 else 0}f} %"


def _times(ladder: LadderRecord, first: RungFigures, last: RungFigures) -> str:
    if first.capacity:
        return f"capacity within the SLO, {(last.capacity or 0) / first.capacity:.1f} times"
    text = f"capacity within the SLO, which {first.record.name} misses"
    if first.record.pilot and ladder.pilot is not None:
        own = ladder.pilot.saturation_rate
        return f"{text}; {(last.capacity or 0) / own:.1f} times what it takes at all ({plain(own)} req/s)"
    return text


def plain(value: float) -> str:
    """Format a figure with three digits, never with an exponent."""
    return f"{value:,.0f}" if value >= 100 or value == 0 else f"{value:.3g}"
