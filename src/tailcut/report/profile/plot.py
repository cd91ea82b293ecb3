"""Requests sorted by latency, each as a stack of its stages, as inline SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tailcut.profiler.records import Stage
from tailcut.report.profile.shapes import Column
from tailcut.report.profile.words import ms, percent
from tailcut.report.svg import round_ticks

_WIDTH, _HEIGHT = 1080, 400
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 16, 22, 46
_SHARES = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
_BEYOND = 0.99
_STEEP = 3.0
"""The plot's height is that of this percentile, but at most so many times the p95, and some room: a few requests of a
second would flatten all others."""

Limit = tuple[str, float]
"""Name, milliseconds."""


def stacked_plot(columns: Sequence[Column], *, limits: Sequence[Limit] = (), thresholds: Sequence[Limit] = ()) -> str:
    """Draw the requests, the quickest on the left. Empty where there are none.

    Args:
        columns: by latency.
        limits: the SLO's lines; the plot is made higher for those that are near.
        thresholds: other lines, shown where they lie within the plot.
    """
    if not columns:
        return ""
    top = _top(columns, [value for _, value in limits])
    parts = [_grid(top)]
    parts += [_area(columns, stage, top) for stage in Stage if any(str(stage) in one.stages_ms for one in columns)]
    parts += [_line(name, value, top) for name, value in (*limits, *thresholds) if value <= top]
    parts += [_hover(column) for column in columns]
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def cut_off(columns: Sequence[Column], limits: Sequence[Limit] = ()) -> str:
    """Say what the plot's height leaves out; empty where it leaves out nothing."""
    top = _top(columns, [value for _, value in limits]) if columns else 0.0
    above = [column for column in columns if column.mean_ms > top]
    if not above:
        return ""
    count = sum(column.count for column in above)
    slowest = max(column.max_ms for column in above)
    if count == 1:
        return f"The slowest is higher than the plot: {ms(slowest)} ms."
    return f"The slowest {count} are higher than the plot, up to {ms(slowest)} ms."


def _top(columns: Sequence[Column], limits: Sequence[float]) -> float:
    last, near = (
        next((one for one in columns if one.to_share >= share), columns[-1]).mean_ms for share in (_BEYOND, 0.95)
    )
    high = min(last, _STEEP * near)
    return 1.12 * max(high, *(value for value in limits if value <= 2.0 * high), 1e-3)


def _x(share: float) -> float:
    return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)


def _y(value_ms: float, top: float) -> float:
    return _HEIGHT - _BOTTOM - min(value_ms / top, 1.0) * (_HEIGHT - _TOP - _BOTTOM)


def _grid(top: float) -> str:
    parts = []
    for tick in round_ticks(0.0, top):
        y = _y(tick, top)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="unit name" x="{_LEFT - 8}" y="{y + 4:.1f}">{tick:g}</text>')
    for share in _SHARES:
        name = "quickest" if not share else f"p{100 * share:.0f}"
        style = "unit" if not share else "tick"
        parts.append(f'<text class="{style}" x="{_x(share):.1f}" y="{_HEIGHT - _BOTTOM + 18}">{name}</text>')
        if share:
            foot = _HEIGHT - _BOTTOM
            parts.append(f'<path class="grid" d="M{_x(share):.1f} {foot}v5"/>')
    parts.append('<text class="unit" x="4" y="12">ms</text>')
    parts.append(f'<text class="unit" x="{_LEFT}" y="{_HEIGHT - 8}">requests by latency</text>')
    return "".join(parts)


def _area(columns: Sequence[Column], stage: Stage, top: float) -> str:
    """One stage's band over all columns, as steps."""
    order = list(Stage)
    below = [str(one) for one in order[: order.index(stage)]]
    upper, lower = [], []
    for column in columns:
        base = sum(column.stages_ms.get(name, 0.0) for name in below)
        high = _y(base + column.stages_ms.get(str(stage), 0.0), top)
        left, right = _x(column.from_share), _x(column.to_share)
        upper.append(f"{left:.1f} {high:.1f}L{right:.1f} {high:.1f}")
        low = _y(base, top)
        lower.append(f"{right:.1f} {low:.1f}L{left:.1f} {low:.1f}")
    return f'<path class="st-{stage}" d="M{"L".join([*upper, *reversed(lower)])}Z"/>'


def _line(name: str, value: float, top: float) -> str:
    y = _y(value, top)
    return (
        f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text class="limit-name" x="{_LEFT + 6}" y="{y - 5:.1f}">{escape(name)}</text>'
    )


def _hover(column: Column) -> str:
    left, right = _x(column.from_share), _x(column.to_share)
    whole = column.mean_ms or 1.0
    named = sorted(column.stages_ms.items(), key=lambda pair: -pair[1])
    lines = [f"{name} {ms(value)} ms, {percent(value / whole)}" for name, value in named if value >= 0.002 * whole]
    many = f"mean of {column.count} requests" if column.count > 1 else "one request"
    title = "\n".join([f"p{100 * column.to_share:.1f}: {ms(column.mean_ms)} ms ({many})", *lines])
    return (
        f'<rect class="hover" x="{left:.1f}" y="{_TOP}" width="{max(right - left, 0.5):.1f}"'
        f' height="{_HEIGHT - _TOP - _BOTTOM}"><title>{escape(title)}</title></rect>'
    )
