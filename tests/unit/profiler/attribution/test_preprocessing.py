"""Steps of models in a recording, and the levers that rest on what was measured of each."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.profiler.profile_sample import MS

from tailcut.profiler.attribution.budget import make_budget
from tailcut.profiler.attribution.layers import Conversion, ModelLayers, operators_of
from tailcut.profiler.attribution.model_steps import STEPS
from tailcut.profiler.attribution.span_table import STAGE_AT
from tailcut.profiler.attribution.stages import attribute
from tailcut.profiler.levers.advice import LeverAdvice, advise
from tailcut.profiler.levers.known import LeverAssumptions, know
from tailcut.profiler.levers.work import End, LeverName, pull, read_work
from tailcut.profiler.records import (
    ProfiledProcess,
    RecordedRequest,
    RecordedSpan,
    Recording,
    Stage,
)
from tailcut.report.profile.document import steps_table

PIPELINE, LAST = "Pipeline.predict", "clf: LGBMClassifier.predict"
COLUMNS, WORDS = "pre: ColumnTransformer.transform", "pre > words: OneHotEncoder.transform"


def piped(
    columns_ms: float = 4.0, words_ms: float = 1.5, last_ms: float = 0.5, own_ms: float = 0.2, count: int = 40
) -> Recording:
    """Requests of 1 ms beside a Pipeline of such steps; the encoder's time lies in that of the columns."""
    requests = []
    for number in range(count):
        sent = number * 100 * MS
        began = sent + MS // 2
        length = int((columns_ms + last_ms + own_ms) * MS)
        first, second = began + int(columns_ms * MS), began + int((columns_ms + last_ms) * MS)
        parts = [
            (Stage.CODE, "predict", "app.py:3", -1, began, began + length),
            (Stage.MODEL, PIPELINE, "app.py:4", 0, began, began + length),
            (Stage.PREPROCESS, COLUMNS, "app.py:4", 1, began, first),
            (Stage.PREPROCESS, WORDS, "app.py:4", 2, began, began + int(words_ms * MS)),
            (Stage.MODEL, LAST, "app.py:4", 1, first, second),
        ]
        spans = tuple(
            RecordedSpan(
                stage=stage, label=label, place=place, parent=parent, start_ns=start, end_ns=end, cpu_ns=end - start
            )
            for stage, label, place, parent, start, end in parts
        )
        end = began + length + MS // 2
        requests.append(
            RecordedRequest(
                number=number,
                intended_ns=sent,
                sent_ns=sent,
                done_ns=end,
                entered_ns=began,
                left_ns=began + length,
                status=200,
                spans=spans,
            )
        )
    libraries = {PIPELINE: "sklearn", COLUMNS: "sklearn", WORDS: "sklearn", LAST: "lightgbm"}
    return Recording(
        target="app:app", rate=10.0, duration_s=count / 10, requests=tuple(requests), machine={"cores": "2"},
        pilot=ProfiledProcess(loop="uvloop", libraries=libraries),
    )  # fmt: skip


CONVERTED = Conversion(
    model=PIPELINE, last=LAST, steps=(COLUMNS, LAST, WORDS), run_ms=4.0, last_ms=0.4, graph_ms=0.13, last_graph_ms=0.04
)


def tried(*conversions: Conversion, **times: float) -> Recording:
    return msgspec.structs.replace(piped(**times), conversions=conversions)


def levers_of(recording: Recording) -> dict[str, LeverAdvice]:
    found = advise(recording, known=know(recording, (), None, recording.rate))
    assert found is not None
    return {one.lever: one for one in found.levers}


def known_of(recording: Recording) -> LeverAssumptions:
    return know(recording, (), None, recording.rate)


def left_ms(recording: Recording, lever: LeverName, end: End) -> float:
    """Milliseconds of models and preprocessing in a request that a lever leaves."""
    known = known_of(recording)
    work = pull(read_work(recording, attribute(recording), known), lever, known, end)
    return float(work.stage_ns[:, [STAGE_AT[stage] for stage in STEPS]].sum(axis=1).mean()) / 1e6


def test_steps_stand_below_what_calls_them_with_all_of_their_time_and_their_own() -> None:
    shown = [(one.label, one.depth, round(one.mean_ms, 2), round(one.own_ms, 2)) for one in make_budget(piped()).steps]
    assert shown == [(PIPELINE, 0, 4.7, 0.2), (COLUMNS, 1, 4.0, 2.5), (WORDS, 2, 1.5, 1.5), (LAST, 1, 0.5, 0.5)]
    rows = steps_table(make_budget(piped())).rows
    assert [row[-1] for row in rows] == [f"{'  ' * depth}{label} at app.py:4" for label, depth, *_ in shown]


def test_a_recording_keeps_what_was_converted() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(tried(CONVERTED)), type=Recording).conversions == (CONVERTED,)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(0.01, 9.0), min_size=4, max_size=4))
def test_what_steps_take_themselves_adds_up_to_what_their_stages_take(times: list[float]) -> None:
    columns, words, last, own = times
    recording = piped(columns_ms=columns + words, words_ms=words, last_ms=last, own_ms=own, count=4)
    found = attribute(recording)
    whole = sum(found.stage_ns[:, STAGE_AT[stage]].sum() for stage in STEPS) / 4 / 1e6
    steps = make_budget(recording, None, found).steps
    assert sum(one.own_ms for one in steps) == pytest.approx(whole)
    assert all(one.mean_ms >= one.own_ms - 1e-9 for one in steps)
    assert steps[0].mean_ms == pytest.approx(whole)


def test_slow_preprocessing_that_has_a_form_in_the_graph_leaves_what_was_measured_there() -> None:
    lever = levers_of(tried(CONVERTED))["preprocessing"]
    assert lever.worth
    assert lever.reason.startswith(
        f"{COLUMNS} at app.py:4 takes 4 ms of a request, 70%: move it into the graph (`tailcut build`), where"
        " 0.1 ms are left of it, measured here; p95"
    )
    advice = advise(tried(CONVERTED), known=know(tried(CONVERTED), (), None, 10.0))
    assert advice is not None
    assert f"preprocessing: {lever.reason}" in advice.summary
    # 3.6 ms beside the last step are 0.09 in the graph: 4 ms get 0.1.
    assert left_ms(tried(CONVERTED), "preprocessing", "best") == pytest.approx(4.7 - 3.9, abs=0.01)
    assert left_ms(tried(CONVERTED), "preprocessing", "bound") == pytest.approx(4.7 - 4.0, abs=0.01)


def test_what_preprocessing_without_a_known_replacement_takes_then_is_not_known() -> None:
    """It has a bound, and no place in the order: that it would take 0 ms is not known."""
    lever = levers_of(piped())["preprocessing"]
    assert not lever.worth
    assert lever.reason.startswith("not known: ")
    assert "vectorise it, or move it into the graph if `tailcut build` converts it" in lever.reason
    assert lever.basis == (f"{COLUMNS}: 4 ms measured, what is left is not known",)
    assert lever.bound_p95_ms == pytest.approx(1.7, abs=0.1)
    assert lever.p95_ms is None


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        ("step 'pre' > 'words' (OneHotEncoder): why", "vectorise it, or move out what has no exact form in a graph"),
    ],
)
def test_a_step_without_a_form_says_so(refused: str, words: str) -> None:
    conversion = Conversion(
        model=PIPELINE, last=LAST, steps=(COLUMNS, LAST), run_ms=4.0, last_ms=0.4, refused=(refused,)
    )
    lever = levers_of(tried(conversion))["preprocessing"]
    assert words in lever.reason
    assert f"no exact form in a graph: {refused}" in lever.basis


def test_little_preprocessing_is_no_lever() -> None:
    lever = levers_of(piped(columns_ms=0.2, words_ms=0.1, last_ms=9.0))["preprocessing"]
    assert not lever.worth
    assert lever.reason == f"not worth it: {COLUMNS} at app.py:4 is 1.9% of the time"


def test_the_runtime_wins_of_each_step_what_was_measured_of_it() -> None:
    runtime = levers_of(tried(CONVERTED))["runtime"]
    # The last step 0.5 -> 0.05, what the Pipeline does itself 0.2 -> 0.005; the columns are another lever's.
    assert left_ms(tried(CONVERTED), "runtime", "best") == pytest.approx(4.7 - 0.645, abs=0.01)
    assert f"{LAST} 10 times (measured: 0.4 ms a call, 0.04 as ONNX, on a request's input)" in runtime.basis[0]


def test_int8_is_credited_to_no_trees_and_to_no_model_without_products() -> None:
    assert levers_of(piped())["INT8"].reason.startswith("not worth it: INT8 speeds up products with large matrices")
    recording = piped(last_ms=20.0)
    libraries = {**recording.pilot.libraries, LAST: "onnxruntime"}
    pilot = ProfiledProcess(loop="uvloop", libraries=libraries)
    trees = ModelLayers(
        model=LAST, runtime="onnxruntime", inputs="", runs=9, run_ms=20.0, profiled_ms=20.0, layers=(),
        operators=operators_of([("TreeEnsemble", 1, 19.0), ("MatMul", 1, 1.0)]),
    )  # fmt: skip
    recording = msgspec.structs.replace(recording, pilot=pilot)
    assert "prior: 1.5" in levers_of(recording)["INT8"].basis[0]
    said = levers_of(msgspec.structs.replace(recording, layers=(trees,)))["INT8"]
    assert said.reason.startswith("not worth it: ")
    assert "products with weights, 5% of the operators' time" in said.reason
