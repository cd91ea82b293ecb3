from __future__ import annotations

from itertools import count

import pytest

from tailcut.errors import InferenceError
from tailcut.observe.failures import FailureLog
from tailcut.pipeline.request_context import RequestContext
from tailcut.protocol.operator_log import told

SECOND = 1_000_000_000
CALL = RequestContext("infer", 0, SECOND, "", "onnx")


def log() -> FailureLog:
    """A log whose incidents are 1, 2, 3."""
    return FailureLog(5 * SECOND, map(str, count(1)).__next__)


def test_a_failure_is_logged_in_full_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    failures = log()
    for n in range(1000):
        failures.failed("inference_failed", f"infer failed: row {n}", ValueError("bad kernel"), n)
    assert [record.getMessage() for record in caplog.records] == ["[1] infer failed: row 0"]
    assert caplog.records[0].exc_info is not None
    failures.flush(4 * SECOND)
    assert len(caplog.records) == 1
    failures.flush(5 * SECOND)
    failures.flush(20 * SECOND)
    assert [record.getMessage() for record in caplog.records][1:] == [
        "[1] inference_failed: 999 more in 5 s, the latest: infer failed: row 999"
    ]


def test_kinds_do_not_hide_one_another(caplog: pytest.LogCaptureFixture) -> None:
    failures = log()
    failures.failed("a", "a failed", None, 0)
    failures.failed("b", "b failed", None, 1)
    assert [record.getMessage() for record in caplog.records] == ["[1] a failed", "[2] b failed"]


def test_after_a_quiet_while_a_failure_is_logged_in_full_again(caplog: pytest.LogCaptureFixture) -> None:
    failures = log()
    failures.failed("a", "first", None, 0)
    failures.failed("a", "second", None, 1)
    failures.flush(6 * SECOND)
    failures.failed("a", "third", None, 11 * SECOND)
    assert [record.getMessage() for record in caplog.records] == [
        "[1] first",
        "[1] a: 1 more in 6 s, the latest: second",
        "[2] third",
    ]


@pytest.mark.parametrize("flushes", [True, False])
def test_a_failure_that_goes_on_is_one_line_in_full_and_a_count_every_few_seconds(
    caplog: pytest.LogCaptureFixture, flushes: bool
) -> None:
    failures = log()
    for tick in range(1, 600):  # a minute, ten times a second
        failures.failed("a", f"row {tick}", ValueError("bad"), tick * SECOND // 10)
        if flushes:
            failures.flush(tick * SECOND // 10)
    written = [record.getMessage() for record in caplog.records]
    assert [record.exc_info is not None for record in caplog.records] == [True] + [False] * (len(written) - 1)
    assert 11 <= len(written) <= 13
    assert sum(int(line.split(": ")[1].split()[0]) for line in written[1:]) >= 540


def test_an_incident_is_always_one_that_the_log_has(caplog: pytest.LogCaptureFixture) -> None:
    failures = log()
    incidents = []
    for second in (0, 1, 6, 7, 13, 20):
        incidents.append(failures.failed("a", "a failed", None, second * SECOND))
        failures.flush(second * SECOND)
    assert incidents == ["1", "1", "1", "1", "1", "2"]
    written = " ".join(record.getMessage() for record in caplog.records)
    assert all(f"[{incident}]" in written for incident in incidents)


def test_ids_differ() -> None:
    failures = FailureLog(0)
    assert failures.failed("a", "a failed", None, 0) != failures.failed("a", "a failed", None, 1)


def test_kinds_without_end_count_as_one_for_each_first_word(caplog: pytest.LogCaptureFixture) -> None:
    failures = log()
    incidents = [failures.failed(f"hook_failed value {n}", f"value {n}", None, n) for n in range(1000)]
    assert len(set(incidents)) == 65
    assert len(set(incidents[64:])) == 1
    assert failures.failed("features_unavailable", "a source is down", None, 1001) not in incidents
    caplog.clear()
    failures.flush(6 * SECOND)
    written = [record.getMessage() for record in caplog.records]
    assert written == ["[65] hook_failed: 935 more in 6 s, the latest: value 999"]
    caplog.clear()
    failures.failed("hook_failed value 2000", "value 2000", None, 7 * SECOND)  # those that were quiet are forgotten
    assert [record.getMessage() for record in caplog.records] == ["[67] value 2000"]


def test_many_kinds_that_come_back_do_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    failures = log()
    for second in range(60):
        for n in range(64):
            failures.failed(f"hook_failed value {n}", f"value {n}", ValueError("bad"), second * SECOND)
        failures.flush(second * SECOND)
    in_full = [record for record in caplog.records if record.exc_info]
    assert 64 <= len(in_full) <= 12 * 9 + 2
    assert {record.getMessage().partition("] ")[2] for record in in_full} >= {f"value {n}" for n in range(8)}


def test_figures_are_no_other_failure_and_names_are() -> None:
    failures = log()

    def incident(message: str) -> str:
        return told(failures, CALL, InferenceError(message), 0)[1]

    assert incident("the answer has 3 rows for 5") == incident("the answer has 12 rows for 8.5") == "1"
    assert incident("output 'y1' is missing") != incident("output 'y2' is missing")
    assert incident("layer conv2 failed") != incident("layer conv3 failed")


def test_an_error_that_the_requests_of_a_batch_share_is_one_incident() -> None:
    """Its traceback, which says where it comes from, is gone after the first."""
    error = InferenceError("the model failed on a batch of 2 rows (ValueError)", hint="see the log")
    try:
        try:
            raise ValueError("bad row")
        except ValueError as cause:
            raise error from cause
    except InferenceError:
        failures = log()
        assert [told(failures, CALL, error, now_ns)[1] for now_ns in (0, 1)] == ["1", "1"]
