"""A slow step of a Pipeline, a slow module, a slow transformer in a hook: named, and tried by removing it."""

from __future__ import annotations

import shutil

import msgspec
import pytest
from tests.integration.planting import HERE, of_path, record_briefly

from tailcut.profiler.attribution.budget import make_budget
from tailcut.profiler.attribution.model_steps import ModelStep
from tailcut.profiler.attribution.span_table import STAGES
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.advice import LeverAdvice, advise
from tailcut.profiler.levers.known import know
from tailcut.profiler.plan import PilotPlan
from tailcut.profiler.records import Recording, Stage

pytestmark = [pytest.mark.integration, pytest.mark.quiet]

WAITS = {Stage.NETWORK, Stage.ACCEPT, Stage.WAIT, Stage.LOCK, Stage.LOOP, Stage.GC}
PATHS = ("/pipeline", "/network", "/hook")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    folder = tmp_path_factory.mktemp("steps")
    shutil.copy(HERE / "profile_steps.py", folder / "stepwise.py")
    paths = [path + twin for path in PATHS for twin in ("", "/without")]
    (folder / "stepwise_traffic.py").write_text(
        "from itertools import cycle\n"
        f"def bodies(seed):\n    return cycle([(path, {{'n': 0.5}}) for path in {paths!r}])\n"
    )
    plan = PilotPlan(
        target="stepwise:app", payloads="stepwise_traffic:bodies", path="/", rate=16.0, duration_s=5.5, warmup_s=0.5,
        sample_s=1.0, directory=str(folder), ready_s=180.0,
    )  # fmt: skip
    return record_briefly(plan)


def line_of(text: str) -> str:
    lines = (HERE / "profile_steps.py").read_text().splitlines()
    return f"stepwise.py:{next(place for place, line in enumerate(lines, 1) if text in line)}"


def steps(recorded: Recording, path: str) -> dict[str, ModelStep]:
    return {one.label: one for one in make_budget(quiet(recorded, path)).steps}


def quiet(recorded: Recording, path: str) -> Recording:
    """The recording as if nothing but this path had been asked for, its quicker half: what the machine let alone."""
    asked = sorted(of_path(recorded, path), key=lambda one: one.done_ns - one.intended_ns)
    half = tuple(sorted(asked[: -(-len(asked) // 2)], key=lambda one: one.number))
    return msgspec.structs.replace(recorded, requests=half)


def busy_ms(recorded: Recording, path: str) -> float:
    """Mean time of a request without what it waited for: on a busy machine, that is the longer the more it computes."""
    found = attribute(quiet(recorded, path))
    counted = [place for place, stage in enumerate(STAGES) if stage not in WAITS]
    return float(found.stage_ns[:, counted].sum(axis=1).mean()) / 1e6


@pytest.fixture(scope="module")
def levers(recorded: Recording) -> dict[str, dict[str, LeverAdvice]]:
    """Advice for a path as if nothing else had been asked for: by path and lever."""
    found = {}
    for path in ("/pipeline", "/network"):
        recording = quiet(recorded, path)
        advice = advise(recording, known=know(recording, (), None, recording.rate))
        assert advice is not None
        found[path] = {one.lever: one for one in advice.levers}
    return found


@pytest.mark.parametrize(
    ("path", "label", "place", "stage"),
    [
        ("/pipeline", "ratios: add_ratios() ({})", "predict_proba(rows)", Stage.PREPROCESS),
        ("/network", "Encoder", "hidden = self.encoder(x)", Stage.MODEL),
        ("/hook", "Nystroem.transform", "kernel.transform(rows)", Stage.PREPROCESS),
    ],
)
def test_what_a_step_is_said_to_take_is_what_removing_it_wins(
    recorded: Recording, path: str, label: str, place: str, stage: Stage
) -> None:
    found = steps(recorded, path)[label.format(line_of("def add_ratios"))]
    assert (found.place, found.stage, found.per_request) == (line_of(place), stage, 1.0)
    won_ms = busy_ms(recorded, path) - busy_ms(recorded, f"{path}/without")
    assert won_ms > 1.0, "the step is large on any processor"
    assert found.mean_ms == pytest.approx(won_ms, rel=0.25)


def test_slow_preprocessing_is_named_with_its_line_and_what_replaces_it_is_not_known(
    recorded: Recording, levers: dict[str, dict[str, LeverAdvice]]
) -> None:
    lever = levers["/pipeline"]["preprocessing"]
    assert not lever.worth
    function, line = line_of("def add_ratios"), line_of("predict_proba(rows)")
    assert lever.reason.startswith(f"not known: ratios: add_ratios() ({function}) at {line} takes")
    assert "vectorise it, or move out what has no exact form in a graph" in lever.reason
    assert lever.p95_ms is None
    assert lever.bound_p95_ms < 0.9 * max(one.bound_p95_ms for one in levers["/pipeline"].values())
    # The rest of the Pipeline has one, and was timed there.
    (tried,) = [one for one in recorded.conversions if any("'ratios'" in why for why in one.refused)]
    assert tried.last == "forest: RandomForestClassifier.predict_proba"
    assert tried.graph_ms is None
    assert tried.last_graph_ms is not None
    assert "as ONNX, on a request's input" in levers["/pipeline"]["runtime"].basis[0]


def test_int8_is_not_credited_for_trees_and_is_for_a_network(
    levers: dict[str, dict[str, LeverAdvice]],
) -> None:
    of_trees = levers["/pipeline"]["INT8"]
    assert not of_trees.worth
    assert "trees and linear models have none" in of_trees.reason
    assert "prior: 1.6 times quicker" in levers["/network"]["INT8"].basis[0]


def test_a_lever_without_preprocessing_says_that_none_was_seen(
    levers: dict[str, dict[str, LeverAdvice]],
) -> None:
    assert levers["/network"]["preprocessing"].reason == "not worth it: no transformer and no tokenizer was seen"


def test_no_line_of_tailcut_s_own_stands_for_the_user_s(recorded: Recording) -> None:
    places = {span.place for one in recorded.requests for span in one.spans}
    shown = [*places, *(frame for sample in recorded.samples for frame in (*sample.stack, sample.place))]
    assert not [one for one in shown if "tailcut" in one]
