"""Objectives are about all requests: one that was not answered is later than any limit."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.common.slo import hopeless, parse_objectives
from tailcut.load import LoadPlan, LoadResult, Samples
from tailcut.load.recorder import LoadFailure, LoadRecorder
from tailcut.load.summary import RunFacts, summarise_run


def result_of(statuses: list[int], took_ms: float, slo: str) -> LoadResult:
    """A run of one request every 10 ms that took ``took_ms`` each and ended as ``statuses`` say."""
    count = len(statuses)
    intended_ns = np.arange(count, dtype=np.int64) * 10_000_000
    samples = Samples(
        intended_ns=intended_ns,
        sent_ns=intended_ns,
        done_ns=intended_ns + int(took_ms * 1e6),
        status=np.asarray(statuses, dtype=np.int16),
        cache=np.zeros(count, dtype=np.int8),
        cache_names=("",),
        stages_ms={},
        measured_from_ns=0,
    )
    plan = LoadPlan(url="http://127.0.0.1:1/", slo=parse_objectives(slo))
    return summarise_run(plan, samples, RunFacts(window_s=count / 100))


@pytest.mark.parametrize(
    "failure", [int(LoadFailure.TIMEOUT), int(LoadFailure.EOF), int(LoadFailure.CONNECT), 429, 500]
)
def test_requests_that_were_not_answered_are_within_no_limit(failure: int) -> None:
    """Seen before: a server that answered nobody met p95=2s, because giving up took 300 ms."""
    none = result_of([failure] * 100, 300.0, "p95=2s")
    assert not none.met
    assert "100 of 100 requests were not answered" in str(none.findings[0])
    assert not result_of([200] * 94 + [failure] * 6, 1.0, "p95=2s").met


def test_what_an_objective_leaves_over_may_fail() -> None:
    result = result_of([200] * 95 + [429] * 5, 1.0, "p95=2s")
    assert result.met
    assert result.findings[0].seen == pytest.approx(1.0)


@pytest.mark.parametrize("status", [int(LoadFailure.TIMEOUT), 429])
def test_a_run_is_hopeless_once_too_many_were_not_answered(status: int) -> None:
    slo = parse_objectives("p95=2s")
    recorder = LoadRecorder(np.arange(100, dtype=np.int64), 0, slo)
    for index in range(5):
        recorder.finish(index, status, 1_000_000)
    assert hopeless(slo, recorder.tally) == ""
    recorder.finish(5, status, 1_000_000)
    assert hopeless(slo, recorder.tally).startswith("p95 (limit 2000 ms): 6 of 100")


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_requests_that_were_themselves_wrong_count_for_no_objective(status: int) -> None:
    result = result_of([200] * 90 + [status] * 10, 1.0, "p95=2s,errors=0%")
    assert result.met
    assert (result.requests, result.answered, result.failed) == (100, 90, 10)
    assert "0 of 90" in str(result.findings[1])
    assert result.errors == {"status_4xx": 10}
    assert any("10.0% of the requests were refused as wrong" in warning for warning in result.warnings)
    slower = result_of([200] * 84 + [500] * 6 + [status] * 10, 1.0, "p95=2s,errors=6%")
    assert [finding.met for finding in slower.findings] == [False, False], "6 of 90 are more than 6 %"


def test_a_run_of_nothing_but_wrong_requests_meets_nothing() -> None:
    result = result_of([400] * 100, 1.0, "p95=2s,errors=0.1%")
    assert [finding.met for finding in result.findings] == [False, False]


def test_wrong_requests_make_no_run_hopeless_and_leave_less_to_fail() -> None:
    slo = parse_objectives("p95=2s,errors=5%")
    recorder = LoadRecorder(np.arange(100, dtype=np.int64), 0, slo)
    for index in range(40):
        recorder.finish(index, 400, 1_000_000)
    assert hopeless(slo, recorder.tally) == ""
    for index in range(40, 43):
        recorder.finish(index, 500, 1_000_000)
    assert hopeless(slo, recorder.tally) == ""
    recorder.finish(43, 500, 1_000_000)
    assert hopeless(slo, recorder.tally).startswith("p95 (limit 2000 ms): 4 of 60")
