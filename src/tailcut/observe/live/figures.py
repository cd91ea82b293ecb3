"""The figures of one moment as frozen records: made once a second, encoded once for everybody who watches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

NOTHING: Sequence[Any] = ()


class FigureRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Base of the records; times are seconds, sizes bytes, shares 0 to 1, and None is a figure that there is not."""


class Count(FigureRecord, frozen=True, kw_only=True):
    """How often something happened: since the start, and per second of the window."""

    total: int
    rate: float


class Requests(FigureRecord, frozen=True, kw_only=True):
    """Requests by how they ended.

    Attributes:
        answered: with an answer.
        shed: refused because of too little capacity (codes shed and queue_timeout).
        failed: by the server: other codes whose status is 5xx.
        refused: because they were themselves wrong: other codes whose status is 4xx.
        codes: errors by code.
    """

    all: Count
    answered: Count
    shed: Count
    failed: Count
    refused: Count
    codes: Mapping[str, Count]


class StageFigures(FigureRecord, frozen=True, kw_only=True):
    """Time of the answered requests of the window in one stage; stage "request" is the whole.

    Attributes:
        count: requests that met the stage.
        mean_s: per answered request, those that did not meet the stage included, so that stages sum to the request;
            None without requests.
    """

    name: str
    count: int
    mean_s: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None


class ObjectiveFigures(FigureRecord, frozen=True, kw_only=True):
    """An objective of the SLO; see ``latency_figures.Objective``.

    Attributes:
        burn: by how much the error budget is used faster than it may be, since the start; None without requests.
        burn_recent: the same of the last ``BURN_S`` seconds.
    """

    name: str
    share: float
    limit_s: float | None
    good: int
    total: int
    burn: float | None
    burn_recent: float | None


class LookupFigures(FigureRecord, frozen=True, kw_only=True):
    """Look-ups of a feature group or a prediction cache.

    Attributes:
        name: of the group or the cache.
        about: entity type of a group; "on" or "off" of a cache.
        share: of look-ups in the window that were hits; None where there were none.
        entries, size_bytes: of a cache.
    """

    name: str
    about: str
    hits: Count
    misses: Count
    share: float | None
    stale: int = 0
    errors: int = 0
    entries: int | None = None
    size_bytes: int | None = None


class BatchFigures(FigureRecord, frozen=True, kw_only=True):
    """Batches of the model.

    Attributes:
        rows_mean, seconds_mean: of the window's batches.
        sizes: batches of the window by an upper bound of their rows; the last bound is None.
        rows_total, seconds_total: of all batches since the start.
    """

    count: Count
    rows_mean: float | None
    seconds_mean: float | None
    sizes: Sequence[tuple[int | None, int]]
    rows_total: int
    seconds_total: float


class VariantFigures(FigureRecord, frozen=True, kw_only=True):
    """A variant of the model.

    Attributes:
        share: of the window's requests; None where there were none.
        busy_share: of the window that executors held the device; None for variants that run on none.
        cost: of a million requests as the build measured it, in ``currency``; None where it did not.
    """

    name: str
    version: str
    served: bool
    requests: Count
    share: float | None
    p50_s: float | None
    p95_s: float | None
    p99_s: float | None
    busy_share: float | None = None
    cost: float | None = None
    currency: str = ""


class DriftColumn(FigureRecord, frozen=True, kw_only=True):
    """A column now, and its two distributions.

    Attributes:
        role, name: of the column.
        psi: population stability index of the current window against the reference.
        evidence: log10 of its share of what an alarm needs; None before the first row.
        drifting: whether an alarm named it and it has not come back.
        since_s: of one that drifts, when it began to differ; on the page of the epoch.
        missing: share of the window's rows without a value.
        unseen: share of the window's rows with a category, or beyond the smallest or largest number, that the
            reference has not.
        reference, current: share of the rows per cell, as ``labels`` name them; in all 1, or 0 without rows.
    """

    role: str
    name: str
    psi: float
    evidence: float | None
    drifting: bool
    since_s: float | None
    missing: float
    unseen: float
    labels: Sequence[str]
    reference: Sequence[float]
    current: Sequence[float]


class DriftFigures(FigureRecord, frozen=True, kw_only=True):
    """Drift of one model: rows compared, and its columns, those that moved most first."""

    rows: int
    alarms: int
    columns: Sequence[DriftColumn]


class AlertFigures(FigureRecord, frozen=True, kw_only=True):
    """An alert; times are of the epoch.

    Attributes:
        model: empty for one of the process.
        subject: the feature group, where it is about one.
        stage: where it probably comes from; empty where that is not known.
    """

    name: str
    severity: str
    model: str
    text: str
    since_s: float
    subject: str = ""
    hint: str = ""
    stage: str = ""


class KeptRequest(FigureRecord, frozen=True, kw_only=True):
    """A request that was kept as a trace.

    Attributes:
        ended_s: of the epoch.
        why: it was kept: "slow", "failed", ...
    """

    trace: str
    model: str
    route: str
    code: str
    variant: str
    why: str
    total_s: float
    ended_s: float


class LiveSpan(FigureRecord, frozen=True, kw_only=True):
    """A step of a request.

    Attributes:
        depth: 0 for the request, 1 for its stages, 2 for what happened within one.
        start_s: after the request's start.
        facts: attributes by name.
    """

    name: str
    depth: int
    start_s: float
    duration_s: float
    failed: bool = False
    facts: Mapping[str, str] = {}


class RequestDetail(FigureRecord, frozen=True, kw_only=True):
    """One kept request: its steps, and the requests that shared its batch."""

    request: KeptRequest
    spans: Sequence[LiveSpan]
    batch: Sequence[KeptRequest] = NOTHING


class Gauges(FigureRecord, frozen=True, kw_only=True):
    """How things stand in a model; None where it is not loaded, or has no such thing.

    Attributes:
        at_risk: queued rows that are predicted to miss their deadlines.
        overloaded: 1 while a backlog stands.
    """

    in_flight: int | None
    queue_rows: int | None
    running_rows: int | None
    at_risk: int | None
    overloaded: int | None
    executors: int | None
    executors_target: int | None
    executors_hung: int | None


class ModelFigures(FigureRecord, frozen=True, kw_only=True):
    """One model.

    Attributes:
        window_s: that rates, means and percentiles are of.
        reason: why it does not serve.
        kept: requests that were kept as traces, the slowest and the failed ones; None where none are kept.
    """

    name: str
    state: str
    ready: bool
    required: bool
    reason: str
    variant: str
    version: str
    window_s: float
    requests: Requests
    stages: Sequence[StageFigures]
    objectives: Sequence[ObjectiveFigures]
    features: Sequence[LookupFigures]
    caches: Sequence[LookupFigures]
    batches: BatchFigures
    variants: Sequence[VariantFigures]
    now: Gauges
    drift: DriftFigures | None = None
    kept: Sequence[KeptRequest] | None = None


class ProcessFigures(FigureRecord, frozen=True, kw_only=True):
    """The process as a whole.

    Attributes:
        cpu_cores: CPU seconds per second of the window.
        loop_lag_s: mean by which the event loop woke up late, in the window.
        viewers: of the page.
    """

    state: str
    started_s: float | None
    memory_bytes: float | None
    cpu_cores: float | None
    cpu_seconds: float | None
    open_files: float | None
    max_files: float | None
    loop_lag_s: float | None
    viewers: int


class Snapshot(FigureRecord, frozen=True, kw_only=True):
    """Everything at one moment.

    Attributes:
        at_s: of the epoch.
        alerts: None where alerts are not evaluated.
    """

    at_s: float
    version: str
    process: ProcessFigures
    models: Sequence[ModelFigures]
    alerts: Sequence[AlertFigures] | None = None


class ModelAbout(FigureRecord, frozen=True, kw_only=True):
    """What the host knows of a model beside its metrics.

    Attributes:
        costs: of a million requests by variant: money and currency.
    """

    state: str
    ready: bool
    required: bool = True
    reason: str = ""
    costs: Mapping[str, tuple[float, str]] = {}
