"""The pilots of the examples themselves, real model and real tables: a known delay in each stage in turn is found
there, and named as the bottleneck. ``make test`` has the flights; test_profile_second_pilot.py is of MiniLM's shape."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("pandas")

from tests.integration.flight_sample import AT, flight_sample, needs_servers
from tests.integration.planting import HERE, Recorded, found_shares, missed, only, record_planted
from tests.scale import sized

from flight_risk.stacks import stack
from flight_risk.traffic import active_flights
from tailcut.profiler.attribution.budget import make_budget
from tailcut.profiler.records import Stage

pytestmark = [pytest.mark.integration, pytest.mark.quiet]
"""A neighbour makes other stages longer than what is planted, and they the bottleneck."""

EXAMPLES = HERE.parents[1] / "examples"

COMMON = {
    "validation": Stage.DECODE,
    "model": Stage.MODEL,
    "encoder": Stage.ENCODE,
    "hook": Stage.CODE,
    "lock": Stage.LOCK,
    "pool": Stage.WAIT,
    "loop": Stage.LOOP,
    "gc": Stage.GC,
}
FLIGHT_RISK = {f"/predict/{part}": stage for part, stage in COMMON.items()} | {
    "/predict/query": Stage.SQL,
    "/predict/preprocessing": Stage.CODE,
}
MINILM = {f"/embed/{part}": stage for part, stage in COMMON.items()} | {"/embed/tokenizer": Stage.CODE}


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Some weeks of real flights, and the real model's shape."""
    with flight_sample(tmp_path_factory.mktemp("flight-risk"), time.time()) as folder:
        yield folder


@pytest.fixture(scope="module", params=["embedded", pytest.param("real", marks=[needs_servers, pytest.mark.whole])])
def flight_risk(request: pytest.FixtureRequest, tables: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    with stack(kind=request.param) as variables:
        return record_planted(
            tmp_path_factory.mktemp("pilot"),
            "slow_flight_risk",
            list(FLIGHT_RISK),
            {"entities": next(iter(active_flights(AT).values()))[:1]},
            rate=12.0,
            duration_s=sized(7.0, 10.0),
            sample_s=1.0,
            environment={**variables, "PYTHONPATH": str(EXAMPLES), "FLIGHT_RISK_HOME": str(tables)},
        )


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record_planted(
        tmp_path_factory.mktemp("pilot"),
        "slow_minilm",
        list(MINILM),
        {"texts": ["How do I read a file line by line?"]},
        rate=10.0,
        duration_s=10.0,
        sample_s=1.0,
        environment={"PYTHONPATH": str(EXAMPLES), "PLANTED_WAIT_S": "0.045"},
    )


def bottleneck(recorded: Recorded, path: str) -> Stage | None:
    """What a path's slow requests spend most of their time in."""
    found = make_budget(only(recorded[0], path)).bottleneck
    return found.stage if found is not None else None


def line_of(text: str, file: Path) -> str:
    return f"{file}:{next(place for place, line in enumerate(file.read_text().splitlines(), 1) if text in line)}"


def test_every_delay_planted_in_flight_risk_is_found_in_its_stage(flight_risk: Recorded) -> None:
    assert missed(found_shares(flight_risk, FLIGHT_RISK)) == {}


@pytest.mark.parametrize("path", FLIGHT_RISK)
def test_the_bottleneck_of_flight_risk_is_what_was_planted(flight_risk: Recorded, path: str) -> None:
    assert bottleneck(flight_risk, path) is FLIGHT_RISK[path]


def test_the_bottleneck_of_flight_risk_is_named_with_file_and_line(flight_risk: Recorded) -> None:
    culprit = make_budget(only(flight_risk[0], "/predict/model")).culprits_of(Stage.MODEL)[0]
    line = line_of("risk = self._model(*tensors)", EXAMPLES / "flight_risk" / "pilot" / "app.py")
    assert (culprit.label, culprit.place) == ("FlightRisk", line)
    culprit = make_budget(only(flight_risk[0], "/predict/query")).culprits_of(Stage.SQL)[0]
    assert culprit.label == "SELECT pg_sleep(?)"
    assert culprit.place.startswith("slow_flight_risk.py:")


@pytest.mark.whole
def test_every_delay_planted_in_minilm_is_found_in_its_stage(minilm: Recorded) -> None:
    assert missed(found_shares(minilm, MINILM)) == {}


@pytest.mark.whole
@pytest.mark.parametrize("path", MINILM)
def test_the_bottleneck_of_minilm_is_what_was_planted(minilm: Recorded, path: str) -> None:
    assert bottleneck(minilm, path) is MINILM[path]


@pytest.mark.whole
def test_the_bottleneck_of_minilm_is_named_with_file_and_line(minilm: Recorded) -> None:
    culprit = make_budget(only(minilm[0], "/embed/model")).culprits_of(Stage.MODEL)[0]
    assert (culprit.label, culprit.place) == (
        "Embedder",
        line_of("embeddings = model(**tensors)", EXAMPLES / "minilm" / "pilot.py"),
    )
