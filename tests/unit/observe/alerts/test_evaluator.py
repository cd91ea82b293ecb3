"""The evaluator: snapshots in, log lines, metrics and messages out; over restarts, and beside what fails."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.alerts_kit import P95, QUIET, histogram, slo_snapshot

from tailcut.errors import StoreError
from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.evaluation import WEEK_S, MovedColumns
from tailcut.observe.alerts.evaluator import QUIET as QUIET_EVALUATIONS
from tailcut.observe.alerts.evaluator import AlertEvaluator
from tailcut.observe.alerts.probes import GpuFigures
from tailcut.observe.alerts.rules import ALERTS, RULES
from tailcut.observe.alerts.webhook import Message, Webhook, WebhookTarget
from tailcut.observe.history import CountRow, HistorySnapshot, LatencyRow, Series
from tailcut.observe.latency_figures import SLO_GOOD, SLO_REQUESTS
from tailcut.observe.path_metrics import FEATURE_SOURCE_SECONDS, PREDICTION_CACHE_BYTES

NOW_S = 29_000_000 * 60.0


class Clock:
    """Wall and monotonic clock; the first may be set by ``set_s``."""

    now_s = NOW_S
    set_s = 0.0

    def __call__(self) -> float:
        return self.now_s + self.set_s

    def monotonic_s(self) -> float:
        return self.now_s


class Past:
    """A history of given rows."""

    path = Path("history.sqlite")

    def __init__(self, latency: Sequence[LatencyRow] = (), counts: Sequence[CountRow] = ()) -> None:
        self.rows, self.count_rows = latency, counts
        self.asked: list[tuple[int, int]] = []

    def latency(self, since_s: float, until_s: float, *, bucket_s: int = 60, **_: Any) -> list[LatencyRow]:
        self.asked.append((int(since_s), int(until_s)))
        return [row for row in self.rows if since_s <= row.start_s < until_s]

    def counts(self, since_s: float, until_s: float, *, name: str, **_: Any) -> list[CountRow]:
        return [row for row in self.count_rows if since_s <= row.start_s < until_s and row.name == name]


def made(clock: Clock, tmp_path: Path | None = None, hook: Webhook | None = None, **sources: Any) -> AlertEvaluator:
    """Alerts that the test evaluates."""
    past = sources.pop("history", None)
    alerts = AlertEvaluator(
        Settings(),
        sources.pop("probe", lambda: QUIET),
        sources.pop("models", lambda: ["m"]),
        **sources,
        history=past if callable(past) else lambda: past,
        state_file=None if tmp_path is None else tmp_path / "alerts.json",
        webhook=hook,
        labels={"server": "risk"},
        wall_s=clock,
    )
    alerts.restore()
    return alerts


def minute(alerts: AlertEvaluator, clock: Clock, requests: float, good: float) -> list[str]:
    """Let a minute pass; return the states of the alarms that changed."""
    clock.now_s += 60
    alerts.receive(slo_snapshot(int(clock() // 60) - 1, requests, good))
    alerts.end_minute()
    return [alarm.state for alarm in alerts.evaluate()]


def firing(alerts: AlertEvaluator) -> set[tuple[str, str, str]]:
    """Alert, model and severity of the samples at 1."""
    return {tuple(each.labels.values()) for each in alerts.samples() if each.name == ALERTS.name and each.value}


def active(alerts: AlertEvaluator) -> set[tuple[str, str]]:
    """Alert and model of what fires."""
    return {(alarm.finding.alert, alarm.finding.model) for alarm in alerts.active}


class Hook(Webhook):
    """A webhook that keeps its messages."""

    def __init__(self) -> None:
        super().__init__(WebhookTarget("https://hooks.example/", b"k" * 32))
        self.sent: list[Message] = []

    def submit(self, message: Message) -> None:
        self.sent.append(message)


def test_a_burnt_budget_is_logged_shown_and_sent_once(caplog: pytest.LogCaptureFixture) -> None:
    hook, clock = Hook(), Clock()
    alerts = made(clock, None, hook)
    caplog.set_level(logging.INFO)
    told = [minute(alerts, clock, 100, 0) for _ in range(5)]
    assert told == [[], ["firing"], [], [], []]
    assert firing(alerts) == {("burn_rate", "m", "page")}
    (message,) = hook.sent
    body = json.loads(message.body)
    assert (body["type"], body["data"]["severity"], body["data"]["server"]) == ("alarm.firing", "page", "risk")
    assert (body["data"]["alert"], body["data"]["model"], body["data"]["limit"]) == ("burn_rate", "m", 14.4)
    (record,) = [each for each in caplog.records if "burn" in each.message]
    assert (record.levelname, record.model) == ("ERROR", "m")
    assert "(page): burn_rate: the error budget of p95 of 50 ms burns 20 times" in record.message
    assert "; hint: look at" in record.message
    told = [kinds for _ in range(3 * 24 * 60 // 60) for kinds in [minute(alerts, clock, 60_000, 60_000)]]
    assert told.count(["resolved"]) == 1
    assert firing(alerts) == set()
    resolved = json.loads(hook.sent[-1].body)
    assert (resolved["type"], resolved["data"]["id"]) == ("alarm.resolved", body["data"]["id"])
    assert resolved["data"]["resolved"] is not None


@pytest.mark.parametrize("hours", [-3, 0.02, 0.5, 3, 24])
def test_a_clock_that_is_set_delays_no_alarm(hours: float) -> None:
    clock = Clock()
    alerts = made(clock)
    assert [kinds for _ in range(30) for kinds in minute(alerts, clock, 1000, 1000)] == []
    clock.set_s = -3600 * hours
    told = [minute(alerts, clock, 1000, 0) for _ in range(15)]
    assert [kinds for each in told[:3] for kinds in each] == ["firing"]
    assert ("burn_rate", "m", "page") in firing(alerts)
    assert [kinds for _ in range(90) for kinds in minute(alerts, clock, 60_000, 60_000)][-1:] == ["resolved"]


def test_figures_of_the_process_and_its_gpus_are_samples() -> None:
    clock = Clock()
    alerts = made(clock, probe=lambda: QUIET._replace(periods=40, throttled=4, gpu=GpuFigures(7 << 20, 91.0, 1)))
    minute(alerts, clock, 0, 0)
    found = {each.name: each.value for each in alerts.samples() if not each.labels}
    assert found == {
        "tailcut_process_bytes": 10**8,
        "tailcut_cpu_periods": 40,
        "tailcut_cpu_throttled_periods": 4,
        "tailcut_gpu_bytes": 7 << 20,
        "tailcut_gpu_celsius": 91.0,
        "tailcut_gpu_slowed": 1,
    }


def test_every_alert_of_the_server_has_its_series_before_it_fires() -> None:
    alerts = made(Clock())
    found = [tuple(each.labels.values()) for each in alerts.samples() if each.name == ALERTS.name]
    assert found == [
        (rule.alert, model, severity)
        for model in ("m", "")
        for rule in RULES
        if rule.in_server and rule.of_process != bool(model)
        for severity in rule.severities
    ]


def test_a_restart_sends_no_alarm_again_and_goes_on_with_the_counts(tmp_path: Path) -> None:
    clock = Clock()
    alerts = made(clock, tmp_path)
    for _ in range(3):
        minute(alerts, clock, 100, 0)
    alerts.close(1.0)
    rows = [
        CountRow(int(NOW_S) + 60 * n, "m", metric.series[0], P95, value)
        for n in range(3)
        for metric, value in ((SLO_REQUESTS, 100.0), (SLO_GOOD, 0.0))
    ]
    hook = Hook()
    again = made(clock, tmp_path, hook, history=Past(counts=rows))
    assert firing(again) == {("burn_rate", "m", "page")}
    assert [minute(again, clock, 100, 0) for _ in range(3)] == [[], [], []]
    assert hook.sent == []
    assert "600 bad requests in 1 h" in again.active[0].finding.text


def test_the_past_is_read_once_the_history_is_this_servers_and_no_row_since_the_start() -> None:
    clock = Clock()
    own: list[Any] = []
    alerts = made(clock, history=lambda: own[0] if own else None)
    started_s = clock.now_s
    for _ in range(5):
        assert minute(alerts, clock, 0, 0) == [], "another server writes it, which has an outage"
    rows = [
        CountRow(int(started_s) + 60 * n, "m", metric.series[0], P95, value)
        for n in range(-10, 5)
        for metric, value in ((SLO_REQUESTS, 100.0), (SLO_GOOD, 0.0))
    ]
    own.append(Past(counts=rows))
    assert [minute(alerts, clock, 100, 0) for _ in range(2)] == [[], ["firing"]]
    assert "1200 bad requests in 1 h" in alerts.active[0].finding.text


def test_a_restart_without_evidence_resolves_nothing_but_what_is_gone(tmp_path: Path) -> None:
    clock = Clock()
    drifting = [MovedColumns(model, ["age"], 0.3, 0.1) for model in ("m", "unloaded")]
    alerts = made(clock, tmp_path, moved=lambda: drifting, models=lambda: ["m", "unloaded"])
    for _ in range(3):
        minute(alerts, clock, 100, 0)
    assert active(alerts) == {("burn_rate", "m"), ("drift", "m"), ("drift", "unloaded")}
    alerts.close(0.0)
    again = made(clock, tmp_path)
    told = [minute(again, clock, 0, 0) for _ in range(3 * QUIET_EVALUATIONS)]
    assert [kinds for kinds in told if kinds] == [["resolved"]]
    assert active(again) == {("burn_rate", "m"), ("drift", "m")}
    calm = [MovedColumns("m", [], 0.0, 0.1)]
    again.close(0.0)
    third = made(clock, tmp_path, moved=lambda: calm)
    assert [minute(third, clock, 0, 0) for _ in range(QUIET_EVALUATIONS)][-1] == ["resolved"]
    assert active(third) == {("burn_rate", "m")}


def test_a_damaged_state_begins_anew_and_one_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    for text in ('{"memory": {"alarms": {}}, "outbox": []}', "[{]"):  # of an older version; damaged
        caplog.clear()
        (tmp_path / "alerts.json").write_text(text)
        alerts = made(clock, tmp_path)
        assert "begins anew" in caplog.text
    (tmp_path / "alerts.json").unlink()
    (tmp_path / "alerts.json").mkdir()
    told = [minute(alerts, clock, 100, 0) for _ in range(3)]
    assert told == [[], ["firing"], []]
    assert caplog.text.count("is not kept") == 1


def slow_week(clock: Clock, factor: float, week_s: int = WEEK_S) -> Past:
    """A history of this hour and of the one a week ago, whose features took ``factor`` times less; of two variants."""
    rng = np.random.default_rng(1)
    latency, counts = [], []
    for ago_s, times in ((0, factor), (week_s, 1.0)):
        for block in range(0, 4200, 60):
            start_s = int(clock.now_s - ago_s) - 4200 + block
            stages = {"features": 10 * times * rng.lognormal(0, 0.3, 200), "infer": 5 * rng.lognormal(0, 0.3, 200)}
            for stage, ms in (stages | {"request": stages["features"] + stages["infer"]}).items():
                for variant in ("a", "b"):
                    latency.append(LatencyRow(start_s, "m", variant, stage, 200, int(ms.sum() * 1e6), histogram(ms)))
            for group, seconds in (("weather", 1.6 * times), ("routes", 0.4)):
                labels = {"group": group, "entity_type": "origin"}
                name = FEATURE_SOURCE_SECONDS.series[0]
                counts.append(CountRow(start_s, "m", name, labels, seconds))
    return Past(latency, counts)


def test_a_slow_query_makes_the_week_over_week_alert_name_the_feature_stage_and_the_group() -> None:
    clock = Clock()
    past = slow_week(clock, 1.5)
    alerts = made(clock, history=past)
    assert [minute(alerts, clock, 0, 0) for _ in range(2)] == [[], ["firing"]]
    (alarm,) = alerts.active
    assert (alarm.finding.alert, alarm.finding.place) == ("p95_growth", "features/weather")
    asked = len(past.asked)
    for _ in range(5):
        minute(alerts, clock, 0, 0)
    assert len(past.asked) - asked == 2, "both hours are read every five minutes"
    quiet = made(Clock(), history=slow_week(Clock(), 1.05))
    clock = Clock()
    assert [minute(quiet, clock, 0, 0) for _ in range(2)] == [[], []]


def test_a_week_that_could_not_be_read_is_read_again() -> None:
    class Flaky(Past):
        failing = True

        def latency(self, *times: float, **bucket: Any) -> list[LatencyRow]:
            if self.failing:
                raise StoreError("the history is locked")
            return super().latency(*times, **bucket)

    clock = Clock()
    week = slow_week(clock, 1.5)
    past = Flaky(week.rows, week.count_rows)
    alerts = made(clock, history=past)
    assert minute(alerts, clock, 0, 0) == []
    past.failing = False
    assert [minute(alerts, clock, 0, 0) for _ in range(2)] == [[], ["firing"]]


def test_a_history_and_probes_that_fail_do_not_stop_the_other_alerts(caplog: pytest.LogCaptureFixture) -> None:
    class Unreadable(Past):
        def latency(self, *_: Any, **__: Any) -> list[LatencyRow]:
            raise StoreError("the history cannot be read")

        counts = latency  # type: ignore[assignment]

    def broken() -> Any:
        raise OSError("no /proc")

    clock = Clock()
    alerts = made(clock, history=Unreadable(), probe=broken)
    clock.now_s += 60
    for _ in range(2):
        alerts.receive(slo_snapshot(int(clock.now_s // 60) - 1, 100, 0))
        alerts._guarded(alerts.evaluate)
        clock.now_s += 60
    assert firing(alerts)
    assert (alerts.evaluations, alerts.failures) == (2, 2)
    assert caplog.text.count("could not be evaluated") == 1


def test_a_rule_that_raises_stops_no_other(caplog: pytest.LogCaptureFixture) -> None:
    def broken() -> Any:
        raise ValueError("no such column")

    clock = Clock()
    alerts = made(clock, moved=broken)
    assert [minute(alerts, clock, 100, 0) for _ in range(2)] == [[], ["firing"]]
    assert (alerts.evaluations, alerts.failures) == (2, 2)
    assert caplog.text.count("could not be evaluated") == 1


def test_memory_is_watched_on_after_a_model_with_a_large_cache_is_gone() -> None:
    clock = Clock()
    memory_mib = [600.0]
    alerts = made(clock, probe=lambda: QUIET._replace(memory_bytes=int(memory_mib[0] * 2**20)))
    gauge = Series("gauge", "other", PREDICTION_CACHE_BYTES.name, (("cache", "a"),))

    def minutes(count: int, cache_mib: float, mib_per_s: float) -> set[str]:
        found = set()
        for _ in range(count):
            number = int(clock.now_s // 60)
            numbers = [(gauge, cache_mib * 2**20)] if cache_mib else []
            alerts.receive(HistorySnapshot(number, number, 0, [], numbers))
            clock.now_s += 60
            memory_mib[0] += 60 * mib_per_s
            found |= {alarm.finding.alert for alarm in alerts.evaluate()}
        return found

    for minute_of_filling in range(60):
        memory_mib[0] = 600.0 + 10 * minute_of_filling
        assert minutes(1, 500 + 10 * minute_of_filling, 0.0) == set(), "a cache fills up"
    memory_mib[0] = 100.0  # unloaded
    assert minutes(90, 0, 0.05) == {"memory_leak"}


def test_a_clock_that_is_set_ends_no_alarm() -> None:
    clock = Clock()
    alerts = made(clock)
    for _ in range(3):
        minute(alerts, clock, 100, 0)
    clock.now_s -= 3600
    assert [minute(alerts, clock, 100, 0) for _ in range(3)] == [[], [], []]
    clock.now_s += 7200
    assert [minute(alerts, clock, 100, 0) for _ in range(QUIET_EVALUATIONS)] == [[]] * QUIET_EVALUATIONS
    assert len(alerts.active) == 1


def test_its_thread_evaluates_what_it_receives_and_ends() -> None:
    from tests.wait_kit import block_until

    alerts = AlertEvaluator(Settings(), lambda: QUIET, lambda: ["m"])
    alerts.start()
    for number in range(2):
        alerts.receive(slo_snapshot(29_000_000 + number, 100, 0))
        alerts.end_minute()
        block_until(lambda number=number: alerts.evaluations == number + 1)
    assert len(alerts.active) == 1
    alerts.close(5.0)
    assert "tailcut-alerts" not in {thread.name for thread in threading.enumerate()}
