"""Charts of a document by matplotlib (the extra "report"), for its page and as a picture."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator

from tailcut.report.document import Area, Chart, Document, shortened
from tailcut.report.style import INK, LIMIT, LINE, SOFT

_STYLE: Any = {
    "text.color": INK, "axes.labelcolor": SOFT, "axes.edgecolor": LINE, "xtick.color": SOFT, "ytick.color": INK,
    "grid.color": LINE, "axes.axisbelow": True, "font.size": 10, "legend.frameon": False, "axes.spines.top": False,
    "axes.spines.right": False, "axes.titleweight": "bold", "axes.titlelocation": "left", "axes.titlesize": 11,
    "svg.fonttype": "none", "svg.hashsalt": "tailcut", "text.parse_math": False, "savefig.transparent": True,
    "xtick.major.size": 0, "ytick.major.size": 0,
}  # fmt: skip
_NAME, _NOTE = 34, 90
_DASHES: tuple[Any, ...] = ("--", ":", "-.", (0, (1, 3)))


def svg(charts: Sequence[Chart | Area]) -> str:
    """Draw charts beside each other, in colours that follow the page's."""
    text = StringIO()
    with matplotlib.rc_context(_STYLE), warnings.catch_warnings(action="ignore"):  # of letters that its font lacks
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        _figure([charts]).savefig(text, format="svg", metadata=nothing)
    drawn = text.getvalue()
    drawn = drawn[drawn.index("<svg") :]
    for colour, name in ((INK, "ink"), (SOFT, "soft"), (LINE, "line")):
        drawn = drawn.replace(colour, f"var(--{name})")
    return drawn


def write_png(document: Document, path: Path) -> None:
    """Draw all charts of a document, those of a section beside each other."""
    grid = [[chart for chart in section.charts if not isinstance(chart, str)] for section in document.sections]
    with matplotlib.rc_context({**_STYLE, "savefig.transparent": False}), warnings.catch_warnings(action="ignore"):
        figure = _figure([charts for charts in grid if charts])
        figure.suptitle(document.title, fontsize=15, fontweight="bold")
        figure.savefig(path, dpi=110, metadata={"Software": "tailcut"})


def _figure(grid: Sequence[Sequence[Chart | Area]]) -> Figure:
    heights = [max(0.36 * len(one.rows) + 1.3 if isinstance(one, Chart) else 4.2 for one in line) for line in grid]
    figure = Figure(figsize=(14, sum(heights) + 0.4), layout="constrained")
    FigureCanvasAgg(figure)
    parts = figure.subfigures(len(grid), 1, squeeze=False, height_ratios=heights)
    for part, line in zip(parts[:, 0], grid, strict=True):
        for axes, chart in zip(part.subplots(1, len(line), squeeze=False, sharey=True)[0], line, strict=True):
            axes.set_title(chart.title)
            axes.set_xlabel(chart.unit, fontsize=9)
            handles = _area(axes, chart) if isinstance(chart, Area) else _rows(axes, chart)
            if len(handles) > 1:
                axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=7, fontsize=9)
    return figure


def _rows(axes: Axes, chart: Chart) -> list[Any]:
    names = [shortened(row.name, _NAME) for row in chart.rows]
    axes.set_yticks(range(len(names)), labels=names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x")
    if chart.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter("{x:g}")
    for place, row in enumerate(chart.rows):
        for at, mark in enumerate(row.marks):
            colour = chart.colours[mark.series]
            if mark.mid is None:
                axes.barh(place, mark.high - mark.low, left=mark.low, height=0.55, color=colour)
                continue
            y = place + 0.2 * (at - (len(row.marks) - 1) / 2)  # intervals that overlap stay apart
            axes.plot([mark.low, mark.high], [y, y], "|-", color=colour, linewidth=1.5, markersize=7)
            axes.plot(mark.mid, y, "o", color=colour, markersize=6)
        axes.text(
            1.01 if row.marks else 0.01, place, shortened(row.note, _NOTE), transform=axes.get_yaxis_transform(),
            va="center", fontsize=9, color=SOFT if not row.marks else INK,
        )  # fmt: skip
    handles: list[Any] = [Patch(color=colour, label=name) for name, colour in chart.colours.items()]
    if chart.limit is not None:
        name, value = chart.limit
        handles.append(axes.axvline(value, color=LIMIT, linestyle="--", label=name))
    return handles


def _area(axes: Axes, chart: Area) -> list[Any]:
    heights = [(*values, values[-1]) for values in chart.bands.values()]
    axes.stackplot(chart.edges, heights, colors=[colour for _, colour in chart.bands], step="post", linewidth=0)
    axes.set_xlim(chart.edges[0], chart.edges[-1])
    axes.set_ylim(0, chart.top)
    axes.set_xticks(list(chart.ticks.values()), labels=list(chart.ticks))
    handles: list[Any] = [Patch(color=colour, label=name) for name, colour in chart.bands]
    for dashes, (name, value) in zip(_DASHES, chart.limits.items(), strict=False):
        axes.axhline(value, color=LIMIT, linestyle=dashes)
        handles.append(Line2D([], [], color=LIMIT, linestyle=dashes, label=name))
    return handles
