"""The state machine of alarms: pending, firing, resolved; over restarts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.observe.alerts.evaluator import QUIET, Alarm, Alarms
from tailcut.observe.alerts.rules import AlertFinding, Severity


def finding(alert: str = "errors", level: str = "bad", **changes: Any) -> AlertFinding:
    """A finding of model "m"."""
    made = AlertFinding(alert, "m", "", "page", level, 2.0, 1.0, "", "2 % of 100 requests failed")
    return made._replace(**changes)


def step(alarms: Alarms, *findings: AlertFinding, minute: int = 0) -> list[tuple[str, str]]:
    """Evaluate once; return the states of the alarms that changed, and their alerts."""
    return [(each.state, each.finding.alert) for each in alarms.update(findings, 60.0 * minute)]


def restarted(alarms: Alarms) -> Alarms:
    """As after a restart: alarms that fire are kept as JSON."""
    kept = msgspec.json.decode(msgspec.json.encode(alarms.active), type=list[Alarm])
    again = Alarms()
    again.alarms = {alarm.finding.key: alarm for alarm in kept}
    return again


def test_it_fires_at_the_second_bad_evaluation_and_resolves_after_ten_good_ones() -> None:
    alarms = Alarms()
    assert step(alarms, finding()) == []
    assert [each.state for each in alarms.alarms.values()] == ["pending"]
    assert step(alarms, finding()) == [("firing", "errors")]
    assert step(alarms, finding()) == []
    for _ in range(QUIET - 1):
        assert step(alarms, finding(level="good")) == []
    assert step(alarms, finding()) == [], "once more: it is the same alarm, and is not sent again"
    for _ in range(QUIET - 1):
        assert step(alarms, finding(level="good")) == []
    assert step(alarms, finding(level="good")) == [("resolved", "errors")]
    assert (alarms.active, alarms.alarms) == ([], {})


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
    assert [(at, alarm.finding.model) for at, changed in enumerate(told) for alarm in changed] == [(QUIET - 1, "n")]


def test_an_alarm_has_the_latest_finding_and_the_time_of_the_first() -> None:
    alarms = Alarms()
    for minute, value in enumerate((2.0, 3.0, 4.0)):
        step(alarms, finding(value=value), minute=minute + 5)
    (alarm,) = alarms.active
    assert (alarm.finding.value, alarm.since_s) == (4.0, 300.0)


def test_servers_have_alarms_of_their_own() -> None:
    names = set()
    for server in ("a", "b"):
        alarms = Alarms(server)
        for _ in range(2):
            step(alarms, finding())
        names.add(alarms.active[0].id)
    assert len(names) == 2


def test_a_restart_sends_nothing_again() -> None:
    alarms = Alarms()
    found = finding(), finding("p95_growth", place="infer")
    for _ in range(3):
        step(alarms, *found)
    again = restarted(alarms)
    assert again.active == alarms.active
    assert step(again, *found) == []
    good = finding(level="good"), finding("p95_growth", level="good", place="infer")
    for _ in range(QUIET - 1):
        assert step(again, *good) == []
    assert step(again, *good) == [("resolved", "errors"), ("resolved", "p95_growth")]
    assert not again.active


@given(
    st.lists(
        st.dictionaries(
            st.tuples(
                st.sampled_from(["errors", "burn_rate", "p95_growth", "hit_rate", "stale", "memory_leak", "drift"]),
                st.sampled_from(["", "m", "n"]),
            ),
            st.sampled_from(["bad", "between", "good"]),
        ),
        max_size=40,
    ),
    st.booleans(),
)
def test_every_alarm_is_told_once_and_resolved_once(minutes: list[dict[Any, Any]], restarts: bool) -> None:
    alarms = Alarms()
    active: set[str] = set()
    all_good = {which: "good" for levels in minutes for which in levels}
    for minute, levels in enumerate([*minutes, *[all_good] * QUIET]):
        found = [finding(alert, level, model=model) for (alert, model), level in levels.items()]
        if restarts:
            alarms = restarted(alarms)
        for alarm in alarms.update(found, 60.0 * minute):
            assert (alarm.id in active) == (alarm.state == "resolved")
            (active.discard if alarm.state == "resolved" else active.add)(alarm.id)
        assert active == {alarm.id for alarm in alarms.active}
    assert not active
