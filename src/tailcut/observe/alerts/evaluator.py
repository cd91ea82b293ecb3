"""Evaluates the alerts of a server once a minute, in a thread of its own; logs and sends what fires."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from tailcut.errors import StoreError, TailcutError
from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.evaluation import (
    ANSWERED,
    STAGE_NS,
    WEEK_S,
    MemoryGrowth,
    MinuteCounts,
    MovedColumns,
    find_burn_rates,
    find_growth,
    find_moved,
    find_shares,
    read_hour,
)
from tailcut.observe.alerts.probes import Figures
from tailcut.observe.alerts.rules import (
    ALERTS,
    BURN_WINDOWS,
    CPU_PERIODS,
    CPU_THROTTLED,
    EVALUATIONS,
    GPU_BYTES,
    GPU_CELSIUS,
    GPU_SLOWED,
    MESSAGES,
    PROCESS_BYTES,
    RULE,
    RULES,
    AlertFinding,
    Severity,
)
from tailcut.observe.alerts.webhook import Message, Webhook
from tailcut.observe.exposition import REQUESTS
from tailcut.observe.failures import NewErrors
from tailcut.observe.history import History, HistorySnapshot, Series
from tailcut.observe.latency_figures import REQUEST, SLO_GOOD, SLO_REQUESTS
from tailcut.observe.path_metrics import (
    FEATURE_LOOKUPS,
    FEATURE_SOURCE_ERRORS,
    FEATURE_SOURCE_SECONDS,
    FEATURE_STALE,
    PREDICTION_CACHE_BYTES,
)
from tailcut.observe.sample import Sample
from tailcut.system.atomic_files import Staging
from tailcut.system.worker_thread import WorkerThread

log = logging.getLogger("tailcut.server")

PENDING = 2
QUIET = 10
UNJUDGED: dict[Severity, int] = {"page": 6 * 60, "ticket": 2 * 24 * 60}
"""A page ends after its longest window, 6 hours: a model without requests for so long wakes no one."""


class Alarm(msgspec.Struct, kw_only=True):
    """One condition that is or was bad.

    Attributes:
        id: the same over restarts.
        finding: the latest bad one.
        since_s: Unix seconds of its first bad evaluation.
        resolved_s: Unix seconds; 0 before it is resolved.
        bad, quiet: evaluations in a row, of those that judged it.
        unjudged: evaluations in a row that did not.
    """

    id: str
    finding: AlertFinding
    since_s: float
    state: Literal["pending", "firing", "resolved"] = "pending"
    resolved_s: float = 0.0
    bad: int = 0
    quiet: int = 0
    unjudged: int = 0


class Alarms:
    """The alarms of a server: a state machine. For one thread.

        absent -> pending    a finding is bad
        pending -> firing    it was bad in ``PENDING`` evaluations in a row
        pending -> absent    it was not bad, or not judged
        firing -> resolved   it was good, or its model is gone, in ``QUIET`` evaluations that judged it, in a row
        firing -> resolved   it was not judged in ``UNJUDGED`` evaluations in a row: a page sooner than a ticket

    Evaluations are counted, not seconds: a clock that is set, and a server that was down, end no alarm. A rule that has
    too little to judge by, as after a restart, finds nothing: a pending alarm is over then, one that fires goes on for
    long.

    Args:
        server: identifies this server in alarm ids, so that two servers never share one.

    Attributes:
        alarms: those that are pending or fire, by the key of their finding.
    """

    def __init__(self, server: str = "") -> None:
        self._server = server
        self.alarms: dict[str, Alarm] = {}

    @property
    def active(self) -> list[Alarm]:
        """The alarms that fire, the oldest first, as copies."""
        firing = [msgspec.structs.replace(each) for each in self.alarms.values() if each.state == "firing"]
        return sorted(firing, key=lambda alarm: alarm.since_s)

    def update(
        self,
        findings: Iterable[AlertFinding],
        now_s: float,
        is_gone: Callable[[AlertFinding], bool] = lambda finding: False,
    ) -> list[Alarm]:
        """Take the findings of one evaluation; return the alarms that begin to fire or are resolved by it.

        Args:
            is_gone: whether what an alarm is about is no longer there to be judged.
        """
        found = {finding.key: finding for finding in findings}
        for key, finding in found.items():
            if finding.level == "bad" and key not in self.alarms:
                digest = sha256(f"{self._server}\0{key}".encode()).hexdigest()[:8]
                name = f"{finding.alert}-{int(now_s):x}-{digest}"
                self.alarms[key] = Alarm(id=name, finding=finding, since_s=now_s)
        changed = []
        for key, alarm in list(self.alarms.items()):
            before = alarm.state
            is_over = _step(alarm, found.get(key), key not in found and is_gone(alarm.finding))
            if is_over:
                del self.alarms[key]
            if is_over and before == "firing":
                alarm.state, alarm.resolved_s = "resolved", now_s
            if alarm.state != before:
                changed.append(alarm)
        return changed


def _step(alarm: Alarm, finding: AlertFinding | None, is_gone: bool) -> bool:
    """Count an evaluation; return whether the alarm is over."""
    if finding is not None and finding.level == "bad":
        alarm.finding = finding
        alarm.bad, alarm.quiet, alarm.unjudged = alarm.bad + 1, 0, 0
        if alarm.bad >= PENDING:
            alarm.state = "firing"
        return False
    alarm.bad = 0
    if finding is None and not is_gone:
        alarm.unjudged += 1
    else:
        is_quiet = finding is None or finding.level == "good"
        alarm.quiet, alarm.unjudged = alarm.quiet + 1 if is_quiet else 0, 0
    is_over = alarm.quiet >= QUIET or alarm.unjudged >= UNJUDGED[alarm.finding.severity]
    return is_over or alarm.state == "pending"


_SHORT_MINUTES = 125
"""Minutes for which counters are kept that burn rates are not about."""
_LONG = {each.series[0]: max(window.long for window in BURN_WINDOWS) for each in (SLO_GOOD, SLO_REQUESTS)}
_WANTED = frozenset(_LONG) | {
    each.series[0] for each in (REQUESTS, FEATURE_LOOKUPS, FEATURE_STALE, FEATURE_SOURCE_ERRORS, FEATURE_SOURCE_SECONDS)
}
_STEP_S = 300
"""In which the history is read: counts from before the start, and p95 week over week."""
_WRITTEN_S = 90
"""After the end of a minute, by when its rows are in the history."""
_MOST_SNAPSHOTS = 1_000
_MOST_STATE_BYTES = 1 << 20


class AlertEvaluator:
    """The alerts of one server: receives snapshots on the event loop, and does all else in its thread.

    Args:
        probe: returns figures of the process; called in the thread.
        models: names of the models that are served, or about to be; called on the event loop.
        moved: what the drift detectors say; called in the thread.
        history: returns that of the time before the start, and of last week; None while this server does not write it.
        state_file: where alarms that fire are kept over restarts; None: nowhere.
        webhook: None: alarms are logged and shown only.
        labels: of the server, in messages of the webhook.
        memory_bytes: that the process may have; 0: no limit is known.

    Attributes:
        active: alarms that fire, the oldest first, as of the last evaluation.
        evaluations, failures: so far; these, as ``active``, are for any thread to read.
    """

    def __init__(
        self,
        settings: Settings,
        probe: Callable[[], Figures],
        models: Callable[[], Collection[str]],
        *,
        moved: Callable[[], Sequence[MovedColumns]] = tuple,
        history: Callable[[], History | None] = lambda: None,
        state_file: Path | None = None,
        webhook: Webhook | None = None,
        labels: Mapping[str, str] | None = None,
        memory_bytes: int = 0,
        wall_s: Callable[[], float] = time.time,
    ) -> None:
        self._settings = settings
        self._probe, self._names, self._moved = probe, models, moved
        self._history = history
        self._state_file, self._webhook = state_file, webhook
        self._labels = labels or {}
        self._wall_s, self._start_s = wall_s, wall_s()
        self._has_past = False
        self._counts = MinuteCounts(_LONG, _SHORT_MINUTES)
        self._models: dict[str, None] = {}
        self._cache_bytes: dict[Series, float] = {}
        self._part = -1
        self._minutes = 0
        self._memory = MemoryGrowth(memory_bytes or float("inf"))
        self._growth: tuple[int, Sequence[AlertFinding]] = (0, ())
        self._figures = Figures(0, 0, 0)
        self._alarms = Alarms("\0".join(self._labels.values()))
        self._kept = b""
        self._has_warned = False
        self.active: tuple[Alarm, ...] = ()
        self.evaluations = self.failures = 0
        self._new_errors = NewErrors()
        self._served: Collection[str] = ()
        self._snapshots: deque[HistorySnapshot] = deque(maxlen=_MOST_SNAPSHOTS)
        self._worker: WorkerThread[None] = WorkerThread(
            "tailcut-alerts", self._work, "the alerts were not evaluated", most=1, begin=self._begin
        )

    # -- On the event loop -------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to evaluate; what was kept is read in the thread."""
        self._worker.start()

    def receive(self, snapshot: HistorySnapshot) -> None:
        """Take what a model, or the process, has counted in a minute; returns at once."""
        self._snapshots.append(snapshot)

    def end_minute(self) -> None:
        """Have a minute evaluated, all of whose snapshots have been received; returns at once."""
        self._served = tuple(self._names())
        self._worker.put(None)

    def samples(self) -> Iterator[Sample]:
        """Yield what /metrics shows."""
        firing = {(each.finding.alert, each.finding.model, each.finding.severity) for each in self.active}
        for model in (*self._names(), ""):
            for rule in RULES:
                for severity in rule.severities if rule.in_server and rule.of_process != bool(model) else ():
                    yield ALERTS(float((rule.alert, model, severity) in firing), rule.alert, model, severity)
        figures = self._figures
        if figures.memory_bytes:  # else there is no /proc, or no sample yet
            yield PROCESS_BYTES(figures.memory_bytes)
        yield CPU_PERIODS(figures.periods)
        yield CPU_THROTTLED(figures.throttled)
        yield GPU_BYTES(figures.gpu.used_bytes)
        yield GPU_CELSIUS(figures.gpu.celsius)
        yield GPU_SLOWED(figures.gpu.slowed)
        for outcome, count in (("ok", self.evaluations), ("failed", self.failures)):
            yield EVALUATIONS(count, outcome)
        if self._webhook is not None:
            for outcome, count in self._webhook.figures.items():
                yield MESSAGES(count, outcome)

    def close(self, timeout_s: float) -> None:
        """End the threads."""
        self._worker.close(timeout_s, flush=False)
        if self._webhook is not None:
            self._webhook.close(timeout_s)

    # -- In the thread -----------------------------------------------------------------------------------------------

    def restore(self) -> None:
        """Go on with the alarms that fired when the server ended."""
        if self._state_file is None or not self._state_file.exists():
            return
        try:
            with self._state_file.open("rb") as file:
                kept = msgspec.json.decode(file.read(_MOST_STATE_BYTES), type=list[Alarm])
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("the state of the alerts in %s cannot be read (%s); it begins anew", self._state_file, error)
            return
        self._alarms.alarms = {alarm.finding.key: alarm for alarm in kept}
        self.active = tuple(self._alarms.active)

    def evaluate(self) -> list[Alarm]:
        """Take the snapshots that were received and evaluate; return the alarms that fire from now on or are over."""
        while self._snapshots:
            self._take(self._snapshots.popleft())
        now_s = self._wall_s()
        self._read_past(now_s)
        self._guarded(self._sample)
        changed = self._alarms.update(self._findings(now_s), now_s, self._is_gone)
        for alarm in changed:
            self._tell(alarm, now_s)
        self.active = tuple(self._alarms.active)
        self._keep()
        self.evaluations += 1
        return changed

    def _begin(self) -> None:
        self._guarded(self.restore)
        self._guarded(self._sample)

    def _work(self, minutes: Sequence[None]) -> None:
        if minutes:
            self._guarded(self.evaluate)

    def _guarded(self, work: Callable[..., object], *given: object) -> None:
        """Run a piece of work; what it raises is counted and logged once, and ends nothing."""
        try:
            work(*given)
        except Exception as error:
            self.failures += 1
            if self._new_errors.has(error):
                log.error("the alerts could not be evaluated; it is tried every minute", exc_info=error)

    def _read_past(self, now_s: float) -> None:
        """Read the counts of the time before the start, once the history is this server's."""
        history = self._history()
        if history is None or self._has_past:
            return
        self._has_past = True
        with suppress(StoreError):  # it cannot be read: it begins now
            for name in _WANTED:
                since_s = now_s - 60 * _LONG.get(name, _SHORT_MINUTES) // _STEP_S * _STEP_S
                for row in history.counts(since_s, self._start_s, name=name, bucket_s=_STEP_S):
                    self._models.setdefault(row.model)
                    key = Series.of("counter", row.model, row.name, row.labels)
                    self._counts.add(key, row.value, max(int(now_s - row.start_s) // 60 - 1, 0))

    def _sample(self) -> None:
        """Read the figures of the process."""
        self._figures = self._probe()
        # Caches are bounded: their growth is no leak.
        self._memory.add(max(self._figures.memory_bytes - sum(self._cache_bytes.values()), 0))

    def _take(self, snapshot: HistorySnapshot) -> None:
        if self._part != snapshot.part:
            self._part = snapshot.part
            self._minutes += 1
            self._counts.begin_minute()
            self._cache_bytes = {}  # a model that is gone has no cache any more
        for series, count, total_ns, _ in snapshot.latencies:
            self._models.setdefault(series.model)
            if series.name == REQUEST:
                self._counts.add(Series("counter", series.model, ANSWERED), count)
            else:
                self._counts.add(Series("counter", series.model, STAGE_NS, (("stage", series.name),)), total_ns)
        for series, value in snapshot.numbers:
            if series.name in _WANTED:
                self._models.setdefault(series.model)
                self._counts.add(series, value)
            elif series.name == PREDICTION_CACHE_BYTES.name:
                self._cache_bytes[series] = value

    def _findings(self, now_s: float) -> list[AlertFinding]:
        settings, counts, models = self._settings, self._counts, tuple(self._models)
        found: list[AlertFinding] = []
        finders: Sequence[Callable[[], Iterable[AlertFinding]]] = (
            lambda: find_burn_rates(settings, counts, models),
            lambda: find_shares(settings, counts, models, self._minutes),
            lambda: self._find_growth(now_s),
            lambda: find_moved(self._moved()),
            lambda: filter(None, [self._memory.find(settings.leak_growth)]),
        )
        for find in finders:
            self._guarded(lambda each: found.extend(each()), find)
        return [finding for finding in found if finding.alert not in settings.off]

    def _find_growth(self, now_s: float) -> Iterable[AlertFinding]:
        """Compare p95 every few minutes; nothing is found while the history cannot be read, as its metrics say."""
        history, settings = self._history(), self._settings
        until_s = int(now_s - _WRITTEN_S) // _STEP_S * _STEP_S
        if history is None or "p95_growth" in settings.off:
            return ()
        if until_s != self._growth[0]:
            self._growth = (0, ())
            with suppress(StoreError):
                now, then = read_hour(history, until_s), read_hour(history, until_s - WEEK_S)
                self._growth = until_s, find_growth(now, then, settings.p95_growth, settings.p95_requests)
        return self._growth[1]

    def _is_gone(self, finding: AlertFinding) -> bool:
        """Return whether a finding cannot be judged any more: the alert is off, or its model is not served."""
        return finding.alert in self._settings.off or (bool(finding.model) and finding.model not in self._served)

    def _tell(self, alarm: Alarm, now_s: float) -> None:
        finding, hint = alarm.finding, RULE[alarm.finding.alert].hint
        if alarm.state == "resolved":
            minutes = (alarm.resolved_s - alarm.since_s) / 60
            level, text = logging.INFO, f"alarm {alarm.id} is resolved after {minutes:.0f} min: {finding.alert}"
        else:
            level = logging.ERROR if finding.severity == "page" else logging.WARNING
            place = f"; likely stage: {finding.place}" if finding.place else ""
            text = f"alarm {alarm.id} ({finding.severity}): {finding.alert}: {finding.text}{place}; hint: {hint}"
        log.log(level, "%s", text, extra={"model": finding.model} if finding.model else {})
        if self._webhook is not None:
            data = {
                "id": alarm.id,
                "alert": finding.alert,
                "model": finding.model,
                "subject": finding.subject,
                "severity": finding.severity,
                "since": _time(alarm.since_s),
                "resolved": _time(alarm.resolved_s) if alarm.resolved_s else None,
                "likely_stage": finding.place,
                "value": finding.value,
                "limit": finding.limit,
                "text": finding.text,
                "hint": hint,
                **self._labels,
            }
            body = {"type": f"alarm.{alarm.state}", "timestamp": _time(now_s), "data": data}
            self._webhook.submit(Message(f"msg_{alarm.id}_{alarm.state}", msgspec.json.encode(body)))

    def _keep(self) -> None:
        """Write the alarms that fire; the first failure is logged."""
        content = msgspec.json.encode(self.active)
        if self._state_file is None or content == self._kept:
            return
        try:
            with Staging(self._state_file.parent, hint="free space, or give write permission") as staging:
                staging.write(self._state_file, content)
                staging.commit()
        except (TailcutError, OSError) as error:
            if not self._has_warned:
                log.warning(
                    "the state of the alerts is not kept: %s; after a restart alarms are sent again; the file is "
                    "beside the history: set observe.history.path to a folder that can be written",
                    error,
                )
            self._has_warned = True
            return
        self._kept = content


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
