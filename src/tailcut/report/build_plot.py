"""Latency under load against quality drop as inline SVG: a point per variant, with its interval and upper limit."""

from __future__ import annotations

from html import escape

import msgspec

from tailcut.registry import Promotion, Version
from tailcut.report import build_figures
from tailcut.report.svg import round_ticks

_WIDTH, _HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 150, 30, 50


class _Point(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    style: str
    ms: tuple[float, float, float]
    drop: float
    upper: float | None


class _Scale:
    """Maps values linearly onto positions; a little room is left at both ends."""

    def __init__(self, values: list[float], start: float, end: float) -> None:
        low, high = min(values), max(values)
        room = (high - low) * 0.06 or max(abs(high) * 0.06, 1e-9)
        self.low, self.high = low - room, high + room
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        return self._start + (value - self.low) / (self.high - self.low) * (self._end - self._start)


def pareto(version: Version, promotion: Promotion | None) -> str:
    """Draw every variant that was measured under load; the source is at a drop of 0. Empty where none was."""
    metric, budget = _budget(version)
    points = _points(version, promotion, metric)
    if not points:
        return ""
    limit_ms = build_figures.limit_ms(version)
    slowest = max(point.ms[2] for point in points)
    near = limit_ms is not None and limit_ms <= 3 * slowest
    xs = [0.0, slowest, *([limit_ms] if near and limit_ms else [])]
    ys = [0.0, budget, *(value for point in points for value in (point.drop, point.upper or point.drop))]
    x, y = _Scale(xs, _LEFT, _WIDTH - _RIGHT), _Scale(ys, _HEIGHT - _BOTTOM, _TOP)
    parts = [_grid(x, y)]
    if budget:
        level = y.at(budget)
        parts.append(f'<line class="limit" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{level:.1f}" y2="{level:.1f}"/>')
        parts.append(_text("limit-name", _WIDTH - _RIGHT + 6, level + 4, f"budget {budget:g}"))
    if near and limit_ms:
        at = x.at(limit_ms)
        parts.append(f'<line class="limit" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(_text("limit-name", at + 4, _TOP - 8, f"SLO {limit_ms:g} ms"))
    parts.extend(_mark(point, x, y) for point in points)
    outside = f" (SLO {limit_ms:g} ms lies to the right)" if limit_ms and not near else ""
    axis = f"{build_figures.percentile(version)} under load, ms{outside}"
    parts.append(_text("unit", _LEFT, _HEIGHT - 8, axis))
    parts.append(_text("unit", 8, 16, f"drop of {metric or 'quality (no budget)'}"))
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">{"".join(parts)}</svg>'


def _budget(version: Version) -> tuple[str, float]:
    """Name the first budgeted metric and its budget; empty and 0 where nothing was judged."""
    for each in version.variants.values():
        for found in (each.evidence.get("quality") or {}).get("metrics", []):
            return str(found["metric"]), float(found["budget"])
    return "", 0.0


def _points(version: Version, promotion: Promotion | None, metric: str) -> list[_Point]:
    points = []
    for name, each in version.variants.items():
        speed = each.evidence.get("speed")
        judged = (each.evidence.get("quality") or {}).get("metrics", [])
        found = next((one for one in judged if one["metric"] == metric), None)
        if not speed or (name != version.source and (found is None or found["drop"] is None)):
            continue
        verdict = build_figures.verdict(version, promotion, name)
        style = "best" if verdict.startswith("promoted") else "out" if each.refused else "point"
        low, mid, high = speed["latency_ms"][1], speed["latency_ms"][0], speed["latency_ms"][2]
        drop, upper = (found["drop"], found["upper"]) if found else (0.0, None)
        points.append(_Point(name=name, style=style, ms=(low, mid, high), drop=drop, upper=upper))
    return points


def _grid(x: _Scale, y: _Scale) -> str:
    parts = []
    for tick in round_ticks(x.low, x.high):
        at = x.at(tick)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(_text("tick", at, _HEIGHT - _BOTTOM + 18, f"{tick:g}"))
    for tick in round_ticks(y.low, y.high):
        at = y.at(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_text("tick name", _LEFT - 8, at + 4, f"{tick:g}"))
    return "".join(parts)


def _mark(point: _Point, x: _Scale, y: _Scale) -> str:
    low, mid, high = (x.at(value) for value in point.ms)
    level = y.at(point.drop)
    bars = f"M{low:.1f} {level:.1f}H{high:.1f}"
    if point.upper is not None:
        bars += f"M{mid:.1f} {level:.1f}V{y.at(point.upper):.1f}m-4 0h8"
    title = f"{point.name}: {point.ms[1]:.3g} ms, drop {point.drop:.3g}"
    return (
        f'<path class="spread" style="stroke:var(--soft)" d="{bars}"/>'
        f'<circle class="{point.style}" cx="{mid:.1f}" cy="{level:.1f}" r="6"><title>{escape(title)}</title></circle>'
        + _text("", mid + 9, level - 8, point.name)
    )


def _text(style: str, x: float, y: float, text: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
