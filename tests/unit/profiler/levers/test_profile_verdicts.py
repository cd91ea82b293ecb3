"""What a profile says of its SLO: advice never calls met what the same report calls missed."""

from __future__ import annotations

import msgspec
import pytest
from tests.unit.profiler.levers.test_levers import advice, bodies, pilot, reasons

from tailcut.common.slo import parse_objectives
from tailcut.profiler.levers.advice import advise
from tailcut.profiler.levers.known import know
from tailcut.profiler.payloads.diversity import read_diversity
from tailcut.profiler.records import Recording
from tailcut.report.profile.json import advice_of

_MS = 1_000_000
_COUNT = 400


def failing(recording: Recording, every: int) -> Recording:
    return msgspec.structs.replace(
        recording,
        requests=tuple(
            msgspec.structs.replace(one, status=500) if one.number % every == 0 else one for one in recording.requests
        ),
    )


@pytest.mark.parametrize("slo", ["p95=200ms", "p50=200ms,errors=1%"])
def test_requests_that_failed_are_no_slo_that_is_met(slo: str) -> None:
    """One in ten: no lever helps, however quick the others were."""
    found = advice(failing(pilot(), 10), slo=slo)
    assert found.summary[0] == "40 requests failed; that alone misses the SLO, and no lever changes it: begin there"
    assert not any("nothing needs doing" in line for line in found.summary)
    assert not any("the SLO is met" in reason for reason in reasons(found).values())


def test_few_failures_do_not_hide_what_is_too_slow() -> None:
    """One in a hundred is within the SLO."""
    found = advice(failing(pilot(sql_ms=12.0), 100), slo="p95=6ms,errors=2%")
    assert any(line.startswith("in this order: ") for line in found.summary)
    assert "failed" not in found.summary[0]


def test_the_objective_that_is_missed_is_aimed_at() -> None:
    """Not the first."""
    found = advice(pilot(sql_ms=6.0), slo="p50=60ms,p95=8ms")
    assert (found.percentile, found.limit_ms) == ("p95", 8.0)
    assert not any("nothing needs doing" in line for line in found.summary)
    tight = advice(pilot(sql_ms=6.0), slo="p50=60ms,p95=0.1ms")
    assert any(line.startswith("the SLO's p95 of 0.1 ms is not met") for line in tight.summary)


def test_payloads_that_are_sent_again_and_again_are_no_repeats() -> None:
    """Fifty, all different: a cache wins nothing, however often the load begins again."""
    recording, sent = pilot(), bodies(50, 50)
    diversity = read_diversity(((number / 50.0, body) for number, body in enumerate(sent)), timed=False)
    found = advise(recording, known=know(recording, sent, diversity, 50.0), diversity=diversity)
    assert found is not None
    for lever in ("feature cache", "prediction cache"):
        assert reasons(found)[lever] == "not worth it: 0.0% of the requests repeat, fewer than 5%"


def test_caches_are_played_at_the_logs_own_times() -> None:
    """All but the first repeat, some within the life of an entry: minutes are not squeezed into seconds."""
    recording = pilot()
    sent, at_s = [b'{"id":1}'] * 4, [0.0, 4.0, 14.0, 3600.0]
    diversity = read_diversity(zip(at_s, sent, strict=True), timed=True)
    known = know(recording, sent, diversity, 50.0, at_s=at_s)
    assert [known.feature_hits[number] for number in range(6)] == [0.0, 1.0, 1.0, 0.0, 0.0, 1.0]
    assert [known.prediction_hits[number] for number in range(4)] == [False, True, False, False]
    assert set(known.feature_hits) == {one.number for one in recording.requests}


def test_what_is_met_is_not_said_to_be_reached_by_a_lever() -> None:
    """Met as measured, with too little to spare: that is said, and no lever is called enough for what is met."""
    found = advice(pilot(code_ms=6.0, rate=130.0), slo="p95=25ms")
    assert found.p95_ms < 25.0  # or this test asks nothing
    assert found.summary[0].startswith("the SLO is met as it was measured, ")
    assert found.summary[0].endswith("141 requests/s are possible, limited by the cores")
    assert not any("not met" in line for line in found.summary)


def test_failures_alone_are_judged_without_a_limit_on_latency() -> None:
    """An SLO of errors only."""
    found = advice_of(failing(pilot(), 10), parse_objectives("errors=1%"), None, ())
    assert found is not None
    assert found.summary[0].startswith("40 requests failed; that alone misses the SLO")
