"""Makes the live figures of a host: one snapshot a second while somebody watches, one each ten seconds otherwise.

The slow pace keeps the plots of the last minutes for whoever opens the page next. Models take turns on the event loop,
so that requests run between two of them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import msgspec
from prometheus_client import ProcessCollector

from tailcut.common.histogram import ROW_BOUNDS, Histogram
from tailcut.errors import NotReady
from tailcut.observe.alerts.evaluator import Alarm
from tailcut.observe.alerts.rules import RULE
from tailcut.observe.drift.detector import State
from tailcut.observe.exposition import ModelSeries
from tailcut.observe.latency_figures import Objective
from tailcut.observe.live.figures import (
    AlertFigures,
    DriftFigures,
    KeptRequest,
    LiveSpan,
    ModelAbout,
    ModelFigures,
    ProcessFigures,
    RequestDetail,
    Snapshot,
)
from tailcut.observe.live.model_figures import BURN_S, CounterSnapshot, mark, model_figures, point
from tailcut.observe.traces.kept import FoundTrace, Kept
from tailcut.observe.traces.kept import Span as TraceSpan
from tailcut.version import version

log = logging.getLogger("tailcut.server")

WINDOW_S = 10.0
"""That rates and percentiles are of, as nearly as there are marks."""

WATCHED_S, UNWATCHED_S = 1.0, 10.0
"""Between two snapshots."""

HISTORY_S = 900.0
"""That plots go back."""

_ASKED_S = 5.0
"""Whoever asked for a snapshot is taken to watch for this long."""
_SPARK_S = 5.0
_BURN_EVERY_S = 10.0
_NOTHING = CounterSnapshot(0.0, {}, {}, {}, Histogram(ROW_BOUNDS).counts, (), {})

_encode = msgspec.json.Encoder().encode
T = TypeVar("T")


class LiveFigures:
    """The live figures of a host. Owned by the event loop.

    Args:
        models: as for ``Exposition``.
        about: what the host knows of each of its models, those included that could not be loaded.
        state: of the host.
        loop_lag: nanoseconds by which the event loop woke up late.
        clock_s: never goes back.
        wall_s: seconds since the epoch.

    Attributes:
        latest: the last snapshot; None before the first.
        viewers: who are connected.
        on_snapshot: called with each snapshot.
        on_stop: called when there will be no more.
        drift: finds the drift of a model.
        kept: finds the kept requests, by model.
        request: finds the kept request with a trace id.
        alerts: finds the alerts that fire. Each of these finds None where there is no such part.
    """

    def __init__(
        self,
        models: Callable[[], Iterable[ModelSeries]],
        about: Callable[[], Mapping[str, ModelAbout]],
        state: Callable[[], str],
        loop_lag: Histogram,
        clock_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._models, self._about, self._state = models, about, state
        self._clock_s, self._wall_s = clock_s, wall_s
        self._process = _Process(loop_lag)
        self._tracks: dict[str, _Track] = {}
        self._version = version()
        self._due_s = float("-inf")
        self._asked_until_s = float("-inf")
        self._taken_s = float("-inf")
        self._task: asyncio.Task[None] | None = None
        self._failed = False
        self.latest: Snapshot | None = None
        self.viewers = 0
        self.on_snapshot: list[Callable[[Snapshot], object]] = []
        self.on_stop: list[Callable[[], object]] = []
        self.drift: Callable[[str], DriftFigures | None] = lambda model: None
        self.kept: Callable[[], Mapping[str, Sequence[KeptRequest]] | None] = lambda: None
        self.alerts: Callable[[], Sequence[AlertFigures] | None] = lambda: None
        self.request: Callable[[str], RequestDetail | None] = lambda trace: None

    @property
    def is_watched(self) -> bool:
        """Whether somebody watches, or asked within the last seconds."""
        return self.viewers > 0 or self._clock_s() < self._asked_until_s

    def watch(self) -> None:
        """Take the next snapshot at once: somebody begins to watch."""
        if not self.is_watched:
            self._due_s = float("-inf")

    async def asked(self) -> Snapshot:
        """Return a snapshot that is at most a second old; whoever asks is taken to watch for some seconds.

        Raises:
            NotReady: the server stops, or the figures cannot be made.
        """
        self.watch()
        now_s = self._clock_s()
        self._asked_until_s = now_s + _ASKED_S
        if now_s - self._taken_s >= WATCHED_S:
            await asyncio.wait({self._begin()})
        if self.latest is None:
            raise NotReady("there are no live figures (yet)", hint="retry; if it stays so, see the server's log")
        return self.latest

    def tick(self) -> None:
        """Begin a snapshot where one is due; called every 0.1 s."""
        if self._clock_s() >= self._due_s:
            self._begin()

    def stop(self) -> None:
        """Take no more snapshots, and have what shows them end."""
        self._due_s = float("inf")
        if self._task is not None:
            self._task.cancel()
        for tell in self.on_stop:
            tell()

    async def take(self) -> None:
        """Make a snapshot."""
        now_s, wall_s = self._clock_s(), self._wall_s()
        figures: list[ModelFigures] = []
        about = self._about()
        series = {each.model: each for each in self._models()}
        for name in self._tracks.keys() - about.keys():
            del self._tracks[name]
        kept = self.kept()
        for name, its in about.items():
            found = self._of_model(name, its, series.get(name), now_s, wall_s)
            figures.append(found if kept is None else msgspec.structs.replace(found, kept=kept.get(name, ())))
            await asyncio.sleep(0)
        process = self._process.figures(now_s, self._state(), self.viewers)
        alerts = self.alerts()
        self._taken_s = now_s
        self.latest = Snapshot(at_s=wall_s, version=self._version, process=process, models=figures, alerts=alerts)
        for tell in self.on_snapshot:
            tell(self.latest)

    def points(self, name: str) -> bytes:
        """Return a model's points of the last minutes as JSON, oldest first; see ``model_figures.POINT``."""
        return b"[" + b",".join(self._track(name).points) + b"]"

    def last_point(self, name: str) -> bytes:
        """Return the latest of them."""
        return self._track(name).points.last or b"null"

    def sparks(self, name: str) -> bytes:
        """Return some of a model's points as JSON: [at, rate, p95, share of requests not answered]."""
        return b"[" + b",".join(self._track(name).sparks) + b"]"

    # -- Inside ------------------------------------------------------------------------------------------------------

    def _track(self, name: str) -> _Track:
        """Return what is remembered of a model; an empty one of a model that is not known."""
        return self._tracks.get(name) or _Track()

    def _begin(self) -> asyncio.Task[None]:
        """Return the snapshot that is being made; begin one where there is none."""
        if self._task is None or self._task.done():
            if self._due_s < float("inf"):
                self._due_s = self._clock_s() + (WATCHED_S if self.is_watched else UNWATCHED_S)
            self._task = asyncio.get_running_loop().create_task(self._take_safely())
        return self._task

    async def _take_safely(self) -> None:
        try:
            await self.take()
        except Exception:
            if not self._failed:
                log.exception("the live figures could not be made; later failures are not logged")
            self._failed = True

    def _of_model(
        self, name: str, about: ModelAbout, series: ModelSeries | None, now_s: float, wall_s: float
    ) -> ModelFigures:
        track = self._tracks[name] = self._track(name)
        last = track.marks.last
        new = _NOTHING._replace(at_s=now_s) if series is None else mark(now_s, series.recorder, series.source(), last)
        old, burn = track.marks.ago(now_s, WINDOW_S, new), track.burn.ago(now_s, BURN_S, ())
        found = msgspec.structs.replace(model_figures(name, about, old, new, burn), drift=self.drift(name))
        track.add(new, found, now_s, wall_s)
        return found


class _Past(Generic[T]):
    """Values of the last seconds with their times, one every ``every_s`` at most; two are kept in any case."""

    def __init__(self, keep_s: float, every_s: float = 0.0) -> None:
        self._keep_s = keep_s
        self._every_s = every_s
        self._held: deque[tuple[float, T]] = deque()

    def __iter__(self) -> Iterator[T]:
        return (value for _, value in self._held)

    @property
    def last(self) -> T | None:
        """The latest value."""
        return self._held[-1][1] if self._held else None

    def ago(self, now_s: float, ago_s: float, default: T) -> T:
        """Return the value that is nearest to so old."""
        return min(self._held, key=lambda each: abs(now_s - each[0] - ago_s), default=(0.0, default))[1]

    def is_due(self, now_s: float) -> bool:
        """Tell whether another value is to be added."""
        return not self._held or now_s - self._held[-1][0] >= self._every_s

    def add(self, now_s: float, value: T) -> None:
        """Add a value."""
        self._held.append((now_s, value))
        while len(self._held) > 2 and now_s - self._held[1][0] >= self._keep_s:
            self._held.popleft()


class _Track:
    """What is remembered of one model: marks of the window, and points of its plots."""

    def __init__(self) -> None:
        self.marks: _Past[CounterSnapshot] = _Past(WINDOW_S)
        self.points: _Past[bytes] = _Past(HISTORY_S)
        self.sparks: _Past[bytes] = _Past(HISTORY_S, _SPARK_S)
        self.burn: _Past[Sequence[Objective]] = _Past(BURN_S, _BURN_EVERY_S)

    def add(self, new: CounterSnapshot, figures: ModelFigures, now_s: float, wall_s: float) -> None:
        """Keep what later snapshots and new viewers need."""
        self.marks.add(now_s, new)
        if self.burn.is_due(now_s):
            self.burn.add(now_s, new.objectives)
        self.points.add(now_s, _encode(point(figures, wall_s)))
        if self.sparks.is_due(now_s):
            self.sparks.add(now_s, _encode(_spark(figures, wall_s)))


def _spark(figures: ModelFigures, wall_s: float) -> list[float | None]:
    requests = figures.requests
    lost = (requests.shed.rate + requests.failed.rate) / requests.all.rate if requests.all.rate else None
    values = (requests.all.rate, figures.stages[-1].p95_s, lost)
    return [round(wall_s, 1), *(None if each is None else float(f"{each:.4g}") for each in values)]


class _Process:
    """The process as a whole, from what /metrics shows of it."""

    def __init__(self, loop_lag: Histogram) -> None:
        self._loop_lag = loop_lag
        self._collector = ProcessCollector(registry=None)
        self._past: _Past[tuple[float, float | None, int, int]] = _Past(WINDOW_S)

    def figures(self, now_s: float, state: str, viewers: int) -> ProcessFigures:
        found: dict[str, Any] = {each.name: each.value for one in self._collector.collect() for each in one.samples}
        cpu_s = found.get("process_cpu_seconds_total")
        now = (now_s, cpu_s, self._loop_lag.count, self._loop_lag.total)
        old = self._past.ago(now_s, WINDOW_S, now)
        self._past.add(now_s, now)
        passed_s, woke = now_s - old[0], now[2] - old[2]
        return ProcessFigures(
            state=state,
            started_s=found.get("process_start_time_seconds"),
            memory_bytes=found.get("process_resident_memory_bytes"),
            cpu_cores=(cpu_s - old[1]) / passed_s if cpu_s is not None and old[1] is not None and passed_s else None,
            cpu_seconds=cpu_s,
            open_files=found.get("process_open_fds"),
            max_files=found.get("process_max_fds"),
            loop_lag_s=(now[3] - old[3]) / woke / 1e9 if woke else None,
            viewers=viewers,
        )


# -- What traces, drift and alerts know, as the page shows it ----------------------------------------------------------


KEPT_S = 600.0
"""That kept requests are shown for."""

_MOST_KEPT = 10
"""Slow ones, and as many failed ones, of each model."""
_MOST_COLUMNS = 24
_MOST_FACTS = 8
_OWN = "tailcut."
_LEFT_OUT = frozenset({"model", "variant", "version", "route", "code", "kept", "stage", "request_id", "batch.id"})
"""Attributes that the page shows elsewhere."""


def kept_requests(held: Iterable[Kept], now_s: float) -> dict[str, list[KeptRequest]]:
    """Return the slowest and the latest failed of the kept requests of the last minutes, by model.

    Args:
        now_s: seconds since the epoch.
    """
    by_model: dict[tuple[str, bool], list[Kept]] = {}
    since_ns = (now_s - KEPT_S) * 1e9
    for each in held:
        if each.start_ns + each.wall_ns >= since_ns and each.code:
            by_model.setdefault((each.model, each.code == "ok"), []).append(each)
    found: dict[str, list[KeptRequest]] = {}
    for (model, is_answered), kept in by_model.items():
        kept.sort(key=lambda each: -each.total_ns if is_answered else -(each.start_ns + each.wall_ns))
        found.setdefault(model, []).extend(map(_kept, kept[:_MOST_KEPT]))
    return found


def _kept(kept: Kept) -> KeptRequest:
    return KeptRequest(
        trace=f"{kept.trace.trace_id:032x}",
        model=kept.model,
        route=kept.route,
        code=kept.code,
        variant=kept.variant,
        why=kept.reason,
        total_s=kept.total_ns / 1e9,
        ended_s=(kept.start_ns + kept.total_ns + kept.wall_ns) / 1e9,
    )


def request_detail(found: FoundTrace) -> RequestDetail:
    """Return a kept request with its steps in the order of their begin, each below what it is a part of."""
    total_s = found.duration_ms / 1e3
    request = KeptRequest(
        trace=found.trace_id,
        model=found.model,
        route=found.route,
        code=found.code,
        variant=found.variant,
        why=found.reason,
        total_s=total_s,
        ended_s=found.started_s + total_s,
    )
    spans = [_span(each, depth, found.spans[0].start_ns) for each, depth in _in_order(found.spans)]
    batch = [
        KeptRequest(
            trace=each.trace_id,
            model=found.model,
            route="",
            code="",
            variant=found.variant,
            why=each.reason,
            total_s=each.duration_ms / 1e3,
            ended_s=0.0,
        )
        for each in found.batch
    ]
    return RequestDetail(request=request, spans=spans, batch=batch)


def _in_order(spans: Sequence[TraceSpan]) -> list[tuple[TraceSpan, int]]:
    """Return spans with their depths, parts behind their whole."""
    known = {each.span_id for each in spans}
    parts: dict[str, list[TraceSpan]] = {}
    for each in spans:
        parts.setdefault(each.parent_id if each.parent_id in known else "", []).append(each)
    found: list[tuple[TraceSpan, int]] = []
    waiting = [(each, 0) for each in reversed(parts.pop("", []))]
    while waiting:
        span, depth = waiting.pop()
        found.append((span, depth))
        below = sorted(parts.pop(span.span_id, []), key=lambda each: each.start_ns)
        waiting += [(each, depth + 1) for each in reversed(below)]
    return found


def _span(span: TraceSpan, depth: int, begin_ns: int) -> LiveSpan:
    own = {
        name.rpartition(".")[2].replace("_", " "): str(value)
        for name, value in span.attributes.items()
        if name.startswith(_OWN) and name.removeprefix(_OWN) not in _LEFT_OUT
    }
    return LiveSpan(
        name=span.name,
        depth=depth,
        start_s=max(span.start_ns - begin_ns, 0) / 1e9,
        duration_s=span.duration_ns / 1e9,
        failed=bool(span.error),
        facts=dict(list(own.items())[:_MOST_FACTS]),
    )


def drift_figures(state: State | None) -> DriftFigures | None:
    """Return the state of a detector, the columns that moved most first; None of a model that is not watched."""
    if state is None:
        return None
    columns = sorted(state.columns, key=lambda each: (not each.drifting, -each.psi))
    return DriftFigures(rows=state.rows, alarms=state.alarms, columns=columns[:_MOST_COLUMNS])


def alert_figures(active: Iterable[Alarm]) -> list[AlertFigures]:
    """Return alarms, those that page first."""
    found = [
        AlertFigures(
            name=each.finding.alert,
            severity=each.finding.severity,
            model=each.finding.model,
            subject=each.finding.subject,
            text=each.finding.text,
            hint=RULE[each.finding.alert].hint,
            since_s=each.since_s,
            stage=each.finding.place,
        )
        for each in active
    ]
    return sorted(found, key=lambda each: (each.severity != "page", each.since_s))
