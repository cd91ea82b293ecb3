"""What a detector says: alarms, and a snapshot for pages and alerts."""

from __future__ import annotations

import msgspec

from tailcut.observe.drift.sketch import Role


class Moved(msgspec.Struct, frozen=True):
    """A column that has drifted.

    Attributes:
        role, name: of the column.
        psi: its population stability index in the current window.
        evidence: log10 of its evidence as a share of what an alarm needs.
        since_s: estimate of when it began to differ.
    """

    role: Role
    name: str
    psi: float
    evidence: float
    since_s: float


class DriftAlarm(msgspec.Struct, frozen=True):
    """Columns whose drift is shown, the largest effect first."""

    at_s: float
    columns: tuple[Moved, ...]


class DriftHistogram(msgspec.Struct, frozen=True):
    """A distribution: a label and a share of the rows per cell; shares add up to 1, or to 0 without rows."""

    labels: tuple[str, ...]
    shares: tuple[float, ...]


class ColumnState(msgspec.Struct, frozen=True, kw_only=True):
    """One column now.

    Attributes:
        role, name: of the column.
        psi: population stability index of the current window against the reference.
        evidence: log10 of its evidence as a share of what an alarm needs; -infinity before the first row.
        drifting: whether an alarm named it and it has not come back.
        since_s: of one that drifts, when it began to differ; None of others.
        missing: share of the window's rows without a value.
        missing_reference: share of the reference's.
        unseen: share of the window's rows with a category, or beyond the smallest or largest number, that the
            reference has not.
        reference, current: both distributions, over the same cells.
    """

    role: Role
    name: str
    psi: float
    evidence: float
    drifting: bool
    since_s: float | None
    missing: float
    missing_reference: float
    unseen: float
    reference: DriftHistogram
    current: DriftHistogram


class State(msgspec.Struct, frozen=True, kw_only=True):
    """A detector's snapshot.

    Attributes:
        rows: rows that were given since it began.
        counted: of them, those that counted: the first of each entity in a window.
        alarms: how many there were.
        window_rows: rows that counted in the current window.
        columns: of inputs and outputs.
        is_judged: whether a whole window has been seen, before which there is no alarm.
    """

    rows: int
    counted: int
    alarms: int
    window_rows: int
    columns: tuple[ColumnState, ...]
    is_judged: bool = False
