"""The evaluator: snapshots in, log lines, metrics and messages out; over restarts, and beside what fails."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.alerts_kit import P95, QUIET, histogram, slo_snapshot, snapshot

from tailcut.errors import StoreError
from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts import series
from tailcut.observe.alerts.alarms import QUIET as QUIET_EVALUATIONS
from tailcut.observe.alerts.evaluator import Alerts, Sources
from tailcut.observe.alerts.evidence import Gpu, MovedColumns, SlowRequest
from tailcut.observe.alerts.findings import OF_MODELS, OF_PROCESS, SEVERITIES
from tailcut.observe.alerts.latency_growth import WEEK_S
from tailcut.observe.alerts.webhook import Attempt, Message, Target, Webhook
from tailcut.observe.history import CountRow, LatencyRow
from tailcut.observe.history.tables import Series, Snapshot

NOW_S = 29_000_000 * 60.0
MISSED = ("hit", "miss")


class Clock:
    """Wall and monotonic clock; the first may be set by ``set_s``."""

    now_s = NOW_S
    set_s = 0.0

    def __call__(self) -> float:
        return self.now_s + self.set_s

    def monotonic_s(self) -> float:
        return self.now_s


def slow() -> list[SlowRequest]:
    """Requests of which traces are kept: the slowest is of another model, the next ended long ago."""
    times = (("other", 999, 0), ("m", 950, -3600), ("m", 600, 0), ("m", 900, 0), ("m", 5, 0), ("m", 700, 0))
    return [SlowRequest(model, str(ms) * 8, NOW_S + ago_s, float(ms)) for model, ms, ago_s in times]


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


def made(clock: Clock, tmp_path: Path | None = None, hook: Webhook | None = None, **sources: Any) -> Alerts:
    """Alerts that the test evaluates."""
    alerts = Alerts(
        Settings(),
        Sources(**{"probe": lambda: QUIET, **sources}),
        state_file=None if tmp_path is None else tmp_path / "alerts.json",
        webhook=hook,
        labels={"server": "risk"},
        models=lambda: ["m"],
        wall_s=clock,
        monotonic_s=clock.monotonic_s,
    )
    alerts.restore()
    return alerts


def minute(alerts: Alerts, clock: Clock, requests: float, good: float) -> list[str]:
    """Let a minute pass; return the kinds of what was told."""
    clock.now_s += 60
    alerts.receive(slo_snapshot(int(clock() // 60) - 1, requests, good))
    alerts.end_minute()
    alerts.sample()
    return [event.kind for event in alerts.evaluate()]


def firing(alerts: Alerts) -> set[tuple[str, str, str]]:
    """Alert, model and severity of the samples at 1."""
    return {tuple(each.labels.values()) for each in alerts.samples() if each.name == series.ALERTS.name and each.value}


def active(alerts: Alerts) -> set[tuple[str, str]]:
    """Alert and model of what fires."""
    return {(each.alert, each.model) for alarm in alerts.state.active for each in alarm.findings}


def held_back(monkeypatch: pytest.MonkeyPatch, *attempts: Attempt) -> tuple[Webhook, list[Message]]:
    """A webhook whose thread is not started, and what it sent."""
    sent: list[Message] = []
    planned = list(attempts)

    def post(target: Target, message: Message, timestamp_s: int) -> Attempt:
        sent.append(message)
        return planned.pop(0) if planned else Attempt(200)

    monkeypatch.setattr(Webhook, "_run", lambda self: None)
    return Webhook(Target("https://hooks.example/", b"k" * 32), post, monotonic_s=lambda: 0.0), sent


def test_a_burnt_budget_is_logged_shown_and_sent_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook, sent = held_back(monkeypatch)
    clock = Clock()
    alerts = made(clock, None, hook, slow=slow)
    caplog.set_level(logging.INFO)
    told = [minute(alerts, clock, 100, 0) for _ in range(5)]
    assert told == [[], ["firing"], [], [], []]
    assert firing(alerts) == {("burn_rate", "m", "page")}
    (alarm,) = alerts.state.active
    assert len(alarm.slowest) == 3
    hook.step()
    (message,) = sent
    body = json.loads(message.body)
    assert (body["type"], body["data"]["severity"], body["data"]["server"]) == ("alarm.firing", "page", "risk")
    assert [each["milliseconds"] for each in body["data"]["slowest_requests"]] == [900, 700, 600]
    (record,) = [each for each in caplog.records if "burn" in each.message]
    assert (record.levelname, record.model) == ("ERROR", "m")
    told = [kinds for _ in range(3 * 24 * 60 // 60) for kinds in [minute(alerts, clock, 60_000, 60_000)]]
    assert told.count(["resolved"]) == 1
    assert firing(alerts) == set()


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


def test_a_gpu_that_tells_no_temperature_loses_no_alarm_over_a_restart(tmp_path: Path) -> None:
    clock = Clock()
    hot = QUIET._replace(gpus=(Gpu("GPU 0", float("nan"), is_slowed=True),))
    alerts = made(clock, tmp_path, probe=lambda: hot)
    for _ in range(3):
        minute(alerts, clock, 1000, 0)
    fired = active(alerts)
    assert fired > {("gpu_hot", "")}
    (heat,) = [each for alarm in alerts.state.active for each in alarm.findings if each.alert == "gpu_hot"]
    assert heat.text == "GPU 0 does not tell its temperature; its clocks are held back"
    alerts.close(5.0)
    again = made(clock, tmp_path, probe=lambda: hot)
    assert active(again) == fired


def test_every_alert_has_its_series_before_it_fires() -> None:
    alerts = made(Clock())
    found = [tuple(each.labels.values()) for each in alerts.samples() if each.name == series.ALERTS.name]
    assert {(alert, model) for alert, model, _ in found} == {
        *((alert, "m") for alert in OF_MODELS),
        *((alert, "") for alert in OF_PROCESS),
    }
    assert len(found) == sum(len(SEVERITIES[alert]) for alert in (*OF_MODELS, *OF_PROCESS))


def test_a_restart_sends_no_alarm_again_and_goes_on_with_the_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hook, sent = held_back(monkeypatch, Attempt(500))
    clock = Clock()
    alerts = made(clock, tmp_path, hook)
    for _ in range(3):
        minute(alerts, clock, 100, 0)
    hook.step()
    alerts.close(1.0)
    rows = [
        CountRow(int(NOW_S) + 60 * n, "m", name, P95, "counter", value, "")
        for n in range(3)
        for name, value in ((series.SLO_REQUESTS, 100.0), (series.SLO_GOOD, 0.0))
    ]
    again_hook, sent_again = held_back(monkeypatch)
    alerts.close(0.0)
    again = made(clock, tmp_path, again_hook, history=Past(counts=rows))
    assert firing(again) == {("burn_rate", "m", "page")}
    assert [minute(again, clock, 100, 0) for _ in range(3)] == [[], [], []]
    again_hook.step()
    assert [each.id for each in sent_again] == [each.id for each in sent], "the receiver had not got it"
    assert minute(again, clock, 0, 0) == []
    third, _ = held_back(monkeypatch)
    again.close(0.0)
    made(clock, tmp_path, third)
    assert third.step() == float("inf"), "delivered: it is not sent a third time"


def test_a_restart_without_evidence_resolves_nothing_but_what_is_gone(tmp_path: Path) -> None:
    clock = Clock()
    drifting = [MovedColumns(model, ["age"], 0.0, 0.3, 0.1) for model in ("m", "unloaded")]
    alerts = made(clock, tmp_path, moved=lambda: drifting)
    for _ in range(3):
        minute(alerts, clock, 100, 0)
    assert active(alerts) == {("burn_rate", "m"), ("drift", "m"), ("drift", "unloaded")}
    alerts.close(0.0)
    again = made(clock, tmp_path, served=lambda: {"m": ()})
    told = [minute(again, clock, 0, 0) for _ in range(3 * QUIET_EVALUATIONS)]
    assert [kinds for kinds in told if kinds] == [["resolved"]]
    assert active(again) == {("burn_rate", "m"), ("drift", "m")}
    calm = [MovedColumns("m", [], 0.0, 0.0, 0.1)]
    again.close(0.0)
    third = made(clock, tmp_path, served=lambda: {"m": ()}, moved=lambda: calm)
    assert [minute(third, clock, 0, 0) for _ in range(QUIET_EVALUATIONS)][-1] == ["resolved"]
    assert active(third) == {("burn_rate", "m")}


@pytest.mark.parametrize(("groups", "resolves"), [(("weather",), False), (None, False), (("routes",), True)], ids=str)
def test_a_group_that_is_not_served_any_more_is_resolved(groups: tuple[str, ...] | None, resolves: bool) -> None:
    clock = Clock()
    served: dict[str, Any] = {"m": ("weather",)}
    alerts = made(clock, served=lambda: served)

    def pass_minute(hits: float, misses: float) -> list[str]:
        clock.now_s += 60
        labels = {result: json.dumps({"group": "weather", "entity_type": "id", "result": result}) for result in MISSED}
        numbers = {("m", series.FEATURE_LOOKUPS, labels["hit"]): hits} if hits else {}
        numbers |= {("m", series.FEATURE_LOOKUPS, labels["miss"]): misses} if misses else {}
        alerts.receive(snapshot(int(clock.now_s // 60) - 1, numbers))
        alerts.end_minute()
        return [event.kind for event in alerts.evaluate()]

    assert ["firing"] in [pass_minute(10, 90) for _ in range(33)]
    served["m"] = groups
    told = [pass_minute(0, 0) for _ in range(40)]
    assert (["resolved"] in told) == resolves


def test_a_damaged_state_begins_anew_and_one_that_cannot_be_written_stops_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    (tmp_path / "alerts.json").write_text('{"memory": {"alarms": 3}}')
    alerts = made(clock, tmp_path)
    assert "begins anew" in caplog.text
    (tmp_path / "alerts.json").unlink()
    (tmp_path / "alerts.json").mkdir()
    told = [minute(alerts, clock, 100, 0) for _ in range(3)]
    assert told == [[], ["firing"], []]
    assert caplog.text.count("is not kept") == 1


def test_a_second_server_takes_the_alarms_over_when_the_first_one_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = Clock()
    first = made(clock, tmp_path)
    for _ in range(2):
        minute(first, clock, 100, 0)
    second = made(clock, tmp_path)
    for _ in range(2):
        assert minute(second, clock, 100, 100) == []
    assert caplog.text.count("observe.history.server") == 1
    assert active(second) == set()
    first.close(0.0)
    first.close(0.0)
    assert minute(second, clock, 100, 50) == []
    assert active(second) == {("burn_rate", "m")}, "it is the alarm of the first, and is not sent again"
    second.close(0.0)
    assert active(made(clock, tmp_path)) == {("burn_rate", "m")}


def test_a_server_that_is_closed_and_still_evaluates_leaves_the_state_alone(tmp_path: Path) -> None:
    clock = Clock()
    first = made(clock, tmp_path)
    first.close(0.0)
    minute(first, clock, 100, 0)
    second = made(clock, tmp_path)
    for _ in range(2):
        minute(second, clock, 100, 0)
    assert json.loads((tmp_path / "alerts.json").read_bytes())["memory"]["alarms"], "the second has the file"


def test_a_state_that_cannot_be_locked_is_used_all_the_same(tmp_path: Path) -> None:
    clock = Clock()
    (tmp_path / "alerts.lock").mkdir()
    for _ in range(2):
        alerts = made(clock, tmp_path)
        for _ in range(2):
            minute(alerts, clock, 100, 0)
        assert active(alerts) == {("burn_rate", "m")}
        alerts.close(0.0)


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
                    row = LatencyRow(start_s, "m", variant, stage, 200, int(ms.sum() * 1e6), histogram(ms))
                    latency.append(row._replace(start_s=start_s // 300 * 300))
            for group, seconds in (("weather", 1.6 * times), ("routes", 0.4)):
                labels = {"group": group, "entity_type": "origin"}
                row_s = start_s // 300 * 300
                counts.append(CountRow(row_s, "m", series.FEATURE_SOURCE_SECONDS, labels, "counter", seconds, ""))
    return Past(latency, counts)


def test_a_slow_query_makes_the_week_over_week_alert_name_the_feature_stage_and_the_group() -> None:
    clock = Clock()
    past = slow_week(clock, 1.5)
    alerts = made(clock, history=past)
    assert [minute(alerts, clock, 0, 0) for _ in range(2)] == [[], ["firing"]]
    (alarm,) = alerts.state.active
    assert (alarm.headline.alert, alarm.place) == ("p95_growth", "features/weather")
    asked = len(past.asked)
    minute(alerts, clock, 0, 0)
    assert len(past.asked) - asked <= 2, "blocks that were read are not read again"
    quiet = made(Clock(), history=slow_week(Clock(), 1.05))
    clock = Clock()
    assert [minute(quiet, clock, 0, 0) for _ in range(2)] == [[], []]


def test_blocks_of_a_week_that_could_not_be_read_are_read_again() -> None:
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
    alerts._guarded(alerts.sample)
    assert alerts.state.failures == 1
    clock.now_s += 60
    for _ in range(2):
        alerts.receive(slo_snapshot(int(clock.now_s // 60) - 1, 100, 0))
        alerts._guarded(alerts.evaluate)
        clock.now_s += 60
    assert firing(alerts)
    assert caplog.text.count("could not be evaluated") == 1


def test_memory_is_watched_on_after_a_model_with_a_large_cache_is_gone() -> None:
    clock = Clock()
    memory_mib = [600.0]
    alerts = made(clock, probe=lambda: QUIET._replace(memory_bytes=int(memory_mib[0] * 2**20)))
    gauge = Series("gauge", "other", series.CACHE_BYTES, '{"cache":"a"}')

    def minutes(count: int, cache_mib: float, mib_per_s: float) -> set[str]:
        found = set()
        for _ in range(count):
            number = int(clock.now_s // 60)
            numbers = [(gauge, cache_mib * 2**20)] if cache_mib else []
            alerts.receive(Snapshot(number, number, 0, [], numbers))
            for _ in range(6):
                clock.now_s += 10
                memory_mib[0] += 10 * mib_per_s
                alerts.sample()
            found |= {event.alarm.headline.alert for event in alerts.evaluate()}
        return found

    assert minutes(5, 500, 0.0) == set()
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
    assert len(alerts.state.active) == 1


def test_its_thread_evaluates_what_it_receives_and_ends() -> None:
    from tests.wait_kit import block_until

    alerts = Alerts(Settings(), Sources(lambda: QUIET), models=lambda: ["m"])
    alerts.start()
    for number in range(2):
        alerts.receive(slo_snapshot(29_000_000 + number, 100, 0))
        alerts.end_minute()
        block_until(lambda number=number: alerts.state.evaluations == number + 1)
    assert len(alerts.state.active) == 1
    alerts.close(5.0)
    assert alerts._thread is not None
    assert not alerts._thread.is_alive()
