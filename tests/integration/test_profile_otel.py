"""Calls and code that only the application's own OpenTelemetry knows of are seen, and none is counted twice."""

from __future__ import annotations

import pytest
from tests.integration.profile_asking import Said
from tests.integration.test_profile_frameworks import driven, least_ns, stages

from tailcut.profiler.records import Stage

pytestmark = pytest.mark.integration

TOLD = {
    "/cassandra": (Stage.SQL, "SELECT * FROM t"),
    "/memcached": (Stage.CACHE, "get"),
    "/http": (Stage.HTTP, "GET https://else.example/x"),
    "/rpc": (Stage.HTTP, "Scores/Get"),
}
UNTOLD = ["/hooked", "/internal", "/unknown"]


@pytest.fixture(scope="module")
def otel(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Said]:
    paths = [*TOLD, *UNTOLD, "/cassandra/elsewhere"]
    return driven(tmp_path_factory.mktemp("otel"), "otel", ["otel:app"], paths)


@pytest.mark.parametrize("path", TOLD)
def test_a_client_span_is_a_call(otel: dict[tuple[str, str], Said], path: str) -> None:
    said = otel["otel:app", path]
    stage, label = TOLD[path]
    took = stages(said)
    assert 0.9 * least_ns(said) <= took[stage] <= 1.1 * said.naps_ns, took
    assert [span.label for span in said.request.spans if span.stage is stage] == [label]
    assert said.notes == []


@pytest.mark.parametrize("path", UNTOLD)
def test_what_is_hooked_or_calls_nobody_is_not(otel: dict[tuple[str, str], Said], path: str) -> None:
    """The driver's own hook tells of the one, and the user's code waits in the others."""
    took = stages(otel["otel:app", path])
    assert took[Stage.SQL] == took[Stage.CACHE] == took[Stage.HTTP] == 0


def test_a_span_that_another_task_ends_ends(otel: dict[tuple[str, str], Said]) -> None:
    said = otel["otel:app", "/cassandra/elsewhere"]
    (span,) = [span for span in said.request.spans if span.stage is Stage.SQL]
    assert span.end_ns - span.start_ns == pytest.approx(said.naps_ns, rel=0.1)


def test_a_span_that_the_application_makes_of_its_own_work_is_code(otel: dict[tuple[str, str], Said]) -> None:
    said = otel["otel:app", "/internal"]
    (span,) = [span for span in said.request.spans if span.label == "work"]
    assert (span.stage, span.place.partition(":")[0]) == (Stage.CODE, "otel.py")
    assert span.end_ns - span.start_ns >= 0.9 * least_ns(said)
