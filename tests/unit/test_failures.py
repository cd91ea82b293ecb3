from __future__ import annotations

import pytest

from tailcut.observe.failures import FailureLog

SECOND = 1_000_000_000


def test_a_failure_is_logged_in_full_once_and_then_counted(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(5 * SECOND)
    for n in range(1000):
        failures.failed("inference_failed", f"infer failed: row {n}", ValueError("bad kernel"), n)
    assert [record.getMessage() for record in caplog.records] == ["infer failed: row 0"]
    assert caplog.records[0].exc_info is not None
    failures.flush(4 * SECOND)
    assert len(caplog.records) == 1
    failures.flush(5 * SECOND)
    failures.flush(20 * SECOND)
    assert [record.getMessage() for record in caplog.records][1:] == [
        "inference_failed: 999 more in 5 s, the latest: infer failed: row 999"
    ]


def test_kinds_do_not_hide_one_another(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(5 * SECOND)
    failures.failed("a", "a failed", None, 0)
    failures.failed("b", "b failed", None, 1)
    assert [record.getMessage() for record in caplog.records] == ["a failed", "b failed"]


def test_after_a_quiet_while_a_failure_is_logged_in_full_again(caplog: pytest.LogCaptureFixture) -> None:
    failures = FailureLog(5 * SECOND)
    failures.failed("a", "first", None, 0)
    failures.failed("a", "second", None, 1)
    failures.failed("a", "third", None, 6 * SECOND)
    assert [record.getMessage() for record in caplog.records] == [
        "first",
        "a: 1 more in 6 s, the latest: second",
        "third",
    ]
