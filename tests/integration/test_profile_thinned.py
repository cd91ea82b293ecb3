"""Of a long recording some requests are traced: the profile says of the application what it would else."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.integration.planting import record_briefly

from tailcut.profiler.attribution.span_table import STAGE_AT
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.recording.trace_sampling import is_traced
from tailcut.profiler.records import Recording, Stage

pytestmark = pytest.mark.integration

APP = """
import sqlite3, time

import aiosqlite
from fastapi import Depends, FastAPI

app = FastAPI()
NAP_S = 0.006

def ask(connection):
    return connection.execute("SELECT 41 + 1").fetchone()[0]

async def asked():
    # In a thread of the driver's own.
    async with aiosqlite.connect(":memory:") as connection:
        async with connection.execute("SELECT 7") as cursor:
            return await cursor.fetchone()

@app.get("/")
def read(seven: tuple = Depends(asked)):
    connection = sqlite3.connect(":memory:")
    answer = ask(connection)
    time.sleep(NAP_S)
    return {"answer": answer}
"""


@pytest.fixture(scope="module")
def thinned(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("thinned")
    (folder / "app.py").write_text(APP)
    plan = PilotPlan(
        target="app:app", directory=str(folder), rate=90.0, duration_s=2.0, warmup_s=0.5, sample_s=0.5,
        layers=False, least_traced=90,
    )  # fmt: skip
    return record_briefly(plan)


def test_half_of_the_requests_are_in_it_with_all_that_they_did(thinned: Recording) -> None:
    numbers = [one.number for one in thinned.requests]
    assert thinned.traced == pytest.approx(1 / 2, abs=0.1)
    assert len(numbers) == pytest.approx(90, abs=35)  # Poisson arrivals, and half of them
    assert all(is_traced(number, 2) for number in numbers)
    for one in thinned.requests:
        assert {Stage.FRAMEWORK, Stage.CODE} <= {span.stage for span in one.spans}
        assert one.entered_ns >= 0
    assert any("one request in 2 was traced" in note for note in thinned.notes)


def test_what_the_others_did_is_nobodys_work_in_the_background(thinned: Recording) -> None:
    # aiosqlite connects in a thread of its own that nothing is handed to, traced or not.
    assert [one.label for one in thinned.background_calls if one.label != "connect (sqlite3)"] == []


def test_where_the_time_goes_is_what_it_would_else_be(thinned: Recording) -> None:
    """Beside a neighbour too: when its thread has no core, that is a wait."""
    found = attribute(thinned)
    code_ms = found.stage_ns[:, STAGE_AT[Stage.CODE]] / 1e6
    assert 5.9 <= float(sorted(code_ms)[len(code_ms) // 2]) < 11.0, "once, and not that of another one too"


def test_all_are_traced_where_a_recording_has_fewer(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    plan = PilotPlan(
        target="app:app", directory=str(tmp_path), rate=40.0, duration_s=0.5, warmup_s=0.2, sample_s=0.2,
        layers=False,
    )  # fmt: skip
    found = record_briefly(plan)
    assert found.traced == 1.0
    assert (found.one_in, found.untraced) == (1, ())
    assert not any("was traced" in note for note in found.notes)
