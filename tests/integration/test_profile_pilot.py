"""An unmodified application under `tailcut.profile.pilot`: a known delay in each stage is found in that stage."""

from __future__ import annotations

import json
import os
import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.integration.servers import postgres_server, redis_server

from tailcut.core.profiling.attribution import attribute
from tailcut.core.profiling.flat import STAGES
from tailcut.core.profiling.functions import functions_of
from tailcut.core.profiling.records import Recording, Request, Span, Stage
from tailcut.profile.files import load_recording, save_recording
from tailcut.profile.pilot import PilotPlan, record

pytestmark = pytest.mark.integration

HERE = Path(__file__).parent
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
}

Recorded = tuple[Recording, dict[int, dict[str, float]]]
"""The recording, and nanoseconds that each request really spent in each stage where a delay is planted."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pilot")
    shutil.copy(HERE / "profile_planted.py", folder / "planted.py")
    (folder / "planted_traffic.py").write_text(
        "from itertools import cycle\n"
        f"def bodies(seed):\n    return cycle([(f'/{{name}}', {{'n': 1}}) for name in {list(ROUTES)!r}])\n"
    )
    return folder


@pytest.fixture(scope="module")
def recorded(folder: Path) -> Iterator[Recorded]:
    """Two hundred requests of all kinds, mixed, and what each of them really waited for."""
    with pytest.MonkeyPatch.context() as patch, postgres_server() as postgres, redis_server() as redis:
        patch.syspath_prepend(str(folder))
        plan = PilotPlan(
            target="planted:app",
            payloads="planted_traffic:bodies",
            path="/",
            rate=35.0,
            duration_s=6.0,
            warmup_s=1.0,
            directory=str(folder),
            environment={"NAPS": str(folder / "naps.json"), "REDIS": redis.url, "POSTGRES": postgres.url},
            overhead_rounds=0,
        )
        recording = record(plan)
        naps = {int(key): value for key, value in json.loads((folder / "naps.json").read_text()).items() if key}
        yield recording, naps


def of_route(recording: Recording, name: str) -> list[Request]:
    found = [one for one in recording.requests if one.path == f"/{name}"]
    assert len(found) >= 5
    return found


def spans_of(recording: Recording, name: str, stage: Stage) -> list[Span]:
    return [span for one in of_route(recording, name) for span in one.spans if span.stage is stage]


def test_every_planted_delay_is_found_in_its_stage(recorded: Recorded) -> None:
    recording, naps = recorded
    found = attribute(recording)
    assert (found.stage_ns.sum(axis=1) == found.flat.done_ns - found.flat.intended_ns).all()
    shares: dict[str, list[float]] = defaultdict(list)
    for place, one in enumerate(found.flat.requests):
        stage = ROUTES[one.path.strip("/")]
        really_ns = naps[one.number][stage.value]
        shares[one.path.strip("/")].append(found.stage_ns[place, STAGES.index(stage)] / really_ns)
    medians = {name: float(np.median(values)) for name, values in shares.items()}
    assert set(medians) == set(ROUTES)
    assert {name: share for name, share in medians.items() if not 0.9 <= share <= 1.1} == {}


def test_the_planted_stage_is_the_largest_of_its_route(
    recorded: Recorded,
) -> None:
    found = attribute(recorded[0])
    for name, stage in ROUTES.items():
        places = [place for place, one in enumerate(found.flat.requests) if one.path == f"/{name}"]
        largest = STAGES[int(np.median(found.stage_ns[places], axis=0).argmax())]
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
    assert {(one.label, one.place) for one in model} == {("Slow", line_of("float(model("))}
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


def test_samples_name_the_function_that_took_the_time(
    recorded: Recorded,
) -> None:
    recording, _ = recorded
    found = attribute(recording)
    shares = functions_of(found, recording, np.arange(len(found.flat.requests)))
    block = next(value for (label, _), value in shares.items() if label == "block")
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
    assert not [one for one in commands if "tailcut.profile.child" in one and "planted:app" in one], os.getpid()
