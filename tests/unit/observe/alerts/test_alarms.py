"""The state machine of alarms: pending, firing, resolved; one alarm per cause; over restarts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.observe.alerts.alarms import PENDING, QUIET, Alarm, Alarms, Memory
from tailcut.observe.alerts.findings import Finding, Severity
from tailcut.observe.alerts.messages import log_line


def finding(alert: str = "errors", level: str = "bad", **changes: Any) -> Finding:
    """A finding of model "m"."""
    made = Finding(alert, "m", "", "page", level, 2.0, 1.0, "%", "", "2 % of 100 requests failed", "look")
    return made._replace(**changes)


def step(alarms: Alarms, *findings: Finding, minute: int = 0) -> list[tuple[str, str]]:
    """Evaluate once; return the kinds of the events and the alerts in front."""
    return [(each.kind, each.alarm.headline.alert) for each in alarms.update(findings, 60.0 * minute)]


def test_it_fires_at_the_second_bad_evaluation_and_resolves_after_ten_good_ones() -> None:
    alarms = Alarms()
    assert step(alarms, finding()) == []
    assert len(alarms.pending) == 1
    assert step(alarms, finding()) == [("firing", "errors")]
    assert step(alarms, finding()) == []
    for _ in range(QUIET - 1):
        assert step(alarms, finding(level="good")) == []
    assert step(alarms, finding()) == [], "once more: it is the same alarm, and is not sent again"
    for _ in range(QUIET - 1):
        assert step(alarms, finding(level="good")) == []
    assert step(alarms, finding(level="good")) == [("resolved", "errors")]
    assert (alarms.active, len(alarms.memory.resolved)) == ([], 1)


def test_between_the_limits_nothing_begins_and_nothing_ends() -> None:
    alarms = Alarms()
    assert step(alarms, finding()) == step(alarms, finding(level="between")) == step(alarms, finding()) == []
    assert step(alarms, finding()) == [("firing", "errors")]
    for _ in range(3 * QUIET):
        assert step(alarms, finding(level="between")) == []
    assert len(alarms.active) == 1


@pytest.mark.parametrize(("severity", "hours"), [("page", 6), ("ticket", 48)])
def test_what_is_not_judged_changes_nothing_for_hours(severity: Severity, hours: int) -> None:
    alarms = Alarms()
    step(alarms, finding(severity=severity))
    assert step(alarms, finding(severity=severity)) == [("firing", "errors")]
    for _ in range(QUIET - 1):
        assert step(alarms, finding(level="good", severity=severity)) == []
    for _ in range(hours * 60 - 1):
        assert step(alarms) == []
    again = step(alarms, finding(level="good", severity=severity))
    assert again == [("resolved", "errors")], "the tenth that was judged"
    for _ in range(2):
        step(alarms, finding(severity=severity))
    assert [step(alarms) for _ in range(hours * 60)][-2:] == [[], [("resolved", "errors")]]


def test_what_is_gone_is_resolved_as_if_it_were_good() -> None:
    alarms = Alarms()
    for _ in range(2):
        step(alarms, finding(), finding("drift", model="n"))
    told = [alarms.update([], 0.0, lambda each: each.model == "n") for _ in range(2 * QUIET)]
    assert [(at, event.alarm.model) for at, events in enumerate(told) for event in events] == [(QUIET - 1, "n")]


def test_what_shares_a_cause_is_one_alarm() -> None:
    alarms = Alarms()
    slow = finding("p95_growth", severity="ticket", place="features/weather")
    burn = finding("burn_rate", place="features")
    misses = finding("hit_rate", severity="ticket", subject="weather", place="features/weather")
    for _ in range(PENDING - 1):
        step(alarms, slow)
    assert step(alarms, slow, misses) == [("firing", "p95_growth")]
    assert step(alarms, slow, misses, burn) == []
    assert step(alarms, slow, misses, burn) == [("raised", "hit_rate")], "a page joins a ticket; the cause in front"
    (alarm,) = alarms.active
    assert (alarm.severity, alarm.place) == ("page", "features/weather")
    assert [each.alert for each in alarm.conditions] == ["burn_rate", "p95_growth"]
    assert alarms.firing == {("p95_growth", "m", "ticket"), ("hit_rate", "m", "ticket"), ("burn_rate", "m", "page")}


def test_different_causes_are_different_alarms() -> None:
    alarms = Alarms()
    found = [
        finding("p95_growth", place="infer"),
        finding("stale", subject="weather", place="features/weather"),
        finding("stale", subject="routes", place="features/routes"),
        finding("drift", place="columns/age"),
        finding("memory_leak", model="", place="memory"),
        finding("p95_growth", model="other", place="infer"),
    ]
    step(alarms, *found)
    assert len(step(alarms, *found)) == len(found)


def test_a_throttled_machine_is_the_cause_of_slow_models() -> None:
    alarms = Alarms()
    found = [
        finding("cpu_throttled", model="", place="cpu"),
        finding("p95_growth", place="infer"),
        finding("p95_growth", model="other", place="queue"),
        finding("p95_growth", model="third", place="features/weather"),
    ]
    step(alarms, *found)
    assert [alert for _, alert in step(alarms, *found)] == ["cpu_throttled", "p95_growth"]


def test_a_condition_keeps_its_cause_while_its_likely_place_changes() -> None:
    alarms = Alarms()
    for place in ("infer", "infer", "queue", "features", ""):
        step(alarms, finding("burn_rate", place=place))
    (alarm,) = alarms.active
    assert alarm.place == "infer"


def test_an_alarm_says_the_stage_the_slowest_requests_and_the_way_out() -> None:
    asked: list[Alarm] = []

    def slowest(alarm: Alarm) -> list[tuple[str, float]]:
        asked.append(alarm)
        return [("4bf92f3577b34da6a3ce929d0e0e4736", 812.0)]

    alarms = Alarms(slowest=slowest)
    alarms.update([finding(place="infer")], 0)
    (event,) = alarms.update([finding(place="infer")], 60)
    line = log_line(event)
    for part in (
        "(page)",
        "2 % of 100",
        "likely stage: infer",
        "4bf92f3577b34da6a3ce929d0e0e4736 (812 ms)",
        "hint: look",
    ):
        assert part in line
    assert len(asked) == 1


def test_a_restart_sends_nothing_again() -> None:
    alarms = Alarms()
    for _ in range(3):
        step(alarms, finding(), finding("p95_growth", place="infer"))
    kept = msgspec.json.decode(msgspec.json.encode(alarms.memory), type=Memory)
    again = Alarms()
    again.adopt(kept)
    assert again.active == alarms.active
    assert step(again, finding(), finding("p95_growth", place="infer")) == []
    good = finding(level="good"), finding("p95_growth", level="good", place="infer")
    for _ in range(QUIET - 1):
        assert step(again, *good) == []
    assert step(again, *good) == [("resolved", "errors")], "one alarm: neither says where"
    assert not again.active


@given(
    st.lists(
        st.dictionaries(
            st.tuples(
                st.sampled_from(["errors", "burn_rate", "p95_growth", "hit_rate", "stale", "cpu_throttled", "drift"]),
                st.sampled_from(["", "m", "n"]),
            ),
            st.tuples(
                st.sampled_from(["bad", "between", "good"]),
                st.sampled_from(["", "infer", "features", "features/a", "cpu"]),
            ),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_every_alarm_is_told_once_and_resolved_once(minutes: list[dict[Any, Any]], restarts: bool) -> None:
    alarms = Alarms()
    active: set[str] = set()
    sent: set[str] = set()
    all_good = {which: ("good", "") for levels in minutes for which in levels}
    for minute, levels in enumerate([*minutes, *[all_good] * QUIET]):
        found = [finding(a, level, model=model, place=place) for (a, model), (level, place) in levels.items()]
        if restarts:
            kept = msgspec.json.decode(msgspec.json.encode(alarms.memory), type=Memory)
            alarms = Alarms()
            alarms.adopt(kept)
        for event in alarms.update(found, 60.0 * minute):
            assert event.id not in sent
            sent.add(event.id)
            assert (event.alarm.id in active) == (event.kind != "firing")
            (active.discard if event.kind == "resolved" else active.add)(event.alarm.id)
        assert active == {alarm.id for alarm in alarms.active}
        assert {key for alarm in alarms.active for key in (each.key for each in alarm.findings)} == {
            each.finding.key for each in alarms.memory.conditions.values() if each.alarm
        }
    assert not active
