"""What admission is asked, what it is told of the executors, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from tailcut.scheduler.request_queue import DEFAULT_LEVEL


class Refusal(NamedTuple):
    """Why a request is not accepted.

    Attributes:
        why: "rows" or "bytes": the queue is full; "late": it would miss its deadline; "slo": it would miss the SLO's
            target, and a backlog stands; "crowds": others would miss theirs; "tenant": its tenant has more than its
            share of the queue; "rate": more than its rate.
        never: it could not be accepted at any time.
        value, limit: what was seen and what is allowed, in the unit of ``why`` (nanoseconds for "late", "slo" and
            "crowds").
        ahead_rows: rows that would run first.
        retry_ns: when it may be accepted.
    """

    why: Literal["rows", "bytes", "late", "slo", "crowds", "tenant", "rate"]
    value: float
    limit: float
    retry_ns: float
    ahead_rows: int = 0
    never: bool = False


class Executors(NamedTuple):
    """What the executors are doing.

    Attributes:
        usable: how many can be counted on.
        idle: how many of them run nothing.
        left_ns: what the running batches are still expected to take, summed.
        ends_ns: the same of each, ascending.
        part: of their time that the model can count on, where others share the cores.
    """

    usable: int
    idle: int
    left_ns: float
    ends_ns: Sequence[float] = ()
    part: float = 1.0

    @property
    def speed(self) -> float:
        """How many batches run at a time, on average."""
        return max(self.usable, 1) * self.part


class Request(NamedTuple):
    """What admission needs to know of a request."""

    rows: int
    deadline_ns: int
    level: int = DEFAULT_LEVEL
    tenant: str = ""
    size_bytes: int = 0
    kind: int = 0
