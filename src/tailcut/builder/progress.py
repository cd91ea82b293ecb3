"""How a build tells what it does: typed events, and the rows and lines that follow from them. No clock, no terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

State = Literal["waiting", "absent", "started", "done", "failed", "judged", "passed", "refused"]

REDRAW_S = 0.25
"""Least time between two drawings of the table."""

CALM_S = 1.0
"""The same while a step measures."""

_DOING = {"make": "making", "score": "scoring", "tune": "tuning"}
_DONE = {"make": "made", "score": "scored", "tune": "tuned"}
_TITLES = {
    "holdout": "reading the holdout",
    "source": "loading the source model",
    "base": "fetching the portable base",
    "judge": "judging quality",
    "judge logged": "comparing answers to logged requests",
    "race": "timing the bare runtimes",
    "load": "under load",
}
_MEASURING = ("tune", "race")
_ENDED = ("done", "failed", "absent")


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happened in a build.

    Attributes:
        state: "waiting" and "absent" (it is not made here) of a recipe; "started", "done" and "failed" of a step, or
            "absent" where the recipe turned out to have nothing to do; "judged" of a variant's quality; "passed" and
            "refused" of a variant in the end.
        step: a key of ``steps.STEPS``, or "load"; empty where the event is about no step.
        variant: that it is about; empty where it is about all of them, or about none yet.
        seconds: that the step took, where it has ended.
        reason: why it failed, is absent or is refused; whole.
        round, rounds: of load, and how many there are at most; the first is 1, and 0 stands for none.
        open: variants whose verdict on speed is open.
        left_s: that load may still take.
    """

    state: State
    step: str = ""
    variant: str = ""
    seconds: float = 0.0
    reason: str = ""
    round: int = 0
    rounds: int = 0
    open: tuple[str, ...] = ()
    left_s: float = 0.0

    @property
    def what(self) -> str:
        """The step as durations and lines name it."""
        return f"{self.step} {self.variant}".strip()


Progress = Callable[[Event], None]
"""Told of every event, in the thread of the build."""


def silent(event: Event) -> None:
    """Tell nobody."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One variant in the live table.

    Attributes:
        state: of the variant, such as "waiting", "making", "under load round 2", "passed" or "not here".
        step_s: since its step began; None where none is under way, and under load.
        took_s: all its steps so far, the one under way included.
        why: first line of the reason for a failure, a refusal or an absence.
    """

    name: str
    state: str
    step_s: float | None = None
    took_s: float = 0.0
    why: str = ""


@dataclass
class _Entry:
    state: str = "waiting"
    took_s: float = 0.0
    why: str = ""


@dataclass
class Board:
    """Takes in events and says what the live table shows. Times are seconds of one clock that only goes up."""

    entries: dict[str, _Entry] = field(default_factory=dict)
    current: Event | None = None
    since_s: float = 0.0

    def take(self, event: Event, now_s: float) -> None:
        """Take in what happened."""
        if event.state == "started":
            self.current, self.since_s = event, now_s
        elif event.state in _ENDED:
            self.current = None
        if event.variant:
            entry = self.entries.setdefault(event.variant, _Entry())
            entry.state = _state(event)
            entry.took_s += event.seconds
            if event.reason:
                entry.why = _first_line(event.reason)

    def rows(self, now_s: float) -> list[Row]:
        """A row per variant known so far, in the order in which they are made."""
        return [self._row(name, entry, now_s) for name, entry in self.entries.items()]

    def title(self, now_s: float) -> str:
        """Say what the build is at where that is about no single variant; empty where a row says it."""
        current = self.current
        if current is None or (current.variant and not current.round):
            return ""
        if current.round:
            return f"under load: {current.variant}, {_rounds(current)}"
        return f"{_TITLES.get(current.step, current.step)}, {now_s - self.since_s:.0f} s"

    @property
    def redraw_s(self) -> float | None:
        """Time between two drawings; None while requests are sent: then the table is drawn between rounds only."""
        if self.current is None or self.current.step not in ("load", *_MEASURING):
            return REDRAW_S
        return None if self.current.round else CALM_S

    def _row(self, name: str, entry: _Entry, now_s: float) -> Row:
        # Not under load: drawn between rounds only, the seconds would stand still.
        under_way = self.current is not None and self.current.variant == name and not self.current.round
        step_s = now_s - self.since_s if under_way else None
        return Row(name=name, state=entry.state, step_s=step_s, took_s=entry.took_s + (step_s or 0.0), why=entry.why)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """A line for a log; ``failure`` where it says what went wrong."""

    text: str
    failure: bool = False


@dataclass
class Log:
    """Takes in events and says which lines to write: one per finished step, and the reason of each failure once.

    A failure is held until the next event: the one that ends the build is written as the command's error, the reason
    for a refusal stands with the final table, and only others are written here. Where there will be no table, the
    reasons that it would have had are written by ``close``.
    """

    held: Event | None = None
    current: Event | None = None
    refused: dict[str, str] = field(default_factory=dict)
    opened: tuple[str, ...] = ()
    """Variants whose verdict on speed is open."""

    def take(self, event: Event) -> list[Line]:
        """Take in what happened; return what to write."""
        lines = self._release(event)
        if event.state == "started":
            self.current = event
        elif event.state in _ENDED:
            self.current = None
        if event.state == "failed":
            self.held = event
        elif event.state == "done":
            lines.append(Line(text=f"{event.what}: done in {event.seconds:.1f} s"))
        elif event.state == "absent" and event.step:
            lines.append(Line(text=f"{event.what}: does not apply"))
        elif event.state == "refused":
            self.refused[event.variant] = event.reason
        if event.round and event.open != self.opened:
            self.opened = event.open
            lines.append(Line(text=f"load: {_rounds(event)}"))
        return lines

    def stopped(self) -> list[Line]:
        """Return what to write where the build is stopped from outside: what it was at, and what is left of it."""
        at = f"while at {self.current.what}" if self.current else "between two steps"
        return [Line(text=f"stopped {at}: nothing was promoted, the served variant stays", failure=True)]

    def close(self, error: str | None) -> list[Line]:
        """Return what is still to be written at the end: ``error`` is the message that the build ends with, or None."""
        held, self.held = self.held, None
        lines = [] if held is None or held.reason == error else [_failed(held, held.reason)]
        if error is not None:
            untold = {name: why for name, why in self.refused.items() if why not in error}
            lines += [Line(text=f"{name} refused: {_first_line(why)}", failure=True) for name, why in untold.items()]
        return lines

    def _release(self, event: Event) -> list[Line]:
        held, self.held = self.held, None
        if held is None:
            return []
        told_later = event.state == "refused" and event.variant == held.variant and event.reason == held.reason
        return [_failed(held, "" if told_later else held.reason)]


def _failed(event: Event, reason: str) -> Line:
    text = f"{event.what}: failed after {event.seconds:.1f} s"
    return Line(text=f"{text}: {_first_line(reason)}" if reason else text, failure=bool(reason))


def _state(event: Event) -> str:
    if event.round:
        return f"under load round {event.round}"
    if event.state == "absent":
        return "not here" if event.reason.startswith("not here: ") else "not made"
    if event.state == "started":
        return _DOING.get(event.step, event.step)
    if event.state == "done":
        return _DONE.get(event.step, event.step)
    if event.state == "failed":
        return f"{_DOING.get(event.step, event.step)} failed"
    return event.state


def _rounds(event: Event) -> str:
    """Say where the rounds of load are, and what they go on for."""
    opened = "all verdicts decided, choosing the variant to promote"
    if event.open:
        opened = f"speed of {', '.join(event.open)} open"
    return f"round {event.round} of at most {event.rounds}, at most {event.left_s:.0f} s more; {opened}"


def _first_line(reason: str) -> str:
    return reason.partition("\n")[0]
