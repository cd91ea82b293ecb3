"""Small horizontal charts as inline SVG: a row per rung. Colours are CSS variables of the page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import ceil, floor, log10

import msgspec

from tailcut.common.statistics import Spread

_WIDTH = 960
_LEFT = 250
_RIGHT = 195
_ROW = 34
_TOP = 30


class Bar(msgspec.Struct, frozen=True, kw_only=True):
    """One bar: its value, what is written after it, and its CSS class."""

    value: float
    label: str
    style: str = "bar"


class _Axis:
    """Maps values to x positions, linear or logarithmic."""

    def __init__(self, low: float, high: float, *, log: bool) -> None:
        self._log = log
        self.low: float = max(tick for tick in _log_ticks(low / 10, low * 1.001)) if log else low
        self.high: float = min(tick for tick in _log_ticks(high * 0.999, high * 10)) if log else high
        if self.high <= self.low:
            self.high = self.low * 10 if log else self.low + 1

    def x(self, value: float) -> float:
        if self._log:
            share = log10(max(value, self.low) / self.low) / log10(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> list[float]:
        return _log_ticks(self.low, self.high * 1.001) if self._log else round_ticks(self.low, self.high)


def ranges(
    rows: Sequence[tuple[str, Mapping[str, Spread], str]], *, unit: str, limit: float | None, limit_name: str
) -> str:
    """Draw percentiles on a logarithmic axis: a dot per percentile with its spread over rounds.

    Args:
        rows: (name, percentile -> spread, note), a note instead of figures where there are none.
        unit: of the axis.
        limit: a value to mark with a dashed line.
        limit_name: what is written at that line.
    """
    values = [edge for _, shapes, _ in rows for one in shapes.values() for edge in (one.low, one.high) if edge > 0]
    if not values:
        return ""
    if limit:
        values.append(limit)
    axis = _Axis(min(values), max(values), log=True)
    parts = [_grid(axis, len(rows), unit)]
    if limit:
        x, bottom = axis.x(limit), _TOP + _ROW * len(rows)
        parts.append(f'<line class="limit" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP - 6}" y2="{bottom}"/>')
        parts.append(f'<text class="limit-name" x="{x + 4:.1f}" y="{_TOP - 10}">{escape(limit_name)}</text>')
    for place, (name, shapes, note) in enumerate(rows):
        y = _TOP + _ROW * place + _ROW / 2
        parts.append(_name(name, y))
        parts.append(_dots(axis, shapes, y) if shapes else _note(note, y))
        if shapes and note:
            parts.append(f'<text class="value warn" x="{_WIDTH - _RIGHT + 8}" y="{y + 4:.1f}">{escape(note)}</text>')
    return _svg(len(rows), parts)


def bars(rows: Sequence[tuple[str, Bar | str]], *, unit: str) -> str:
    """Draw one bar per row from zero, to the left where negative; a text instead of a bar where there is none."""
    values = [bar.value for _, bar in rows if isinstance(bar, Bar)]
    if not values:
        return ""
    axis = _Axis(min(0.0, *values) * 1.02, max(0.0, *values) * 1.02, log=False)
    parts = [_grid(axis, len(rows), unit)]
    for place, (name, bar) in enumerate(rows):
        y = _TOP + _ROW * place
        parts.append(_name(name, y + _ROW / 2))
        if isinstance(bar, str):
            parts.append(_note(bar, y + _ROW / 2))
            continue
        start, end = sorted((axis.x(0.0), axis.x(bar.value)))
        parts.append(
            f'<rect class="{bar.style}" x="{start:.1f}" y="{y + 8}" width="{max(end - start, 1):.1f}"'
            f' height="{_ROW - 16}" rx="3"/>'
        )
        parts.append(f'<text class="value" x="{end + 8:.1f}" y="{y + _ROW / 2 + 4}">{escape(bar.label)}</text>')
    return _svg(len(rows), parts)


def stacks(rows: Sequence[tuple[str, Mapping[str, float], str]], stages: Sequence[str], *, unit: str) -> str:
    """Draw each row's shares as a stacked bar of one length.

    Args:
        rows: (name, stage -> value, label at the end).
        stages: order of the stack; place i has the CSS class "s<i>".
        unit: of the values.
    """
    if not rows:
        return ""
    axis = _Axis(0.0, 100.0, log=False)
    parts = [_grid(axis, len(rows), "%")]
    for place, (name, values, label) in enumerate(rows):
        y, at = _TOP + _ROW * place, 0.0
        total = sum(values.get(stage, 0.0) for stage in stages) or 1.0
        parts.append(_name(name, y + _ROW / 2))
        for index, stage in enumerate(stages):
            value = values.get(stage, 0.0)
            share = 100 * value / total
            x, width = axis.x(at), axis.x(at + share) - axis.x(at)
            at += share
            if width >= 0.2:
                parts.append(
                    f'<rect class="s{index}" x="{x:.1f}" y="{y + 7}" width="{width:.1f}" height="{_ROW - 14}">'
                    f"<title>{escape(stage)}: {value:.3f} {escape(unit)}</title></rect>"
                )
        parts.append(f'<text class="value" x="{axis.x(at) + 8:.1f}" y="{y + _ROW / 2 + 4}">{escape(label)}</text>')
    return _svg(len(rows), parts)


def _svg(count: int, parts: Sequence[str]) -> str:
    height = _TOP + _ROW * count + 34
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _dots(axis: _Axis, shapes: Mapping[str, Spread], y: float) -> str:
    mids = [axis.x(one.mid) for one in shapes.values()]
    parts = [f'<line class="link" x1="{min(mids):.1f}" x2="{max(mids):.1f}" y1="{y}" y2="{y}"/>']
    for place, (which, one) in enumerate(shapes.items()):
        level = y + (place - 1) * 7  # bands that overlap stay apart
        low, high = axis.x(one.low), axis.x(one.high)
        ends = "".join(f"M{x:.1f} {level - 4}v8" for x in (low, high))
        parts.append(
            f'<path class="spread {which}" d="{ends}M{low:.1f} {level}H{high:.1f}"/>'
            f'<circle class="{which}" cx="{axis.x(one.mid):.1f}" cy="{level}" r="5">'
            f"<title>{which}: {one.mid:.2f} ms ({one.low:.2f}-{one.high:.2f})</title></circle>"
        )
    return "".join(parts)


def _grid(axis: _Axis, count: int, unit: str) -> str:
    bottom = _TOP + _ROW * count
    parts = []
    for tick in axis.ticks():
        x = axis.x(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{bottom}"/>')
        parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 18}">{tick:g}</text>')
    parts.append(f'<text class="unit name" x="{_LEFT - 14}" y="{bottom + 18}">{escape(unit)}</text>')
    return "".join(parts)


def _name(name: str, y: float) -> str:
    text = name if len(name) <= 36 else name[:35] + "…"
    return f'<text class="name" x="{_LEFT - 14}" y="{y + 4:.1f}">{escape(text)}</text>'


def _note(text: str, y: float) -> str:
    shown = text if len(text) <= 90 else text[:89] + "…"
    return f'<text class="note" x="{_LEFT + 8}" y="{y + 4:.1f}">{escape(shown)}</text>'


def _log_ticks(low: float, high: float) -> list[float]:
    decades = range(floor(log10(low)) - 1, ceil(log10(high)) + 1)
    return [tick for decade in decades for factor in (1, 2, 5) if low <= (tick := factor * 10.0**decade) <= high]


def round_ticks(low: float, high: float) -> list[float]:
    """Round values from ``low`` to ``high``, about five of them."""
    span = (high - low) / 5
    step = 10 ** floor(log10(span))
    step *= next(factor for factor in (1, 2, 5, 10) if factor * step >= span)
    first = ceil(low / step)
    return [round((first + place) * step, 10) for place in range(floor(high / step) - first + 1)]
