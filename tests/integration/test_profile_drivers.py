"""Real drivers under the profile's hooks, and a model that a worker runs behind a queue."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.planting import HERE, record_briefly
from tests.integration.servers import postgres_server

from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import Stage

pytestmark = pytest.mark.integration

Found = dict[str, list[tuple[str, str, bool]]]


@pytest.fixture(scope="module")
def said() -> Iterator[dict[str, Any]]:
    with postgres_server() as postgres:
        child = subprocess.run(
            [sys.executable, str(HERE / "profile_drivers.py")],
            env={**os.environ, "POSTGRES": postgres.url}, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert child.returncode == 0, child.stderr
        yield json.loads(child.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def found(said: dict[str, Any]) -> Found:
    assert said["notes"] == []
    return {name: [(stage, label, more) for stage, label, more in spans] for name, spans in said["found"].items()}


def labels(found: Found, part: str) -> list[str]:
    return [label for stage, label, _ in found[part] if stage == "sql"]


def test_connections_and_transactions_are_the_databases_time(found: Found) -> None:
    assert labels(found, "psycopg")[:3] == ["connect (psycopg)", "BEGIN", "SELECT generate_series(1, %s)"]
    assert labels(found, "psycopg").count("COMMIT") == 2
    assert labels(found, "async psycopg")[:4] == ["connect (psycopg)", "BEGIN", "SELECT 1", "COMMIT"]
    assert labels(found, "asyncpg")[:2] == ["connect (asyncpg)", "BEGIN;"]
    assert labels(found, "sqlalchemy")[0] == "connect (pysqlite)"
    assert labels(found, "aiosqlite")[:2] == ["connect (aiosqlite)", "SELECT 1"]


def test_pages_of_a_server_cursor_are_more_of_its_query(found: Found) -> None:
    pages = [(label, more) for _, label, more in found["psycopg"] if "AS n" in label]
    assert pages[0] == ("SELECT generate_series(1, %s) AS n", False)
    assert len(pages) == 4
    assert set(pages[1:]) == {("SELECT generate_series(1, $1) AS n", True)}
    pages = [(label, more) for _, label, more in found["async psycopg"] if "AS n" in label]
    assert [more for _, more in pages] == [False, True]


def test_asyncpgs_cursors_and_prepared_statements_are_seen(found: Found) -> None:
    cursor = [(label, more) for _, label, more in found["asyncpg"] if "generate_series" in label]
    query = "SELECT generate_series(1, 100)"
    assert cursor == [(f"PREPARE {query}", False), (query, False), (query, True)]
    assert [label for label in labels(found, "asyncpg") if "$1" in label] == [
        "PREPARE SELECT $1::int", "SELECT $1::int",
    ]  # fmt: skip


def test_rows_behind_sqlalchemy_have_their_querys_name(found: Found) -> None:
    assert all(labels(found, "sqlalchemy"))
    read = [more for _, label, more in found["sqlalchemy"] if label.startswith("SELECT a.x")]
    assert read in ([False], [False, True])


@pytest.mark.parametrize("part", ["async sqlalchemy", "parameters", "awaited parameters"])
def test_the_line_that_asks_is_known(said: dict[str, Any], part: str) -> None:
    """Also behind SQLAlchemy's asyncio, where the line that awaits is in another greenlet."""
    selects = [place for label, place in said["places"][part] if label.startswith("SELECT")]
    assert len(selects) == 3
    assert all(place.rpartition(":")[0].endswith("profile_drivers.py") for place in selects)


def test_the_standard_librarys_clients_are_seen(found: Found) -> None:
    for part, path in (("http.client", "/a"), ("urllib", "/b")):
        assert {stage for stage, _, _ in found[part]} == {"http"}
        assert {label.partition("127.0.0.1:")[2].lstrip("0123456789") for _, label, _ in found[part]} == {path}
        assert [more for _, _, more in found[part]] == [False] + [True] * (len(found[part]) - 1)


BATCHING = """
import asyncio
from contextlib import asynccontextmanager

import torch
from fastapi import FastAPI

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(64, 64)

    def forward(self, x):
        for _ in range(20):
            x = self.inner(x)
        return x

torch.set_num_threads(1)
net = Net().eval()

async def work(queue):
    while True:
        future = await queue.get()
        with torch.inference_mode():
            future.set_result(float(net(torch.zeros(2, 64)).sum()))

@asynccontextmanager
async def lifespan(app):
    net(torch.zeros(1, 64))
    app.state.queue = asyncio.Queue()
    worker = asyncio.create_task(work(app.state.queue))
    yield
    worker.cancel()

app = FastAPI(lifespan=lifespan)

@app.get("/predict")
async def predict() -> float:
    future = asyncio.get_running_loop().create_future()
    await app.state.queue.put(future)
    return await future
"""


def test_a_model_behind_a_queue_is_told_and_timed(tmp_path: Path) -> None:
    (tmp_path / "batching.py").write_text(BATCHING)
    plan = PilotPlan(
        target="batching:app", rate=10.0, duration_s=1.5, warmup_s=0.3, sample_s=0.2,
        directory=str(tmp_path),
    )  # fmt: skip
    recording = record_briefly(plan)
    assert not [span for one in recording.requests for span in one.spans if span.stage is Stage.MODEL]
    (stray,) = [one for one in recording.background_calls if one.stage is Stage.MODEL]
    assert (stray.label, stray.took_ns > 0) == ("Net", True)
    assert abs(stray.calls - len(recording.requests) * (1.8 / 1.5)) <= 8
    assert any(note.startswith(f"Net ran {stray.calls} times") for note in recording.notes)
    # Of what a request asked for: the two rows, not the one that it was warmed up with.
    (layers,) = recording.layers
    assert "[2, 64]" in layers.inputs
