"""The ladder as a document, and the files that are written of it."""

from __future__ import annotations

from collections import Counter
from itertools import cycle
from pathlib import Path
from statistics import fmean

import msgspec

from tailcut.common.slo import parse_objectives
from tailcut.common.statistics import Spread, spread
from tailcut.common.timings import STAGE_NAMES
from tailcut.errors import LoadTestError
from tailcut.report.document import Chart, Document, DocumentSection, Mark, Row, Table, first_line, markdown
from tailcut.report.html import NO_CHARTS, html
from tailcut.report.ladder.file import COMFORTABLE, Capacity, LadderRecord, Measurement, RungParity, RungRecord
from tailcut.report.style import BAR, FASTER, PERCENTILE_COLOURS, SLOWER, STAGE_COLOURS, UNCLEAR

_MOST_FAILED = 0.02
"""Share of requests that may fail before the CPU time per reply says nothing of the cost of an answer."""


def write_reports(ladder: LadderRecord, folder: Path) -> tuple[list[Path], str]:
    """Write ladder.md, ladder.html and ladder.png.

    Args:
        ladder: what was measured.
        folder: where to.

    Returns:
        the files written, and why the picture is missing where it is (no matplotlib).

    Raises:
        LoadTestError: the folder is not writable.
    """
    document = ladder_document(ladder)
    written = [folder / "ladder.md", folder / "ladder.html"]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        written[0].write_text(markdown(document, "ladder.png"), encoding="utf-8")
        written[1].write_text(html(document), encoding="utf-8")
        from tailcut.report.charts import write_png

        write_png(document, folder / "ladder.png")
    except ImportError:
        return written, NO_CHARTS
    except OSError as error:
        raise LoadTestError(f"cannot write to {folder}: {error.strerror}", hint="choose a writable folder") from error
    return [*written, folder / "ladder.png"], ""


def ladder_document(ladder: LadderRecord) -> Document:
    """Lay the ladder out: each rate, capacity and cost, the server's stages, and how all of it was measured."""
    rows = ladder_figures(ladder)
    facts = {"command": ladder.command, **ladder.machine, **ladder.settings, **ladder.versions}
    return Document(
        title=f"Ladder of {ladder.deployment}",
        lead=f"The same traffic for the pilot, then a lever more per rung. {ladder.created}, commit {ladder.commit}.",
        tiles=tuple(headline(ladder)),
        sections=(
            *(_rate(ladder, rows, name) for name in ladder.rate_names),
            _capacity(ladder, rows),
            *(_stages(ladder, rows, name) for name in ladder.rate_names),
            DocumentSection(title="How to read it", lines=tuple(_key_lines(ladder))),
            DocumentSection(title="Rungs", lines=tuple(map(_rung, rows)), details=True),
            DocumentSection(
                title="Measured on", lines=tuple(f"{name}: {value}" for name, value in facts.items()), details=True
            ),
        ),
    )


def _rate(ladder: LadderRecord, rows: tuple[RungFigures, ...], name: str) -> DocumentSection:
    """Latency and CPU time at one rate, and what each rung changed."""
    title = rate_title(ladder, name)
    cells, latencies, changes = [], [], []
    for row in rows:
        at, change, rung = row.rates.get(name), row.change.get(name), row.record.name
        shapes = at.latency_ms if at is not None else {}
        dots = tuple(Mark(series=each, low=one.low, high=one.high, mid=one.mid) for each, one in shapes.items())
        why = row.status or ("" if dots else "no answers")
        latencies.append(Row(name=rung, marks=dots, note=why or (at.trouble if at is not None else "")))
        changes.append(Row(name=rung, marks=(_bar(change),) if change else (), note=_change_text(change)))
        figures = (*(_latency_text(at, which) for which in PERCENTILES), _change_text(change), _cpu(at))
        cells.append((rung, row.status) if row.status else (rung, *figures))
    limit_ms = _p95_limit_ms(ladder)
    return DocumentSection(
        title=f"At {title}",
        charts=(
            Chart(
                title=f"Latency at {title}",
                unit="ms from the intended send time (log): median round, lowest and highest round",
                rows=tuple(latencies),
                colours=PERCENTILE_COLOURS,
                limit=(f"SLO: p95 {limit_ms:g} ms", limit_ms) if limit_ms else None,
                log=True,
            ),
            Chart(
                title="p95 against the rung before that ran",
                unit="%",
                rows=tuple(changes),
                colours={"faster": FASTER, "slower": SLOWER, "rounds overlap: may be noise": UNCLEAR},
            ),
        ),
        tables=(
            Table(
                head=("rung", "p50 ms", "p95 ms", "p99 ms", "p95 vs rung before", "CPU s per 1,000"), rows=tuple(cells)
            ),
        ),
    )


def _bar(change: RungChange) -> Mark:
    series = "rounds overlap: may be noise" if not change.clear else "faster" if change.share < 0 else "slower"
    return Mark(series=series, low=0.0, high=change.share * 100)


def _p95_limit_ms(ladder: LadderRecord) -> float | None:
    try:
        objectives = parse_objectives(ladder.slo)
    except LoadTestError:
        return None
    return next((one.limit_s * 1e3 for one in objectives.latency if one.name == "p95"), None)


def _capacity(ladder: LadderRecord, rows: tuple[RungFigures, ...]) -> DocumentSection:
    pilot = next((row for row in rows if row.record.pilot), None)
    metrics = _quality_names(ladder)
    compared = any(rung.parity is not None for rung in ladder.rungs)
    cells, bars = [], []
    for row in rows:
        rung, why = row.record.name, _no_capacity(row)
        text = _capacity_text(row, pilot)
        bars.append(
            Row(name=rung, marks=() if why else (Mark(series="", low=0.0, high=row.capacity or 0.0),), note=why or text)
        )
        quality = (f"{row.record.quality[name]:.4f}" if name in row.record.quality else "-" for name in metrics)
        parity = [_parity_text(row.record.parity)] if compared else []
        figures = (text, _cpu(row.rates.get(ladder.rate_names[0])), *quality, *parity)
        cells.append((rung, row.status.partition(":")[0]) if row.status else (rung, *figures))
    cpu = f"CPU s per 1,000 at {rate_title(ladder, ladder.rate_names[0]).partition(' (')[0]}"
    head = ("rung", "capacity at SLO", cpu, *metrics, *(["parity"] if compared else []))
    chart = Chart(title="Capacity within the SLO", unit="req/s", rows=tuple(bars), colours={"": BAR})
    lines = tuple(line for row in rows if (line := _search(row)))
    return DocumentSection(
        title="Capacity, cost and quality", charts=(chart,), tables=(Table(head=head, rows=tuple(cells)),), lines=lines
    )


def _search(row: RungFigures) -> str:
    """How the search for a rung's capacity ended; empty where there was none."""
    found, name = row.record.capacity, row.record.name
    if row.record.capacity_failed:
        return f"{name}: the search failed: {first_line(row.record.capacity_failed)}"
    if found is None:
        return ""
    if row.unfound:
        return f"{name}: no rate within {found.objectives} was found in time"
    state = "passed twice" if found.confirmed else "not confirmed"
    return f"{name}: {found.rate:.4g} req/s ({state}){f'; limited by {found.limit}' if found.limit else ''}"


def _stages(ladder: LadderRecord, rows: tuple[RungFigures, ...], name: str) -> DocumentSection:
    """Where the server's time goes, from its Server-Timing; the pilot sends none."""
    timed = [(row.record.name, row.rates[name]) for row in rows if name in row.rates and row.rates[name].stages_ms]
    stages = stage_order({stage for _, at in timed for stage in at.stages_ms})
    bars, cells = [], []
    for rung, at in timed:
        marks, share = [], 0.0
        total_ms = sum(at.stages_ms.get(stage, 0.0) for stage in stages)
        for stage in stages:
            low, share = share, share + 100 * at.stages_ms.get(stage, 0.0) / (total_ms or 1.0)
            marks.append(Mark(series=stage, low=low, high=share))
        bars.append(Row(name=rung, marks=tuple(marks), note=f"{total_ms:.2f} ms"))
        cache = ", ".join(f"{outcome} {count}" for outcome, count in at.cache.items()) or "-"
        cells.append((rung, *(f"{at.stages_ms.get(one, 0.0):.3f}" for one in (*stages, "total")), cache))
    title = f"Where the server's time goes at {rate_title(ladder, name)}"
    colours = dict(zip(stages, cycle(STAGE_COLOURS), strict=False))
    chart = Chart(title=title, unit="% of the mean request", rows=tuple(bars), colours=colours)
    return DocumentSection(
        title=title,
        charts=(chart,) if bars else (),
        tables=(Table(head=("rung", *stages, "total", "cache"), rows=tuple(cells)),),
        details=True,
    )


def _rung(row: RungFigures) -> str:
    status = f"{row.status}; " if row.status else ""
    command = f"; {' '.join(row.record.command)}" if row.record.command else ""
    return f"{row.record.name}: {status}adds {', '.join(row.record.added) or 'nothing'}{command}"


def _quality_names(ladder: LadderRecord) -> list[str]:
    """The metrics shown: those with a budget, else all."""
    seen = {name for rung in ladder.rungs for name in rung.quality}
    return [name for name in sorted(seen) if name in ladder.quality_budget or not ladder.quality_budget]


def _milliseconds(value: Spread | None) -> str:
    """Format a spread over rounds: the median round, then lowest and highest."""
    if value is None:
        return "-"
    mid, low, high = (
        f"{one:.0f}" if one >= 100 else f"{one:.1f}" if one >= 10 else f"{one:.2f}"
        for one in (value.mid, value.low, value.high)
    )
    return f"{mid} ({low}-{high})"


def _change_text(change: RungChange | None) -> str:
    """Format what a rung did to the p95; '~' where the rounds overlap and it may be noise."""
    return "" if change is None else f"{percent(change.share)}{'' if change.clear else ' ~'}"


def _latency_text(figures: RateFigures | None, which: str) -> str:
    """Format a percentile; '!' and the share of failed requests where the rung was saturated."""
    if figures is None:
        return "-"
    text = _milliseconds(figures.latency_ms.get(which))
    return f"{text} {figures.trouble}" if figures.trouble and which == "p95" else text


def _capacity_text(row: RungFigures, pilot: RungFigures | None) -> str:
    """Format a capacity, with how many times the pilot's it is where both have one and the pilot's was found."""
    capacity = row.record.capacity
    if capacity is None or row.unfound:
        return _no_capacity(row) if capacity is not None or row.record.capacity_failed else "-"
    if capacity.rate == 0:
        return "0 (missed at every rate)"
    text = f"{'' if _is_found(capacity) else '>= '}{plain(capacity.rate)}/s"
    base = pilot.record.capacity if pilot is not None and pilot.capacity else None
    # Of a pilot that bears more than was found nobody knows how many times as much a rung bears.
    is_known = base is not None and _is_found(base) and row is not pilot
    return f"{text} ({capacity.rate / base.rate:.1f}x)" if base is not None and is_known else text


def _is_found(capacity: Capacity) -> bool:
    """Whether the search ended at a rate that the server missed, and not at its own highest one or its time."""
    return capacity.complete and bool(capacity.limit) and not capacity.generator_limited


def _no_capacity(row: RungFigures) -> str:
    """Say why a rung has no capacity to draw; empty where it has one."""
    if row.status or row.record.capacity_failed:
        return row.status or "failed in the search"
    if row.capacity is None:
        return "not searched"
    return "none found in time" if row.unfound else ""


def _key_lines(ladder: LadderRecord) -> list[str]:
    """What a reader must know to read the tables."""
    rounds = ladder.settings.get("rounds", "?")
    # Of two middle rounds the spread has the slower (see ``statistics.spread``).
    each = {"1": "one round", "2": "the slower of 2 rounds (lowest-highest)"}.get(
        rounds, f"median round (lowest-highest of {rounds} rounds)"
    )
    lines = [
        f"Milliseconds from the intended send time: {each}. Requests given up count at their time-out.",
        "'~': the rounds of both rungs overlap, the change may be noise. '!': saturated.",
        "Capacity: '>=' where the search ended before a rate was missed; no ratio to a pilot's of that kind.",
        "CPU s: of the server per 1,000 replies; '-' where more than 2 % of the requests failed or were refused.",
        f"SLO: {ladder.slo}.",
    ]
    if ladder.pilot is not None:
        lines.append(
            f"Comfortable rate: {ladder.pilot.comfortable_rate:.3g} req/s. {ladder.pilot.note}"
            f" The pilot's unloaded p95 is {ladder.pilot.unloaded_p95_ms or 0:.1f} ms."
        )
    if any(rung.parity is not None for rung in ladder.rungs):
        lines.append(
            "Parity: answers that differ from the pilot's beyond float32's rounding (`tailcut parity` finds causes), "
            "of one sample of the traffic; caches as the rung has them."
        )
    lines += [f"{rate_title(ladder, name)}." for name in ladder.rate_names if name != COMFORTABLE and not ladder.pilot]
    return [*lines, *ladder.notes]


def _parity_text(found: RungParity | None) -> str:
    """Format how a rung's answers compare with the pilot's."""
    if found is None:
        return "-"
    if found.failed:
        return "not compared"
    parts = []
    if found.differing:
        most = "" if found.max_difference is None else f", max {found.max_difference:.2g}"
        parts.append(f"{found.differing} of {found.requests}{most}")
    if found.status_differences:
        parts.append(f"{found.status_differences} of {found.requests} by one side only")
    parts = parts or [f"0 of {found.requests}"]
    return "; ".join([*parts, f"not compared: {', '.join(found.left_out)}"] if found.left_out else parts)


def _cpu(figures: RateFigures | None) -> str:
    # Per 1,000 replies, and a refusal is a quick one: a rung that refuses much would look cheap.
    refuses = figures is not None and figures.failed_share > _MOST_FAILED
    return _milliseconds(figures.cpu_s_per_1000 if figures is not None and not refuses else None)


# -- Figures -----------------------------------------------------------------------------------------------------------


# The figures that every form of the ladder's report shows, worked out once from its file.

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


class RungChange(msgspec.Struct, frozen=True, kw_only=True):
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
    change: dict[str, RungChange]

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


def _change(before: RateFigures, after: RateFigures) -> RungChange | None:
    if "p95" not in before.latency_ms or "p95" not in after.latency_ms:
        return None
    old, new = before.latency_ms["p95"], after.latency_ms["p95"]
    clear = new.high < old.low or new.low > old.high
    return RungChange(before_ms=old.mid, after_ms=new.mid, clear=clear)


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
