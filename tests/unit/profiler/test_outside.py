"""A server seen from outside: its Server-Timing as spans, and what the load's figures say of the rate."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.common.slo import Objectives
from tailcut.errors import ProfileError
from tailcut.load import LoadPlan, LoadResult, RunFacts, summarise_run
from tailcut.load.recorder import LoadRecorder
from tailcut.profiler.attribution.server_timing import TAILCUT, Timed
from tailcut.profiler.outside import check_rate, load_notes, requests_of, unanswered
from tailcut.profiler.records import Stage

MS = 1_000_000


def test_parts_lie_within_the_servers_time_and_that_in_the_middle() -> None:
    timed = Timed(("db", "render", "total"))
    found = timed.request(7, (0, 2 * MS, 12 * MS), 200, {"db": 4.0, "render": 1.0, "total": 8.0})
    assert (found.entered_ns, found.left_ns) == (3 * MS, 11 * MS)
    assert [(one.stage, one.label, one.start_ns, one.end_ns) for one in found.spans] == [
        (Stage.SQL, "db", 3 * MS, 7 * MS),
        (Stage.ENCODE, "render", 7 * MS, 8 * MS),
    ]


def test_parts_that_ran_side_by_side_shrink_to_the_total() -> None:
    timed = Timed(("db", "upstream-api", "total"))
    found = timed.request(0, (0, 0, 10 * MS), 200, {"db": 6.0, "upstream-api": 6.0, "total": 6.0})
    assert [one.end_ns - one.start_ns for one in found.spans] == [3 * MS, 3 * MS]
    assert found.spans[-1].end_ns == found.left_ns


def test_a_total_longer_than_the_client_waited_is_cut() -> None:
    found = Timed(("total",)).request(0, (0, 1 * MS, 3 * MS), 200, {"total": 50.0})
    assert (found.entered_ns, found.left_ns) == (1 * MS, 3 * MS)


def test_without_a_total_a_round_trip_is_the_network_and_the_rest_stays_unknown() -> None:
    found = Timed(("cache", "my-part")).request(0, (0, 0, 10 * MS), 200, {"my-part": 2.0}, round_trip_ns=1 * MS)
    assert (found.entered_ns, found.left_ns) == (-1, -1)
    assert [(one.stage, one.end_ns - one.start_ns) for one in found.spans] == [
        (Stage.NETWORK, MS // 2),
        (Stage.NETWORK, MS // 2),
        (Stage.CODE, 2 * MS),
    ]
    assert max(one.end_ns for one in found.spans) == 10 * MS


def test_a_request_without_an_answer_has_no_spans() -> None:
    found = Timed(("total",)).request(3, (5, -1, -1), -1, {})
    assert (found.status, found.spans) == (-1, ())


def test_tailcuts_own_stages_have_their_places() -> None:
    timed = Timed(("queue", "infer", "features", "total"), TAILCUT)
    assert {name: stage for name, (stage, _) in timed.parts.items()} == {
        "queue": Stage.WAIT,
        "infer": Stage.MODEL,
        "features": Stage.SQL,
    }


def _recorder(count: int = 4) -> LoadRecorder:
    recorder = LoadRecorder(np.arange(count, dtype=np.int64) * MS, MS, Objectives())
    recorder.start_ns = 1
    return recorder


@pytest.mark.parametrize(
    ("header", "stages"),
    [
        (b"db;dur=1.5, total;dur=3", {"db": 1.5, "total": 3.0}),
        (b'db;desc="a, b; \\"c\\"";dur=1.5, cache;desc=hit;dur=2', {"db": 1.5, "cache": 2.0}),
        (b'db; dur="1.5" , total ; DUR = 3', {"db": 1.5, "total": 3.0}),
        (b"db;dur=2;desc=x", {"db": 2.0}),
        (b'miss, hit;desc="no duration", db;dur=soon', {}),
    ],
)
def test_server_timing_is_read_as_servers_write_it(header: bytes, stages: dict[str, float]) -> None:
    recorder = _recorder()
    recorder.server_timing(2, header)
    found = {name: float(column[2]) for name, column in recorder.samples().stages_ms.items()}
    assert {name: value for name, value in found.items() if value == value} == stages


def test_requests_are_those_after_the_warm_up() -> None:
    recorder = _recorder()
    for index in range(3):  # the last one was never due
        recorder.sent[index] = 1 + index * MS
        recorder.server_timing(index, b"total;dur=0.5")
        recorder.finish(index, 200, 1 + (index + 1) * MS)
    found = requests_of(recorder.samples())
    assert [one.number for one in found] == [1, 2]
    assert found[0].entered_ns == MS + MS // 4


def _result(answered: int, *, status: int = 200, late: int = 0, body: str = "") -> LoadResult:
    plan = LoadPlan(url="http://127.0.0.1:1/", rate=100.0, duration_s=1.0)
    recorder = LoadRecorder(np.arange(100, dtype=np.int64) * 10 * MS, 0, Objectives())
    recorder.start_ns = 1
    for index in range(100):
        recorder.sent[index] = 1 + index * 10 * MS
        done = 1 + index * 10 * MS + (2_000 * MS if index >= 100 - late else MS)
        recorder.finish(index, status if index >= answered else 200, done)
    bodies = {str(status): body} if body else {}
    return summarise_run(plan, recorder.samples(), RunFacts(window_s=1.0, bodies=bodies))


def test_a_rate_that_is_too_much_is_refused_with_one_that_is_not() -> None:
    with pytest.raises(ProfileError, match="cannot sustain 100 requests/s: it answered 60/s") as caught:
        check_rate(_result(100, late=40), "http://here")
    assert "--rate 42" in caught.value.hint
    check_rate(_result(100), "http://here")


def test_errors_are_no_queue_and_refusals_are() -> None:
    """Whoever answers every request bears the rate, whatever the answer is."""
    for answered, status in ((80, 500), (0, 302), (90, 404)):
        check_rate(_result(answered, status=status), "http://here")
    with pytest.raises(ProfileError, match="it answered 80/s and refused 20 requests"):
        check_rate(_result(80, status=503), "http://here")


def test_what_was_not_answered_is_told_by_kind() -> None:
    assert load_notes(_result(98, status=503))[0] == "not answered: 503 2"
    assert not any("not answered" in note for note in load_notes(_result(100)))


def test_no_answer_at_all_says_what_came_instead() -> None:
    error = unanswered(_result(0, status=404, body='{"detail":"Not Found"}'), "http://here")
    assert "answered none of 100 requests (404 100); the first 404 says:" in error.message
    assert "--path" in error.hint
