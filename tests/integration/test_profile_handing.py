"""Work that a service hands over: named by line, and charged to its function."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.integration.planting import of_path, record_briefly

from tailcut.profiler.attribution.background import LeftBehind, left_behind
from tailcut.profiler.attribution.budget import Budget, Culprit, make_budget
from tailcut.profiler.attribution.span_table import STAGE_AT
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import Recording, Stage

pytestmark = pytest.mark.integration


HERE = Path(__file__).parent
SOURCE = "profile_handing.py"
RATE = 12.0
"""Requests per second: few enough for a busy machine."""

MS = 15.0
ROUTES, SECONDS = [
    "/plain", "/pool", "/workers", "/background", "/background/thread", "/task", "/soon", "/thread", "/submitted",
], 6.5  # fmt: skip
"""Of one recording, which asks for them in turn."""

Profile = Callable[..., "Profiled"]


class Profiled(NamedTuple):
    """A route that was profiled: its recording and its budget."""

    recording: Recording
    budget: Budget


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("handing")
    shutil.copy(HERE / SOURCE, made / "handing.py")
    (made / "handing_traffic.py").write_text(
        "from itertools import cycle\n"
        f"def bodies(seed):\n    return cycle([(path, {{'ms': {MS}}}) for path in {ROUTES!r}])\n"
    )
    return made


@pytest.fixture(scope="module")
def profiled(folder: Path) -> Profile:
    """Profile all routes, once."""
    recording = record_briefly(
        PilotPlan(
            target="handing:app", path="/", payloads="handing_traffic:bodies", directory=str(folder),
            rate=RATE, duration_s=SECONDS, warmup_s=0.5, sample_s=1.0, layers=False,
        )
    )  # fmt: skip

    def profile(path: str) -> Profiled:
        found = msgspec.structs.replace(recording, requests=tuple(of_path(recording, path)))
        return Profiled(found, make_budget(found))

    return profile


def line_of(text: str) -> str:
    """The place of the line that holds a text."""
    lines = (HERE / SOURCE).read_text().splitlines()
    return f"handing.py:{next(place for place, line in enumerate(lines, 1) if text in line)}"


def culprit(found: Profiled, stage: Stage, label: str) -> Culprit:
    return next(one for one in found.budget.culprits_of(stage) if one.label == label)


def left(found: Profiled) -> list[LeftBehind]:
    recording = found.recording
    return list(left_behind(recording.background, {one.number for one in recording.requests}, recording.rate))


@pytest.mark.parametrize(
    ("path", "made", "line"),
    [
        ("/pool", "ProcessPoolExecutor(1)", "app.state.pool, score"),
        ("/workers", "multiprocessing.Pool(1)", "workers.apply(score"),
    ],
)
def test_the_wait_for_a_process_pool_is_named_by_line(profiled: Profile, path: str, made: str, line: str) -> None:
    """Until the result is there: what the worker does is not seen."""
    found = profiled(path)
    label = f"process pool of {line_of(made)}"
    assert culprit(found, Stage.WAIT, label).place == line_of(line)
    spans = [span for one in found.recording.requests for span in one.spans if span.label == label]
    assert len(spans) == len(found.recording.requests)
    assert min(span.end_ns - span.start_ns for span in spans) / 1e6 >= MS


@pytest.mark.parametrize(
    ("path", "label", "line", "where"),
    [
        ("/background", "notify", "async def notify(", "loop"),
        ("/background/thread", "audit", "def audit(", "thread"),
        ("/task", "follow_up", "async def follow_up(", "loop"),
        ("/soon", "audit", "def audit(", "loop"),
        ("/thread", "audit", "def audit(", "thread"),
        ("/submitted", "audit", "def audit(", "thread"),
    ],
)
def test_work_after_the_reply_is_charged_to_its_function(
    profiled: Profile, path: str, label: str, line: str, where: str
) -> None:
    found = profiled(path)
    mine = [one for one in left(found) if one.label == label]
    assert [(one.place, one.where) for one in mine] == [(line_of(line), where)]
    assert mine[0].cpu_ms == pytest.approx(MS, rel=0.15)
    if where == "loop":
        # Neither the handler nor the framework has it: where nothing else had the cores, they took 5 ms. A thread
        # shares the interpreter with them, so that they take longer beside it.
        places = [STAGE_AT[Stage.CODE], STAGE_AT[Stage.FRAMEWORK]]
        assert attribute(found.recording).stage_ns[:, places].sum(axis=1).min() / 1e6 < 10.0


def test_a_service_that_hands_nothing_over_leaves_nothing(profiled: Profile) -> None:
    assert left(profiled("/plain")) == []
