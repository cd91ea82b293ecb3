"""Latency under load against quality drop as inline SVG: a point per variant, with its interval on both axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import msgspec

from tailcut.registry import Promotion, Version
from tailcut.report.builds import figures
from tailcut.report.builds.labels import Box, Label, place
from tailcut.report.svg import round_ticks

_WIDTH, _HEIGHT = 960, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 90, 150, 30, 50


class _Point(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    style: str
    ms: tuple[float, float, float]
    drop: float
    limits: tuple[float, float] | None
    """Of the drop; None for the source, which is what the others are held against, and where nothing bounds it."""


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
    limit_ms = figures.limit_ms(version)
    slowest = max(point.ms[2] for point in points)
    near = limit_ms is not None and limit_ms <= 2 * slowest
    xs = [0.0, slowest, *([limit_ms] if near and limit_ms else [])]
    ys = [0.0, budget, *(value for point in points for value in (point.drop, *(point.limits or ())))]
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
    parts.extend(_label(label) for label in _labels(points, x, y))
    outside = f" (SLO {limit_ms:g} ms lies to the right)" if limit_ms and not near else ""
    axis = f"{figures.percentile(version)} under load, ms{outside}"
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
        verdict = figures.verdict(version, promotion, name)
        style = "best" if verdict.startswith("promoted") else "out" if each.refused else "point"
        mid, low, high = speed["latency_ms"]
        if high >= figures.NO_NUMBER:
            low = high = mid  # the rounds were too few for an interval
        drop = found["drop"] if found else 0.0
        points.append(_Point(name=name, style=style, ms=(low, mid, high), drop=drop, limits=_limits(found)))
    return points


def _limits(judged: Mapping[str, Any] | None) -> tuple[float, float] | None:
    """Lower and upper limit of a drop; the drop itself stands for a side that is not known."""
    if judged is None or (judged.get("lower") is None and judged.get("upper") is None):
        return None
    low, high = (judged["drop"] if judged.get(side) is None else judged[side] for side in ("lower", "upper"))
    return float(low), float(high)


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
    bars = f"M{low:.1f} {level:.1f}H{high:.1f}" + "".join(f"M{end:.1f} {level - 4:.1f}v8" for end in (low, high))
    if point.limits is not None:
        ends = [y.at(value) for value in point.limits]
        bars += f"M{mid:.1f} {ends[0]:.1f}V{ends[1]:.1f}" + "".join(f"M{mid - 4:.1f} {end:.1f}h8" for end in ends)
    between = f" ({point.limits[0]:.3g} to {point.limits[1]:.3g})" if point.limits else ""
    took = f"{point.ms[1]:.3g} ms ({point.ms[0]:.3g}-{point.ms[2]:.3g})"
    title = f"{point.name}: {took}, drop {point.drop:.3g}{between}"
    return (
        f'<path class="spread {point.style}" d="{bars}"/>'
        f'<circle class="{point.style}" cx="{mid:.1f}" cy="{level:.1f}" r="6"><title>{escape(title)}</title></circle>'
    )


def _labels(points: Sequence[_Point], x: _Scale, y: _Scale) -> list[Label]:
    """Place the names clear of points, bars and each other, the crowded ones along the bottom first."""
    taken = []
    for point in points:
        at, level = x.at(point.ms[1]), y.at(point.drop)
        taken.append(Box(left=at - 8, top=level - 8, right=at + 8, bottom=level + 8))
        taken.append(Box(left=x.at(point.ms[0]), top=level - 3, right=x.at(point.ms[2]), bottom=level + 3))
        low, high = point.limits or (point.drop, point.drop)
        taken.append(Box(left=at - 3, top=y.at(high), right=at + 3, bottom=y.at(low)))
    named = sorted(((point.name, x.at(point.ms[1]), y.at(point.drop)) for point in points), key=lambda one: one[1:])
    return place(named, taken, Box(left=_LEFT, top=_TOP, right=_WIDTH, bottom=_HEIGHT - _BOTTOM))


def _label(label: Label) -> str:
    line = ""
    if label.leader:
        (x1, y1), (x2, y2) = label.leader
        line = f'<line class="leader" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
    return line + _text("label", (label.box.left + label.box.right) / 2, label.box.bottom - 4, label.text)


def _text(style: str, x: float, y: float, text: str) -> str:
    return f'<text class="{style}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'
