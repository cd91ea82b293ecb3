"""An unmodified application under `tailcut.profiler.pilot`: a known delay in each stage is found in that stage."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.integration.planting import HERE, Recorded, found_shares, missed, of_path, only, record_planted
from tests.integration.servers import postgres_server, redis_server

from tailcut.profiler.attribution.functions import functions_of
from tailcut.profiler.attribution.span_table import STAGES
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.records import RecordedRequest, RecordedSpan, Recording, Stage, load_recording, save_recording

pytestmark = pytest.mark.integration

ROUTES = {
    "sqlite": Stage.SQL,
    "psycopg": Stage.SQL,
    "asyncpg": Stage.SQL,
    "redis": Stage.CACHE,
    "aredis": Stage.CACHE,
    "http": Stage.HTTP,
    "gather": Stage.HTTP,
    "model": Stage.MODEL,
    "block": Stage.CODE,
    "render": Stage.ENCODE,
    "serialise": Stage.ENCODE,
    "validate": Stage.DECODE,
    "lock": Stage.LOCK,
    "alock": Stage.LOCK,
    "dependency": Stage.CODE,
    "pool": Stage.WAIT,
    "executor": Stage.CODE,
    "to-thread": Stage.SQL,
    "result": Stage.SQL,
}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    """Nine requests of each kind, mixed, and what each of them really waited for."""
    with postgres_server() as postgres, redis_server() as redis:
        yield record_planted(
            tmp_path_factory.mktemp("pilot"),
            "planted",
            [f"/{name}" for name in ROUTES],
            {"n": 1},
            rate=35.0,
            duration_s=5.0,
            sample_s=2.0,
            environment={"REDIS": redis.url, "POSTGRES": postgres.url},
        )


def of_route(recording: Recording, name: str) -> list[RecordedRequest]:
    return of_path(recording, f"/{name}")


def spans_of(recording: Recording, name: str, stage: Stage) -> list[RecordedSpan]:
    """Connections are made by the way, where a thread or a pool has none yet."""
    spans = (span for one in of_route(recording, name) for span in one.spans if span.stage is stage)
    return [span for span in spans if not span.label.startswith("connect (")]


def test_every_planted_delay_is_found_in_its_stage(recorded: Recorded) -> None:
    assert missed(found_shares(recorded, {f"/{name}": stage for name, stage in ROUTES.items()})) == {}


def test_the_planted_stage_is_the_largest_of_its_route(recorded: Recorded) -> None:
    for name, stage in ROUTES.items():
        found = attribute(only(recorded[0], f"/{name}"))
        largest = STAGES[int(np.median(found.stage_ns, axis=0).argmax())]
        # In these two, what is waited for is done by the same request elsewhere.
        assert largest is stage or name in {"pool", "lock"}, (name, largest)


def test_spans_say_what_and_where(recorded: Recorded) -> None:
    recording, _ = recorded
    lines = (HERE / "profile_planted.py").read_text().splitlines()

    def line_of(text: str) -> str:
        return f"planted.py:{next(place for place, line in enumerate(lines, 1) if text in line)}"

    sql = spans_of(recording, "sqlite", Stage.SQL)[0]
    assert (sql.label, sql.place) == ("SELECT nap(0.005)", line_of("SELECT nap(0.005)"))
    assert spans_of(recording, "asyncpg", Stage.SQL)[0].label == "SELECT pg_sleep(0.005)"
    assert spans_of(recording, "redis", Stage.CACHE)[0].label.startswith("BLPOP")
    assert spans_of(recording, "http", Stage.HTTP)[0].label.endswith("/upstream")
    assert spans_of(recording, "http", Stage.HTTP)[0].label.startswith("GET http://127.0.0.1:")
    model = spans_of(recording, "model", Stage.MODEL)
    assert {(one.label, one.place) for one in model} == {
        ("Slow", line_of("float(model(")),
        ("Linear", line_of("return self.inner(x)")),
    }
    encode = [one for one in spans_of(recording, "render", Stage.ENCODE) if one.label == "SlowResponse.render"]
    assert {one.place for one in encode} == {line_of("def render(self")}
    lock = spans_of(recording, "lock", Stage.LOCK)[0]
    assert lock.label == f"threading.Lock of {line_of('lock = threading.Lock()')}"
    # A function's place is where its decorators begin.
    assert {one.endpoint for one in of_route(recording, "block")} == {"block (" + line_of('post("/block")') + ")"}


def test_side_by_side_calls_stay_side_by_side(recorded: Recorded) -> None:
    for one in of_route(recorded[0], "gather"):
        calls = [span for span in one.spans if span.stage is Stage.HTTP]
        assert len(calls) == 3
        assert max(call.start_ns for call in calls) < min(call.end_ns for call in calls)


def test_what_blocks_the_loop_is_named(recorded: Recorded) -> None:
    recording, _ = recorded
    blocks = {one.number for one in of_route(recording, "block")}
    moments = [one for one in recording.moments if one.stage is Stage.LOOP and one.request in blocks]
    assert len(moments) >= len(blocks)
    long = [one for one in moments if one.end_ns - one.start_ns > 19_000_000]
    assert {one.request for one in long} == blocks
    named = [one for one in long if one.label == "block" and one.place.startswith("planted.py:")]
    assert len(named) == len(long)


def test_samples_name_the_function_that_took_the_time(recorded: Recorded) -> None:
    recording, _ = recorded
    block = next(value for (label, _), value in functions_of(recording).items() if label == "block")
    assert block[0].function.startswith("nap (planted.py:")
    assert any("hook (planted.py" in frame for one in recording.samples for frame in one.stack)


def test_a_recording_goes_through_a_file(recorded: Recorded, tmp_path: Path) -> None:
    save_recording(recorded[0], tmp_path / "it.tailcut")
    assert load_recording(tmp_path / "it.tailcut") == recorded[0]


def test_everything_was_hooked(recorded: Recorded) -> None:
    recording, _ = recorded
    assert not [note for note in recording.notes if "hooked" in note]
    assert {"fastapi", "sqlite3", "psycopg", "psycopg_pool", "asyncpg", "redis", "httpx", "torch"} <= set(
        recording.pilot.hooks
    )


def test_nothing_is_left_running(recorded: Recorded) -> None:
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                commands.append((entry / "cmdline").read_text())
            except OSError:
                continue
    assert not [one for one in commands if "tailcut.profiler.recording.child" in one and "planted:app" in one], (
        os.getpid()
    )
