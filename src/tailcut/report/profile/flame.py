"""Frames within frames as inline SVG: a flame graph that grows downwards. No script; titles say what does not fit."""

from __future__ import annotations

from html import escape

from tailcut.report.profile.shapes import Frame
from tailcut.report.profile.words import ms, percent
from tailcut.report.style import STAGES

_WIDTH = 1080
_ROW = 21
_LETTER = 6.8
_LEAST = 0.8
"""Narrower frames are left out, in pixels."""
_DEEPEST = 48


def flame_graph(root: Frame) -> str:
    """Draw a tree: width is time, what runs inside something stands below it. Empty where there is nothing."""
    if root.value <= 0:
        return ""
    parts: list[str] = []
    depth = _draw(root, root.value, 0.0, 0, parts)
    height = (depth + 1) * _ROW + 2
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _draw(frame: Frame, whole: float, left: float, depth: int, parts: list[str]) -> int:
    """Draw a frame and those below it; return how deep they go."""
    width = frame.value / whole * _WIDTH
    parts.append(_frame(frame, whole, left, width, depth))
    deepest = depth
    if depth < _DEEPEST:
        for child in frame.children:
            if child.value / whole * _WIDTH >= _LEAST:
                deepest = max(deepest, _draw(child, whole, left, depth + 1, parts))
            left += child.value / whole * _WIDTH
    return deepest


def _frame(frame: Frame, whole: float, left: float, width: float, depth: int) -> str:
    own = frame.value - sum(child.value for child in frame.children)
    inside = f", {ms(own)} ms of it itself" if frame.children and own > 0 else ""
    title = f"{frame.name}\n{ms(frame.value)} ms, {percent(frame.value / whole)}{inside}"
    y = depth * _ROW + 1
    room = int((width - 8) / _LETTER)
    text = ""
    if room >= 3:
        shown = frame.name if len(frame.name) <= room else f"{frame.name[: room - 1]}…"
        style = ' class="root-text"' if depth == 0 else ""
        text = f'<text{style} x="{left + 4:.1f}" y="{y + 14.5:.1f}">{escape(shown)}</text>'
    return (
        f'<g class="frame"><rect class="{_style(frame, depth)}" x="{left:.1f}" y="{y}" width="{width:.1f}"'
        f' height="{_ROW - 1}" rx="2"/>{text}<title>{escape(title)}</title></g>'
    )


def _style(frame: Frame, depth: int) -> str:
    if depth == 0:
        return "root"
    if frame.style in STAGES:
        return f"st-{frame.style}"
    return f"fr{sum(map(ord, frame.name)) % 4}"
