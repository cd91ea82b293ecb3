"""Work that a service hands over: named by line, and charged to its function."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest
from tests.integration.planting import of_path, record_briefly

from tailcut.profiler.attribution.budget import Budget, Culprit, make_budget
from tailcut.profiler.attribution.span_table import STAGE_AT
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.work import outside_words
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
def recording(folder: Path) -> Recording:
    """All routes profiled, once."""
    return record_briefly(
        PilotPlan(
            target="handing:app", path="/", payloads="handing_traffic:bodies", directory=str(folder),
            rate=RATE, duration_s=SECONDS, warmup_s=0.5, sample_s=1.0, layers=False,
        )
    )  # fmt: skip


@pytest.fixture(scope="module")
def profiled(recording: Recording) -> Profile:
    """One route of it."""

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


@pytest.mark.parametrize("path", ["/background", "/task", "/soon"])
def test_work_after_the_reply_is_no_part_of_the_request(profiled: Profile, path: str) -> None:
    """Neither the handler nor the framework has it: where nothing else had the cores, they took 5 ms."""
    places = [STAGE_AT[Stage.CODE], STAGE_AT[Stage.FRAMEWORK]]
    assert attribute(profiled(path).recording).stage_ns[:, places].sum(axis=1).min() / 1e6 < 10.0


@pytest.mark.quiet  # where others have the cores, the handlers' wait for one counts as theirs, and less is left
def test_what_is_computed_outside_of_requests_is_one_number(recording: Recording) -> None:
    """After the reply in six routes of nine, in worker processes in two; with a function that held the event loop."""
    (note,) = outside_words(recording, attribute(recording))
    assert float(note.partition(" ms of CPU")[0]) == pytest.approx(MS * 8 / 9, rel=0.35)
    assert any(f"held longest by {name} (handing.py:" in note for name in ("follow_up", "audit"))
