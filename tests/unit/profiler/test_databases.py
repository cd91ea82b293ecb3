"""Databases on the application's own machine: seen by their processes, and given its cores in what is foretold."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.unit.profiler import profile_sample
from tests.unit.profiler.levers.test_levers import pilot

from tailcut.common.slo import parse_objectives
from tailcut.profiler.databases import computed_between_s, computed_ns
from tailcut.profiler.forecast.state import Known
from tailcut.profiler.levers import advice as advices
from tailcut.profiler.levers.advice import Advice, advise
from tailcut.profiler.records import Recording

pytestmark = pytest.mark.slow

few_requests = profile_sample.few_requests(800, 1500)


@pytest.fixture(autouse=True)
def no_levers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecast the service as it is: no test here asks what a lever would win."""
    monkeypatch.setattr(advices, "LEVERS", ())
    monkeypatch.setattr(advices, "own_levers", lambda *_: ())


def process(proc: Path, number: int, name: str, cpu_ns: int) -> None:
    (proc / str(number)).mkdir(exist_ok=True)
    (proc / str(number) / "comm").write_text(f"{name}\n")
    (proc / str(number) / "schedstat").write_text(f"{cpu_ns} 17 3\n")


def test_the_processes_of_databases_are_found_by_name(tmp_path: Path) -> None:
    process(tmp_path, 7, "postgres", 5_000)
    process(tmp_path, 8, "mysqld", 7_000)
    process(tmp_path, 9, "python", 1_000_000)
    (tmp_path / "self").mkdir()
    (tmp_path / "10").mkdir()  # ended while it was looked at
    assert computed_ns(tmp_path) == {7: 5_000, 8: 7_000}


def test_what_began_meanwhile_counts_and_what_ended_does_not(tmp_path: Path) -> None:
    process(tmp_path, 7, "postgres", 2_000_000_000)
    process(tmp_path, 8, "postgres", 1_000_000_000)
    before = computed_ns(tmp_path)
    process(tmp_path, 7, "postgres", 2_500_000_000)
    process(tmp_path, 11, "postgres", 250_000_000)
    for name in ("comm", "schedstat"):
        (tmp_path / "8" / name).unlink()
    assert computed_between_s(before, computed_ns(tmp_path)) == pytest.approx(0.75)


def with_database(share: float, *, cores: int = 0) -> Recording:
    """Queries of 6 ms, of which a database on the machine computed a share."""
    recording = pilot(sql_ms=6.0, model_ms=1.0)
    found = msgspec.structs.replace(
        recording.pilot, database_s=share * 0.006 * len(recording.requests), other_cores=cores, hooks=("psycopg",)
    )
    return msgspec.structs.replace(recording, pilot=found)


def advice(recording: Recording, known: Known | None = None) -> Advice:
    found = advise(recording, known=known or Known(), slo=parse_objectives("p95=100ms"))
    assert found is not None
    return found


def test_a_database_on_the_machine_takes_of_its_cores() -> None:
    """One core: 1.2 ms of the application's and 0.5 or 0.9 times 6 ms of the database's make a request."""
    elsewhere, half, most = (advice(with_database(share)).now.capacity or 0.0 for share in (0.0, 0.5, 0.9))
    assert elsewhere > 600.0
    assert half == pytest.approx(1e3 / (1.2 + 3.0), rel=0.2)
    assert most == pytest.approx(1e3 / (1.2 + 5.4), rel=0.2)


def test_cores_that_the_application_may_not_use_are_the_databases() -> None:
    own, others = (advice(with_database(0.9, cores=cores)).now.capacity or 0.0 for cores in (0, 1))
    assert others > 1.4 * own


def test_what_is_taken_for_true_of_the_database_is_said() -> None:
    (note,) = [one for one in advice(with_database(0.5)).notes if "database" in one]
    assert note.startswith(
        "databases on this machine computed 3.00 ms a request, on cores that the application has too"
    )
    (note,) = [one for one in advice(with_database(0.0)).notes if "database" in one]
    assert note == "no database is seen to compute on this machine: it is taken to have cores enough elsewhere"


def test_what_the_caller_knows_of_the_database_stays() -> None:
    known = Known(database_cores=64, database_share=1.0)
    assert (advice(with_database(0.9), known).now.capacity or 0.0) > 600.0


def test_housekeeping_is_no_work() -> None:
    assert advice(with_database(0.01)).now.capacity == advice(with_database(0.0)).now.capacity
