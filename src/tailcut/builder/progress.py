"""How a build tells what it does: typed events, and the lines that follow from them. No clock, no terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import msgspec

State = Literal["waiting", "absent", "started", "done", "failed", "judged", "passed", "refused"]

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


@dataclass
class ProgressLog:
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

    def take(self, event: Event) -> list[str]:
        """Take in what happened; return what to write."""
        lines = self._release(event)
        if event.state == "started":
            self.current = event
        elif event.state in _ENDED:
            self.current = None
        if event.state == "failed":
            self.held = event
        elif event.state == "done":
            lines.append(f"{event.what}: done in {event.seconds:.1f} s")
        elif event.state == "absent" and event.step:
            lines.append(f"{event.what}: does not apply")
        elif event.state == "refused":
            self.refused[event.variant] = event.reason
        if event.round and event.open != self.opened:
            self.opened = event.open
            lines.append(f"load: {_rounds(event)}")
        return lines

    def stopped(self) -> list[str]:
        """Return what to write where the build is stopped from outside: what it was at, and what is left of it."""
        at = f"while at {self.current.what}" if self.current else "between two steps"
        return [f"stopped {at}: nothing was promoted, the served variant stays"]

    def close(self, error: str | None) -> list[str]:
        """Return what is still to be written at the end: ``error`` is the message that the build ends with, or None."""
        held, self.held = self.held, None
        lines = [] if held is None or held.reason == error else [_failed(held, held.reason)]
        if error is not None:
            untold = {name: why for name, why in self.refused.items() if why not in error}
            lines += [f"{name} refused: {_first_line(why)}" for name, why in untold.items()]
        return lines

    def _release(self, event: Event) -> list[str]:
        held, self.held = self.held, None
        if held is None:
            return []
        told_later = event.state == "refused" and event.variant == held.variant and event.reason == held.reason
        return [_failed(held, "" if told_later else held.reason)]


def _failed(event: Event, reason: str) -> str:
    text = f"{event.what}: failed after {event.seconds:.1f} s"
    return f"{text}: {_first_line(reason)}" if reason else text


def _rounds(event: Event) -> str:
    """Say where the rounds of load are, and what they go on for."""
    opened = "all verdicts decided, choosing the variant to promote"
    if event.open:
        opened = f"speed of {', '.join(event.open)} open"
    return f"round {event.round} of at most {event.rounds}, at most {event.left_s:.0f} s more; {opened}"


def _first_line(reason: str) -> str:
    return reason.partition("\n")[0]
