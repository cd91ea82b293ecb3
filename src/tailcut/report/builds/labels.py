"""Where the names of a plot's points stand: beside their point where there is room, else further off with a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import cos, hypot, radians, sin

import msgspec

HEIGHT = 16.0
"""Of a label, its line of text with room above and below."""

_CHARACTER = 7.3
_REACH = (13.0, 26.0, 42.0, 60.0, 80.0, 104.0, 130.0)
_DEGREES = (30, 0, -30, 150, 180, -150, 60, -60, 120, -120, 90, -90)
"""Directions in which a label may lie, the preferred ones first."""

_LEADER = 14.0
"""Distance from which a line leads from the point to its label."""


class Box(msgspec.Struct, frozen=True, kw_only=True):
    """A rectangle; y grows downwards."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Area that both cover."""
        width = min(self.right, other.right) - max(self.left, other.left)
        height = min(self.bottom, other.bottom) - max(self.top, other.top)
        return width * height if width > 0 and height > 0 else 0.0


class Label(msgspec.Struct, frozen=True, kw_only=True):
    """A placed text.

    Attributes:
        box: that it fills.
        leader: start and end of the line from its point, (x, y) each; None where it stands beside the point.
    """

    text: str
    box: Box
    leader: tuple[tuple[float, float], tuple[float, float]] | None


def place(points: Sequence[tuple[str, float, float]], taken: Sequence[Box], area: Box) -> list[Label]:
    """Place a label per point, in the points' order, so that none covers another, a point or what is taken.

    Each takes the first free place, going outwards; where the plot is full, the one that covers least.

    Args:
        points: (text, x, y).
        taken: what else must stay visible, such as the points and their intervals.
        area: that labels may not leave.
    """
    used = list(taken)
    found = []
    for text, x, y in points:
        box = _best(text, x, y, used, area)
        used.append(box)
        found.append(Label(text=text, box=box, leader=_leader(x, y, box)))
    return found


def _best(text: str, x: float, y: float, used: Sequence[Box], area: Box) -> Box:
    best, least = None, float("inf")
    for box in _places(text, x, y):
        inside = area.left <= box.left and box.right <= area.right and area.top <= box.top and box.bottom <= area.bottom
        covered = sum(box.overlap(other) for other in used)
        if inside and covered < least:
            best, least = box, covered
        if best is not None and least == 0:
            return best
    return best or next(_places(text, x, y))


def _places(text: str, x: float, y: float) -> Iterator[Box]:
    """Candidates around a point, the near ones first, ring by ring."""
    width = _CHARACTER * len(text)
    for reach in _REACH:
        for angle in map(radians, _DEGREES):
            near_x, middle = x + reach * cos(angle), y - reach * sin(angle)
            # Texts to the left end at their place, those to the right begin there, those between are centred.
            left = near_x - width * (1 - cos(angle)) / 2
            yield Box(left=left, top=middle - HEIGHT / 2, right=left + width, bottom=middle + HEIGHT / 2)


def _leader(x: float, y: float, box: Box) -> tuple[tuple[float, float], tuple[float, float]] | None:
    """From the point to the nearest edge of its label; None where they are close."""
    end = min(max(x, box.left), box.right), min(max(y, box.top), box.bottom)
    length = hypot(end[0] - x, end[1] - y)
    if length < _LEADER:
        return None
    start = x + (end[0] - x) * 7 / length, y + (end[1] - y) * 7 / length
    return start, end
