"""Databases on the application's own machine: seen by their processes, and given its cores in what is foretold."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from tests.unit.profiler.levers.test_levers import pilot

from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.known import LeverAssumptions
from tailcut.profiler.levers.work import read_work
from tailcut.profiler.pilot import computed_between_s, computed_ns
from tailcut.profiler.records import Recording


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


@pytest.mark.parametrize(
    ("share", "cores", "expected"), [(0.5, 0, 1e3 / 4.3), (0.9, 0, 1e3 / 6.7), (0.9, 1, 1e3 / 1.3)]
)
def test_a_database_on_the_machine_takes_of_its_cores_where_it_has_none_of_its_own(
    share: float, cores: int, expected: float
) -> None:
    """1.3 ms of the application's and a share of 6 ms of the database's make a request."""
    recording = with_database(share, cores=cores)
    assert read_work(recording, attribute(recording), LeverAssumptions()).capacity == pytest.approx(expected, rel=0.05)
