"""The ladder as one picture (matplotlib, the extra "report")."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tailcut.errors import MissingExtra
from tailcut.report.ladder.cells import capacity_text, change_text, no_capacity
from tailcut.report.ladder.figures import RungFigures, ladder_figures, rate_title, stage_order
from tailcut.report.ladder.file import LadderRecord
from tailcut.report.ladder.html import p95_limit_ms
from tailcut.report.style import BAR, FASTER, LIMIT, PERCENTILE_COLOURS, SLOWER, STAGE_COLOURS, UNCLEAR

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_NAME_CHARS = 34


def write_png(ladder: LadderRecord, path: Path) -> None:
    """Draw the ladder: latency and change per rate, capacity, stages.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("ladder.png needs matplotlib", hint="pip install 'tailcut[report]'") from error
    figures = ladder_figures(ladder)
    lines = len(ladder.rate_names) + 1
    height = (0.42 * len(figures) + 1.7) * lines + 0.9
    figure = Figure(figsize=(15, height), dpi=110, facecolor="white", layout="constrained")
    FigureCanvasAgg(figure)
    figure.get_layout_engine().set(w_pad=0.15, h_pad=0.12)  # type: ignore[union-attr, call-arg]
    figure.suptitle(f"Ladder of {ladder.deployment}   (SLO: {ladder.slo})", fontsize=15, fontweight="bold")
    axes = figure.subplots(lines, 2, squeeze=False)
    for place, name in enumerate(ladder.rate_names):
        _latency(axes[place][0], ladder, figures, name)
        _changes(axes[place][1], ladder, figures, name)
    _capacity(axes[-1][0], figures)
    _stages(axes[-1][1], ladder, figures, ladder.rate_names[0])
    figure.savefig(path, metadata={"Software": "tailcut"})


def _latency(axes: Axes, ladder: LadderRecord, figures: tuple[RungFigures, ...], name: str) -> None:
    _prepare(axes, figures, f"Latency at {_at(ladder, name)}", "ms from the intended send time (log)")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    for place, row in enumerate(figures):
        at = row.rates.get(name)
        if at is None or not at.latency_ms:
            _why(axes, place, row.status or "no answers")
            continue
        mids = [one.mid for one in at.latency_ms.values()]
        axes.plot([min(mids), max(mids)], [place, place], color="#e3e8ec", linewidth=4, zorder=1)
        for level, (which, one) in enumerate(at.latency_ms.items()):
            colour, y = PERCENTILE_COLOURS[which], place + (level - 1) * 0.2  # bands that overlap stay apart
            axes.plot([one.low, one.high], [y, y], "|-", color=colour, linewidth=1.5, markersize=7, zorder=2)
            axes.plot(one.mid, y, "o", color=colour, markersize=7, markeredgecolor="white", zorder=3)
        if at.trouble:
            axes.annotate(
                at.trouble, (max(mids), place), (10, 11), textcoords="offset points",
                color=SLOWER, fontsize=9, ha="right",
            )  # fmt: skip
    limit = p95_limit_ms(ladder)
    if limit:
        axes.axvline(limit, color=LIMIT, linestyle="--", linewidth=1.2)
    for which, colour in PERCENTILE_COLOURS.items():
        axes.plot([], [], "o", color=colour, label=which)
    axes.plot([], [], "--", color=LIMIT, label=f"SLO: p95 {limit:g} ms" if limit else "")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, ncols=4, fontsize=9)


def _changes(axes: Axes, ladder: LadderRecord, figures: tuple[RungFigures, ...], name: str) -> None:
    _prepare(axes, figures, f"p95 against the rung before at {_at(ladder, name)}", "% (grey: may be noise)")
    widest = max((abs(row.change[name].share) * 100 for row in figures if name in row.change), default=1.0)
    for place, row in enumerate(figures):
        change = row.change.get(name)
        if change is None:
            if row.status:
                _why(axes, place, row.status)
            continue
        colour = UNCLEAR if not change.clear else FASTER if change.share < 0 else SLOWER
        axes.barh(place, change.share * 100, height=0.55, color=colour)
        axes.annotate(
            change_text(change), (max(change.share * 100, 0), place), (5, 0), textcoords="offset points",
            va="center", fontsize=10,
        )  # fmt: skip
    low = min((row.change[name].share * 100 for row in figures if name in row.change), default=-1.0)
    high = max((row.change[name].share * 100 for row in figures if name in row.change), default=1.0)
    axes.set_xlim(min(low, 0) - 0.05 * widest, max(high, 0) + 0.22 * widest)
    axes.axvline(0, color="#5d6d7e", linewidth=0.8)


def _capacity(axes: Axes, figures: tuple[RungFigures, ...]) -> None:
    _prepare(axes, figures, "Capacity within the SLO", "req/s")
    pilot = next((row for row in figures if row.record.pilot), None)
    highest = max((row.capacity or 0.0 for row in figures), default=0.0)
    axes.set_xlim(0, highest * 1.3 or 1)
    for place, row in enumerate(figures):
        if why := no_capacity(row):
            _why(axes, place, why)
            continue
        capacity = row.capacity or 0.0
        axes.barh(place, capacity, height=0.55, color=BAR)
        axes.annotate(
            capacity_text(row, pilot), (capacity, place), (6, 0), textcoords="offset points", va="center",
            fontsize=10,
        )  # fmt: skip


def _stages(axes: Axes, ladder: LadderRecord, figures: tuple[RungFigures, ...], name: str) -> None:
    from matplotlib.patches import Patch

    _prepare(axes, figures, f"Server's time at {_at(ladder, name)}", "% of the mean request")
    timed = {place: row.rates[name].stages_ms for place, row in enumerate(figures) if name in row.rates}
    stages = stage_order({stage for values in timed.values() for stage in values})
    handles = []
    totals = {place: sum(values.get(one, 0.0) for one in stages) for place, values in timed.items()}
    for index, stage in enumerate(stages):
        colour = STAGE_COLOURS[index % len(STAGE_COLOURS)]
        for place, values in timed.items():
            left = sum(values.get(one, 0.0) for one in stages[:index])
            scale = 100 / (totals[place] or 1.0)
            axes.barh(place, values.get(stage, 0.0) * scale, left=left * scale, height=0.55, color=colour)
        handles.append(Patch(color=colour, label=stage))
    for place, total in totals.items():
        text, x = (f"{total:.2f} ms", 100) if total else ("sends no Server-Timing", 0)
        axes.annotate(text, (x, place), (6, 0), textcoords="offset points", va="center", fontsize=10)
    axes.set_xlim(0, 116)
    if stages:
        axes.legend(
            handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.16), frameon=False, ncols=4, fontsize=9
        )


def _at(ladder: LadderRecord, name: str) -> str:
    return rate_title(ladder, name).partition(" (")[0]


def _prepare(axes: Axes, figures: tuple[RungFigures, ...], title: str, unit: str) -> None:
    names = [row.record.name for row in figures]
    shown = [name if len(name) <= _NAME_CHARS else name[: _NAME_CHARS - 1] + "…" for name in names]
    axes.set_yticks(range(len(names)), labels=shown, fontsize=10)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_title(title, loc="left", fontsize=12, fontweight="bold")
    axes.set_xlabel(unit, fontsize=9, color="#5d6d7e")
    axes.grid(axis="x", color="#e3e8ec", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


def _why(axes: Axes, place: int, text: str) -> None:
    shown = text if len(text) <= 66 else text[:65] + "…"
    axes.text(0.01, place, shown, transform=axes.get_yaxis_transform(), va="center", fontsize=8.5, color="#5d6d7e")
