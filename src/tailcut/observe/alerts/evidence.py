"""What the rules look at: one value, made once a minute, of which no rule changes anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tailcut.manifest.schema.observe import Alerts
from tailcut.observe.alerts.latency_growth import Growth
from tailcut.observe.alerts.levels import Levels
from tailcut.observe.alerts.minute_counts import MinuteCounts

SHORT_MINUTES = 125
"""Minutes for which counters are kept that no long window is about."""

BUDGET_MINUTES = 3 * 24 * 60
"""Longest window of burn rates."""


class MovedColumns(NamedTuple):
    """What a model's drift detector says of its inputs and outputs, once it can judge them.

    Attributes:
        columns: that moved, the one that moved most first; empty if none did.
        since_s: Unix seconds from which on; 0 if that is not known.
        effect: population stability index of the first column; 0 without one.
        limit: that it must reach for an alarm.
    """

    model: str
    columns: Sequence[str]
    since_s: float
    effect: float
    limit: float


class Gpu(NamedTuple):
    """A GPU as its driver reports it.

    Attributes:
        celsius: temperature; NaN where it is not known.
        is_slowed: whether its clocks are held back by heat or by the power supply.
    """

    name: str
    celsius: float
    is_slowed: bool


class SlowRequest(NamedTuple):
    """A request of which a trace is kept.

    Attributes:
        ended_s: Unix seconds.
    """

    model: str
    trace_id: str
    ended_s: float
    milliseconds: float


class Evidence(NamedTuple):
    """What is known at the end of a minute.

    Attributes:
        counts: growth of counters.
        uptime_minutes: of this process.
        growth: p95 week over week by model; models without enough requests are missing.
        levels: memory, descriptors and threads since the warm-up.
        moved: of models whose drift detectors can judge.
    """

    settings: Alerts
    counts: MinuteCounts
    models: Sequence[str]
    uptime_minutes: int
    growth: Mapping[str, Growth]
    levels: Sequence[Levels]
    moved: Sequence[MovedColumns]
    gpus: Sequence[Gpu]
