"""Work that a service hands over: named by line, charged to its function, and what removing it wins in CPU time.

What it wins in latency is in benchmarks/promises.py.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
import pytest
from tests.integration.planting import of_path, record_briefly

from tailcut.common.slo import Objectives, parse_objectives
from tailcut.load import LoadPlan, RunFacts, Samples, measure
from tailcut.profiler.attribution.background import LeftBehind, left_behind
from tailcut.profiler.attribution.budget import Budget, Culprit, make_budget
from tailcut.profiler.attribution.span_table import STAGE_AT
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.child_channel import Options
from tailcut.profiler.forecast import forecast
from tailcut.profiler.launching import PilotProcess
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import Recording, Stage
from tailcut.report.profile.json import advice_of

pytestmark = pytest.mark.integration
quiet = pytest.mark.quiet
"""CPU times that are compared from run to run need the machine for themselves."""

HERE = Path(__file__).parent
SOURCE = "profile_handing.py"
RATE = 12.0
"""Requests per second: few enough for a busy machine."""
SECONDS = 2.0
MS = 15.0
TOGETHER, TOGETHER_S = [
    "/pool", "/workers", "/background", "/background/thread", "/task", "/soon", "/thread", "/submitted",
], 6.0  # fmt: skip
"""Routes of one recording, which asks for them in turn: no test of theirs is about capacity."""
_WITHIN = 0.25
Profile = Callable[..., "Profiled"]


class Profiled(NamedTuple):
    """A route that was profiled: its recording and its budget."""

    recording: Recording
    budget: Budget


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("handing")
    shutil.copy(HERE / SOURCE, made / "handing.py")
    (made / "bodies.jsonl").write_text(json.dumps({"ms": MS}) + "\n")
    (made / "handing_traffic.py").write_text(
        "from itertools import cycle\n"
        f"def bodies(seed):\n    return cycle([(path, {{'ms': {MS}}}) for path in {TOGETHER!r}])\n"
    )
    return made


@pytest.fixture(scope="module")
def profiled(folder: Path) -> Profile:
    """Profile a route, once: in a load of its own, or in that of ``TOGETHER`` where it is one of these."""
    known: dict[str, Recording] = {}

    def profile(path: str, *, alone: bool = False) -> Profiled:
        alone = alone or path not in TOGETHER
        key = path if alone else "/"
        if key not in known:
            payloads = folder / "bodies.jsonl" if alone else "handing_traffic:bodies"
            known[key] = record_briefly(
                PilotPlan(
                    target="handing:app", path=key, payloads=str(payloads), directory=str(folder),
                    rate=RATE, duration_s=SECONDS if alone else TOGETHER_S, warmup_s=0.5, sample_s=1.0, layers=False,
                )
            )  # fmt: skip
        found = known[key]
        if not alone:
            found = msgspec.structs.replace(found, requests=tuple(of_path(found, path)))
        return Profiled(found, make_budget(found))

    return profile


@pytest.fixture
def few_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forecast with few requests: nothing here is a question of a few percent."""
    monkeypatch.setattr(forecast, "REQUESTS", 600)
    monkeypatch.setattr(forecast, "_CAPACITY_REQUESTS", 300)


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[PilotProcess]:
    """The service as it is, without profiling."""
    options = Options(target="handing:app", report=-1, profiled=False)
    with PilotProcess(options, directory=folder) as process:
        process.wait_ready(60.0)
        yield process


def asked(process: PilotProcess, folder: Path, path: str, rate: float) -> tuple[Samples, RunFacts]:
    """Ask a route, without profiling."""
    plan = LoadPlan(
        url=f"{process.url}{path}", rate=rate, duration_s=SECONDS, warmup_s=1.0, pid=process.pid,
        payloads=str(folder / "bodies.jsonl"), method="POST",
    )  # fmt: skip
    return measure(plan)


def cpu_ms(process: PilotProcess, folder: Path, path: str) -> float:
    """CPU time of a request, whatever else has the machine."""
    samples, facts = asked(process, folder, path, RATE)
    return (facts.cpu_s or 0.0) * 1e3 / int(((samples.status == 200) & (samples.intended_ns >= 1e9)).sum())


@pytest.fixture(scope="module")
def nothing_ms(plain: PilotProcess, folder: Path) -> float:
    """CPU time of a request to the route that hands nothing over."""
    return cpu_ms(plain, folder, "/plain")


def line_of(text: str) -> str:
    """The place of the line that holds a text."""
    lines = (HERE / SOURCE).read_text().splitlines()
    return f"handing.py:{next(place for place, line in enumerate(lines, 1) if text in line)}"


def culprit(found: Profiled, stage: Stage, label: str) -> Culprit:
    return next(one for one in found.budget.culprits_of(stage) if one.label == label)


def left(found: Profiled) -> list[LeftBehind]:
    recording = found.recording
    return list(left_behind(recording.background, {one.number for one in recording.requests}, recording.rate))


def test_a_process_pool_is_named_by_line_and_its_queue_apart_from_its_work(
    profiled: Profile,
) -> None:
    found = profiled("/pool")
    label = f"process pool of {line_of('ProcessPoolExecutor(1)')}"
    assert culprit(found, Stage.WAIT, label).place == line_of("app.state.pool, score")
    work = culprit(found, Stage.CODE, "score")
    assert work.place == line_of("def score(")
    spans = [span for one in found.recording.requests for span in one.spans if span.label == "score"]
    assert np.median([span.cpu_ns for span in spans]) / 1e6 == pytest.approx(MS, rel=0.05)


def test_multiprocessing_pools_are_named_too(profiled: Profile) -> None:
    found = profiled("/workers")
    assert culprit(found, Stage.CODE, "score").place == line_of("def score(")
    waits = {one.label for one in found.budget.culprits_of(Stage.WAIT)}
    assert f"process pool of {line_of('multiprocessing.Pool(1)')}" in waits


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


@quiet
@pytest.mark.parametrize(
    "path", ["/background", *(pytest.param(one, marks=pytest.mark.whole) for one in ("/task", "/soon"))]
)
def test_what_removing_work_after_the_reply_wins_in_capacity_is_what_was_promised(
    profiled: Profile, plain: PilotProcess, nothing_ms: float, folder: Path, path: str, few_requests: None
) -> None:
    """5 ms before the reply and 15 after it: a core can answer some three times as many without the latter.

    Within a limit that is far beyond what requests take, so that the capacity is what a core can compute.
    """
    advice = advice_of(profiled(path, alone=True).recording, parse_objectives("p95=1s"), None, ())
    assert advice is not None
    without = next(one for one in advice.levers if one.lever == "no background work")
    promised = without.bound_capacity / (advice.now.capacity or 1.0)
    won = cpu_ms(plain, folder, path) / nothing_ms
    assert promised == pytest.approx(won, rel=_WITHIN)


def test_a_service_that_hands_nothing_over_has_no_such_levers(profiled: Profile, few_requests: None) -> None:
    found = profiled("/plain")
    advice = advice_of(found.recording, Objectives(), None, ())
    assert advice is not None
    assert not {"no process pool", "no background work"} & {one.lever for one in advice.levers}
    assert left(found) == []
