"""What a feature cache would answer of what requests ask for, where payloads differ in more than one field."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import date, datetime, timedelta, tzinfo
from decimal import Decimal
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from tests.unit.profiler.levers import test_levers
from tests.unit.profiler.levers.test_levers import pilot, reasons

from tailcut.common.slo import parse_objectives
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.hooks.asking import asked_by, command_asked, query_asked
from tailcut.profiler.levers.advice import Advice, advise
from tailcut.profiler.levers.known import Known, know
from tailcut.profiler.levers.work import read_work
from tailcut.profiler.payloads.diversity import Diversity, read_diversity
from tailcut.profiler.records import Recording, Stage

_RATE = 50.0
_USERS = 10
Payload = dict[str, Any]
By = Callable[[int, Payload], Any]


def payloads(count: int = 400) -> list[Payload]:
    """No two are the same; there are ten users, who live in three towns."""
    return [
        {"user": n * 7919 % _USERS, "town": "abc"[n * 7919 % _USERS % 3], "amount": n + 0.5, "limit": n * 31 % 4}
        for n in range(count)
    ]


def asking(recording: Recording, sent: list[Payload], by: list[By]) -> Recording:
    """Let the queries of each request ask by something of its payload."""
    requests = []
    for one in recording.requests:
        spans, left = [], list(by)
        for span in one.spans:
            if span.stage != Stage.SQL:
                spans.append(span)
                continue
            number = len(by) - len(left)
            value = left.pop(0)(one.number, sent[one.number % len(sent)])
            asked = 0 if value is None else asked_by(f"q{number}", value)
            label = f"SELECT {chr(97 + number)} WHERE id = ?"
            spans.append(msgspec.structs.replace(span, label=label, asked=asked))
        requests.append(msgspec.structs.replace(one, spans=tuple(spans)))
    return msgspec.structs.replace(recording, requests=tuple(requests))


def diversity_of(sent: list[Payload]) -> Diversity:
    return read_diversity(((n / _RATE, json.dumps(one).encode()) for n, one in enumerate(sent)), timed=False)


def known_of(recording: Recording, sent: list[Payload]) -> Known:
    return know(recording, [json.dumps(one).encode() for one in sent], diversity_of(sent), _RATE)


def advice_of(recording: Recording, sent: list[Payload]) -> Advice:
    known, slo = known_of(recording, sent), parse_objectives("p95=5ms")
    found = advise(recording, known=known, slo=slo, diversity=diversity_of(sent))
    assert found is not None
    return found


def mean(known: Known) -> float:
    return float(np.mean(list(known.feature_hits.values())))


def test_queries_by_a_user_repeat_though_no_payload_does() -> None:
    sent = payloads()
    recording = asking(pilot(queries=1), sent, [lambda _, payload: (payload["user"],)])
    known = known_of(recording, sent)
    assert known.asked.by == ("user",)
    hits = [known.feature_hits[number] for number in range(400)]
    assert set(hits[:_USERS]) == {0.0}
    assert set(hits[_USERS:]) == {1.0}
    advice = advice_of(recording, sent)
    lever = next(one for one in advice.levers if one.lever == "feature cache")
    assert max(lever.p95_ms) < 0.6 * advice.p95_ms
    assert "as what is asked for (by user) repeats within 60 s" in lever.basis[0]


def test_each_statement_repeats_as_its_own_parameters_do() -> None:
    """One goes by the user, one by the amount, which is another each time, and one has no parameter."""
    sent = payloads()
    by: list[By] = [lambda _, one: (one["user"],), lambda _, one: (one["amount"],), lambda _, __: ()]
    recording = asking(pilot(queries=3), sent, by)
    known = known_of(recording, sent)
    shares = {label: np.mean(list(found.values())) for (_, label), found in known.asked.shares.items()}
    assert shares == {
        "SELECT a WHERE id = ?": pytest.approx(1 - _USERS / 400),
        "SELECT b WHERE id = ?": 0.0,
        "SELECT c WHERE id = ?": pytest.approx(1 - 1 / 400),
    }
    assert mean(known) == pytest.approx(sum(shares.values()) / 3)
    work = read_work(recording, attribute(recording), known)
    assert work.cached_share[_USERS:] == pytest.approx(2 / 3), "the statement that goes by the amount stays"


def test_what_two_fields_say_together_is_found() -> None:
    sent = payloads()
    known = known_of(asking(pilot(queries=1), sent, [lambda _, one: (one["user"], one["limit"])]), sent)
    assert known.asked.by in {("limit with user",), ("user with limit",)}
    assert mean(known) == pytest.approx(1 - len({(one["user"], one["limit"]) for one in sent}) / 400)


def test_what_no_payload_says_does_not_repeat() -> None:
    """A time is a parameter: each request asks for something else."""
    sent = payloads()
    recording = asking(pilot(queries=1), sent, [lambda number, _: (number,)])
    assert mean(known_of(recording, sent)) == 0.0
    reason = reasons(advice_of(recording, sent))["feature cache"]
    assert reason == "not worth it: 0.0% of what is fetched repeats, less than 5%"


def labelled(recording: Recording, *labels: str) -> Recording:
    """Let the queries of each request be these, in turn; their parameters stay."""
    requests = []
    for one in recording.requests:
        left = iter(labels)
        spans = [
            msgspec.structs.replace(span, label=next(left)) if span.stage == Stage.SQL else span for span in one.spans
        ]
        requests.append(msgspec.structs.replace(one, spans=tuple(spans)))
    return msgspec.structs.replace(recording, requests=tuple(requests))


def test_a_constant_query_says_nothing_of_calls_whose_parameters_nobody_sees() -> None:
    sent = payloads()
    recording = asking(pilot(queries=3), sent, [lambda _, __: (), lambda _, __: None, lambda _, __: None])
    assert not known_of(recording, sent).asked.requests
    reason = reasons(advice_of(recording, sent))["feature cache"]
    assert reason.startswith("not known: which field of the payload fetches go by: ")


def test_a_call_of_little_time_whose_parameters_nobody_sees_repeats_nothing() -> None:
    sent = payloads()
    by: list[By] = [lambda _, one: (one["user"],)] * 9
    known = known_of(asking(pilot(queries=10), sent, [*by, lambda _, __: None]), sent)
    assert known.asked.covered == pytest.approx(0.9, abs=0.02)
    assert mean(known) == pytest.approx(0.9 * (1 - _USERS / 400))


def test_a_transaction_around_a_query_that_does_not_repeat_stays_with_it() -> None:
    sent = payloads()
    by: list[By] = [lambda _, __: (), lambda _, one: (one["amount"],), lambda _, __: (), lambda _, __: ()]
    recording = asking(pilot(queries=4), sent, by)
    recording = labelled(recording, "BEGIN", "SELECT a WHERE id = ?", "COMMIT", "SELECT pg_advisory_unlock_all();")
    reason = reasons(advice_of(recording, sent))["feature cache"]
    assert reason == "not worth it: 0.0% of what is fetched repeats, less than 5%"
    recording = asking(pilot(queries=4), sent, [by[0], lambda _, one: (one["user"],), *by[2:]])
    recording = labelled(recording, "BEGIN", "SELECT a WHERE id = ?", "COMMIT", "INSERT INTO log VALUES (?)")
    work = read_work(recording, attribute(recording), known_of(recording, sent))
    assert work.cached_share[_USERS:] == pytest.approx(1 / 4), "what is written is no answer, and COMMIT stays with it"


def test_a_transaction_goes_with_all_that_is_fetched_in_it() -> None:
    sent = payloads()
    recording = asking(pilot(queries=3), sent, [lambda _, __: (), lambda _, one: (one["user"],), lambda _, __: ()])
    recording = labelled(recording, "BEGIN", "SELECT a WHERE id = ?", "COMMIT")
    share = read_work(recording, attribute(recording), known_of(recording, sent)).cached_share
    assert share[:_USERS] == pytest.approx(0.0)
    assert share[_USERS:] == pytest.approx(1.0)


def test_a_few_who_ask_nothing_do_not_hide_what_the_others_go_by() -> None:
    """The first of some users, and the last request of all."""
    sent = payloads()
    recording = asking(pilot(queries=1), sent, [lambda _, one: (one["user"],)])
    few = {0, 1, 399}
    requests = [
        msgspec.structs.replace(one, spans=tuple(span for span in one.spans if span.stage != Stage.SQL))
        if one.number in few
        else one
        for one in recording.requests
    ]
    known = known_of(msgspec.structs.replace(recording, requests=tuple(requests)), sent)
    assert known.asked.by == ("user",)
    assert mean(known) == pytest.approx(1 - _USERS / 400, abs=0.01)


def test_what_no_field_says_goes_by_none() -> None:
    """Of users who stand in a header: only the requests themselves tell, and one with another field each fits any."""
    sent = payloads()
    users = np.random.default_rng(0).integers(0, _USERS, len(sent)).tolist()
    recording = asking(pilot(queries=1), sent, [lambda number, _: (users[number % len(sent)],)])
    known = known_of(recording, sent)
    assert known.asked.by == ()
    assert mean(known) == pytest.approx(1 - _USERS / 400)


def test_what_few_requests_ask_is_judged_by_these(monkeypatch: pytest.MonkeyPatch) -> None:
    """One in a hundred asks; were the others' word enough, nothing would go by nothing, and nobody ask."""
    monkeypatch.setattr(test_levers, "_COUNT", 2_500)
    sent, askers = payloads(2_500), {100 * one + one % _USERS for one in range(25)}
    recording = asking(pilot(queries=1), sent, [lambda _, one: (one["user"],)])
    requests = [
        one if one.number in askers else msgspec.structs.replace(one, spans=one.spans[:1]) for one in recording.requests
    ]
    known = known_of(msgspec.structs.replace(recording, requests=tuple(requests)), sent)
    assert mean(known) == pytest.approx(1 - _USERS / 25)


def test_a_request_that_asks_nothing_has_no_share() -> None:
    sent = payloads()
    recording = asking(pilot(queries=1), sent, [lambda _, one: (one["user"],)])
    half = []
    for one in recording.requests:
        spans = [span for span in one.spans if span.stage != Stage.SQL or one.number % 2]
        half.append(msgspec.structs.replace(one, spans=tuple(spans)))
    known = known_of(msgspec.structs.replace(recording, requests=tuple(half)), sent)
    assert {number % 2 for number in known.feature_hits} == {1}


def test_where_nobody_knows_what_is_asked_that_is_said() -> None:
    sent = payloads()
    recording = asking(pilot(queries=1), sent, [lambda _, __: None])
    assert reasons(advice_of(recording, sent))["feature cache"].startswith(
        "not known: which field of the payload fetches go by: "
    )


def test_one_field_that_tells_payloads_apart_needs_no_parameters() -> None:
    sent = [{"user": n % _USERS} for n in range(400)]
    known = known_of(asking(pilot(queries=1), sent, [lambda _, __: None]), sent)
    assert mean(known) == pytest.approx(1 - _USERS / 400)
    assert not known.feature_doubt


@pytest.mark.parametrize(
    "values",
    [(1,), ("a", None), {"id": 3}, [[1, 2], [3]], (date(2026, 1, 2), Decimal("1.5")), (np.int64(4),), (b"x", 1.5), ()],
)
def test_the_same_values_ask_for_the_same(values: Any) -> None:
    first = asked_by("SELECT ?", values)
    again = type(values)(values)
    assert first
    assert asked_by("SELECT ?", again) == first
    assert asked_by("SELECT ? FOR UPDATE", values) != first
    assert asked_by("SELECT ?", (values, "more")) != first


def test_a_process_with_a_known_seed_keeps_its_numbers_secret() -> None:
    """The profiled process has one, so that runs compare."""
    code = "from tailcut.profiler.hooks.asking import asked_by; print(asked_by('q', ('ada@example.com',)))"
    numbers = {
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": "1"}, capture_output=True, check=True
        ).stdout
        for _ in range(2)
    }
    assert len(numbers) == 2


def test_minus_one_is_not_minus_two() -> None:
    assert asked_by("q", (-1,)) != asked_by("q", (-2,))


def test_who_asks_stands_in_comments() -> None:
    first = asked_by("SELECT 1 WHERE id = ? /*traceparent='00-a'*/", (1,))
    assert first == asked_by("SELECT 1 WHERE id = ? /*traceparent='00-b'*/", (1,))
    assert first != asked_by("SELECT 1 WHERE id = ? /*traceparent='00-b'*/", (2,))


class Nowhere(tzinfo):
    """A time zone that is not finished."""

    def utcoffset(self, _: datetime | None) -> timedelta:
        raise NotImplementedError


@pytest.mark.parametrize("value", [datetime(2026, 1, 2, tzinfo=Nowhere()), np.timedelta64(1)])
def test_what_cannot_be_hashed_does_not_fail_the_users_call(value: Any) -> None:
    assert asked_by("q", (value,)) == 0


@pytest.mark.parametrize("values", [[[0.5] * 1000] * 1000, (b"x" * 1_000_000,), ("x" * 40_000, "y" * 40_000)])
def test_what_is_stored_is_not_hashed(values: Any) -> None:
    assert asked_by("INSERT", values) == 0


@pytest.mark.parametrize("values", [(object(),), (np.zeros(3),), ([0] * 1001,), ({1, 2},), (SimpleNamespace(a=1),)])
def test_of_what_is_no_plain_value_nothing_is_known(values: Any) -> None:
    assert asked_by("SELECT ?", values) == 0


def test_values_that_hold_themselves_are_not_followed() -> None:
    endless: list[Any] = []
    endless.append(endless)
    assert asked_by("SELECT ?", endless) == 0


def test_what_stands_before_the_arguments_is_left_out() -> None:
    assert query_asked("q", (object(), "q", (1,)), {}) == query_asked("q", (object(), "q", (1,)), {})
    assert command_asked("GET", (object(), "GET", "a"), {}) != command_asked("GET", (object(), "GET", "b"), {})
