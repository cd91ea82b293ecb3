"""build: scoring, parity, race and verdicts, with stub runtimes and a fake clock."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tailcut import gate
from tailcut.builder import Holdout, host_capabilities, steps
from tailcut.builder.holdouts.labels import Coding
from tailcut.builder.quality import export_check, judging, scoring
from tailcut.common.tensors import Arrays
from tailcut.errors import BuildError
from tailcut.manifest import Manifest, TensorSpec
from tailcut.manifest.reading import read
from tailcut.registry import read_machine
from tailcut.testing.runtimes import StubRuntime

ROWS = 600
X = np.linspace(0, 1, ROWS, dtype=np.float32)
HOLDOUT = Holdout(inputs={"x": X}, labels=(X > 0.3).astype(np.int64))
P = TensorSpec(name="p", shape=(-1,))
TAGS, SHARES = [[0, 1, 1], [1, 0, 0]], [[0.3, 0.2, 0.5], [0.5, 0.5, 0.0]]


def identity(inputs: Arrays) -> Arrays:
    return {"p": inputs["x"]}


# -- Scoring ---------------------------------------------------------------------------------------------------------


def test_scores_run_every_row_once_in_order() -> None:
    stub = StubRuntime(lambda inputs: {"p": inputs["x"][:, None]})
    np.testing.assert_array_equal(scoring.scores(stub, HOLDOUT, "p"), X)
    assert stub.rows == [256, 256, 88]


def ragged(rows: int = 100, width: int = 128) -> Holdout:
    """Rows of 1 to ``width`` tokens in mixed order; each row's id is its number, wherever it is not padding."""
    lengths = np.random.default_rng(0).permutation(np.linspace(1, width, rows).astype(np.int64))
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    ids = np.arange(rows)[:, None] * mask
    return Holdout(inputs={"ids": ids, "mask": mask}, padding="mask")


def test_scores_of_padded_rows_run_by_length_and_come_back_in_order() -> None:
    rows = ragged()
    stub = StubRuntime(lambda inputs: {"p": inputs["ids"].max(axis=1).astype(np.float32)})
    np.testing.assert_array_equal(scoring.scores(stub, rows, "p"), np.arange(100))
    assert stub.rows == [32, 32, 32, 4]
    assert [batch["mask"].shape[1] for batch in stub.batches] == [48, 96, 128, 128]
    lengths = np.concatenate([batch["mask"].sum(axis=1) for batch in stub.batches])
    assert (np.diff(lengths) >= 0).all()


def test_scores_of_padded_rows_name_the_row_as_the_holdout_numbers_it() -> None:
    stub = StubRuntime(lambda inputs: {"p": np.where(inputs["ids"].max(axis=1) == 7, np.nan, 0)})
    with pytest.raises(BuildError, match=r"NaN or infinite in 1 of 100 holdout rows, first in row 7\n"):
        scoring.scores(stub, ragged(), "p")


def test_scores_per_token_are_filled_up_to_the_longest_row() -> None:
    rows = ragged()
    stub = StubRuntime(lambda inputs: {"p": inputs["ids"][:, :, None] * np.ones(2, np.float32)})
    found = scoring.scores(stub, rows, "p")
    assert found.shape == (100, 128, 2)
    np.testing.assert_array_equal(found[:, :, 0], rows.inputs["ids"])


def test_rows_of_a_padded_holdout_without_any_value_are_scored_too() -> None:
    rows = Holdout(inputs={"mask": np.zeros((3, 32), np.int64)}, padding="mask")
    stub = StubRuntime(lambda inputs: {"p": np.ones(len(inputs["mask"]), np.float32)})
    np.testing.assert_array_equal(scoring.scores(stub, rows, "p"), np.ones(3))


def test_scores_that_are_nan_name_the_row() -> None:
    with pytest.raises(BuildError, match=r"NaN or infinite in 1 of 600 holdout rows, first in row 599"):
        scoring.scores(StubRuntime(lambda inputs: {"p": np.where(inputs["x"] == 1, np.nan, 0)}), HOLDOUT, "p")


@pytest.mark.parametrize(
    ("labels", "found", "budget", "names"),
    [
        ([0, 1, 1], [0.1, 0.2, 0.3], {}, ("auc", "log_loss", "accuracy")),
        ([0, 1, 1], [0.1, 0.2, 0.3], {"f1": 0.1}, ("auc", "log_loss", "accuracy", "f1")),
        ([0, 1, 1], [5.0, 7.0, 9.0], {"mae": 0.1}, ("mae",)),
        ([1, 1, 1], [0.1, 0.2, 0.3], {}, ("log_loss", "accuracy")),
        ([2.5, 1.0, 7.0], [0.1, 0.2, 0.3], {}, ("mae",)),
        ([0, 2, 1], [[0.1, 0.2, 0.7], [0.1, 0.2, 0.7], [0.1, 0.2, 0.7]], {}, ("accuracy",)),
        ([0.0, 2.0, 1.0], [[0.1, 0.2, 0.7], [0.1, 0.2, 0.7], [0.1, 0.2, 0.7]], {}, ("accuracy",)),
        ([0.0, 2.5, 1.0], [[0.1, 0.2, 0.7], [0.1, 0.2, 0.7], [0.1, 0.2, 0.7]], {}, ("mae",)),
        ([[1.0, 2.0], [3.0, 4.0]], [[1.1, 2.0], [3.0, 3.9]], {}, ("mae",)),
        ([[1, 2], [3, 4]], [[1.1, 2.0], [3.0, 3.9]], {}, ("mae",)),
    ],
)
def test_metrics_follow_from_labels_scores_and_budget(labels: list, found: list, budget: dict, names: tuple) -> None:
    assert scoring.metric_names(np.array(labels), np.array(found), budget) == names


@pytest.mark.parametrize("kind", [np.int64, np.float32, np.float64])
def test_classes_are_judged_alike_as_integers_and_as_whole_floats(kind: type) -> None:
    labels = np.array([0, 1, 2, 2], dtype=kind)
    shares = np.array([[0.8, 0.1, 0.1], [0.1, 0.8, 0.1], [0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])
    holdout = Holdout(inputs={"x": np.zeros(4)}, labels=labels).coded(None)
    assert scoring.measure(holdout, shares, shares, {}, "p") == {"accuracy": 0.75}
    assert scoring.constant(holdout, shares, {}) == {"accuracy": 0.5}
    model = {"source": "m:m", "inputs": [{"name": "x"}], "outputs": [{"name": "p", "shape": [-1, 3]}]}
    manifest = Manifest(read({"name": "classes", "model": model}, {}), Path(), {})
    assert judging.budget_of(manifest, holdout, shares) == {"accuracy": judging.DEFAULT_BUDGET}


def test_probabilities_that_rounding_took_below_zero_are_judged() -> None:
    """As ONNX sums the trees of a forest."""
    holdout = Holdout(inputs={"x": np.zeros(4)}, labels=np.array([0, 1, 1, 0])).coded(None)
    source = np.array([0.0, 0.9, 1.0, 0.2])
    rounded = np.array([-3.6e-07, 0.9, 1.0000001, 0.2], np.float32)
    scored = scoring.measure(holdout, source, rounded, {"log_loss": 0.1}, "p")
    assert scored["log_loss"] == pytest.approx(
        scoring.measure(holdout, source, source, {"log_loss": 0.1}, "p")["log_loss"]
    )


@pytest.mark.parametrize(
    ("labels", "found", "budget", "text"),
    [
        ([0, 1], [-3.0, 4.5], {"auc": 0.1}, r"needs probabilities in \[0, 1\].* lies in \[-3, 4.5\]"),
        ([1, 1], [0.3, 0.5], {"auc": 0.1}, "auc needs both classes, every one of the 2 holdout labels is 1"),
        ([0.5, 2.0], [0.3, 0.5], {"auc": 0.1}, "auc needs labels 0 and 1"),
        ([0, 1], [[0.3, 0.2, 0.5], [0.5, 0.5, 0]], {"auc": 0.1}, r"auc needs .* one score per row.*\[2, 3\]"),
        ([1, 3], [[0.3, 0.2, 0.5], [0.5, 0.5, 0]], {"accuracy": 0.1}, r"1 of 2 labels are 3, .*classes are 0 to 2"),
        ([1, 2], [0.3, 0.6], {"accuracy": 0.1}, r"1 of 2 labels are 2, and output 'p' has no class of that number"),
        ([-1, 1], [0.3, 0.6], {"accuracy": 0.1}, r"1 of 2 labels are -1, .* its classes are 0 to 1"),
        ([0, 1], [0.3, 0.5], {"cosine": 0.1}, "cosine needs vectors"),
        (TAGS, SHARES, {"accuracy": 0.1}, r"accuracy needs one label per row; labels are \[2, 3\], scores \[2, 3\]"),
        (TAGS, SHARES, {"log_loss": 0.1}, "log_loss needs one label per row"),
        (TAGS, [0.3, 0.5], {"auc": 0.1}, r"auc needs one label per row; labels are \[2, 3\], scores \[2\]"),
        ([[0, 1], [1, 0]], [[0.5, 0.5], [0.1, 0.9]], {"f1": 0.1}, "f1 needs one label per row"),
        ([0, 1], [[SHARES[0]], [SHARES[0]]], {"accuracy": 0.1}, r"or one per class; .* scores \[2, 1, 3\]"),
        ([0.5, 2.0], SHARES, {"spearman": 0.1}, r"spearman needs one score per row; .* scores \[2, 3\]"),
        ([0.5, 2.0], SHARES, {"mae": 0.1}, "mae needs a label per score"),
    ],
)
def test_what_a_metric_cannot_judge_is_refused(labels: list, found: list, budget: dict, text: str) -> None:
    holdout = Holdout(inputs={"x": np.zeros(2)}, labels=np.array(labels))
    with pytest.raises(BuildError, match=text):
        scoring.measure(holdout, np.array(found), np.array(found), budget, "p")


@pytest.mark.parametrize("metric", ["accuracy", "log_loss", "auc", "f1", "spearman", "mae"])
@pytest.mark.parametrize("labels", [np.zeros((4, 2)), np.zeros(4)])
def test_the_gate_refuses_shapes_that_a_metric_cannot_compare(metric: str, labels: np.ndarray) -> None:
    scores = np.full((4, 1, 2), 0.5)
    with pytest.raises(BuildError, match=rf"{metric} needs .* scores \[4, 1, 2\]"):
        gate.judge({"v": scores}, scores, labels, {}, {metric: 0.1})


def test_the_gate_refuses_columns_of_which_spearman_orders_none() -> None:
    scores = np.random.default_rng(0).random((50, 2))
    with pytest.raises(BuildError, match=r"spearman needs one score per row; .* scores \[50, 2\]"):
        gate.judge({"v": scores}, scores, np.arange(50.0), {}, {"spearman": 0.1})


def test_scores_outside_the_unit_interval_come_with_the_way_out() -> None:
    holdout = Holdout(inputs={"x": np.zeros(2)}, labels=np.array([0, 1]))
    with pytest.raises(BuildError) as error:
        scoring.measure(holdout, np.array([-1.0, 2.0]), np.array([-1.0, 2.0]), {}, "p")
    assert "sigmoid" in error.value.hint


def test_cosine_compares_with_the_source_model_not_with_labels() -> None:
    vectors = np.random.default_rng(0).normal(size=(2, 8))
    holdout = Holdout(inputs={"x": np.zeros(2)}, labels=np.array([0, 1]))
    assert scoring.measure(holdout, vectors, vectors, {"cosine": 0.01}, "p") == {"cosine": pytest.approx(1.0)}


def test_agreement_counts_flipped_decisions() -> None:
    found = scoring.agreement(np.array([0.2, 0.49, 0.8, 0.9]), np.array([0.2, 0.51, 0.8, 0.9]))
    assert found["flipped"] == 0.25
    assert found["max_abs"] == pytest.approx(0.02)


# -- Parity ----------------------------------------------------------------------------------------------------------


def test_parity_of_equal_models_is_recorded_per_batch_size() -> None:
    found = export_check.check(identity, identity, HOLDOUT, [P])
    assert [each["rows"] for each in found["found"]] == [1, 3, 8]
    assert all(each["max_abs"] == 0 for each in found["found"])


@pytest.mark.parametrize(
    ("exported", "text"),
    [
        (lambda i: {"p": i["x"] + np.float32(0.01)}, r"output 'p' at batch 1 \(x \[1\]\): differs .* by 0.01 absolute"),
        (lambda i: {"p": i["x"][:2]}, r"at batch 3 .* gives float32 \[3\], the exported one float32 \[2\]"),
        (lambda i: {"p": i["x"].astype(np.float64)}, "the exported one float64"),
        (lambda i: {"p": np.full_like(i["x"], np.nan)}, "NaN or infinity in 0 values of the source model and 1 of"),
    ],
)
def test_a_model_that_is_not_the_source_is_refused(exported: Callable[[Arrays], Arrays], text: str) -> None:
    with pytest.raises(BuildError, match=text):
        export_check.check(identity, exported, HOLDOUT, [P])


def test_parity_refuses_a_datatype_that_is_not_the_manifests() -> None:
    with pytest.raises(BuildError, match="gives float32, the manifest says FP64"):
        export_check.check(identity, identity, HOLDOUT, [TensorSpec(name="p", datatype="FP64")])


# -- Race ------------------------------------------------------------------------------------------------------------


class Clock:
    """Nanoseconds that only runtimes let pass."""

    def __init__(self) -> None:
        self.now_ns = 0

    def runtime(self, ns_per_call: int) -> StubRuntime:
        def answer(inputs: Arrays) -> Arrays:
            self.now_ns += ns_per_call
            return identity(inputs)

        return StubRuntime(answer)


def test_outputs_of_another_shape_than_the_manifests_end_the_build() -> None:
    export_check.check_outputs(StubRuntime(identity), HOLDOUT, (P,))
    with pytest.raises(BuildError, match=r"output 'p' of the source model is FP32 \[3\] for 3 rows, the manifest says"):
        export_check.check_outputs(StubRuntime(identity), HOLDOUT, (TensorSpec(name="p", shape=(-1, 2)),))
    with pytest.raises(BuildError, match=r"is FP32 \[3\] for 3 rows, the manifest says INT64"):
        export_check.check_outputs(
            StubRuntime(identity), HOLDOUT, (TensorSpec(name="p", datatype="INT64", shape=(-1,)),)
        )


def test_a_race_measures_each_variant_in_every_round_on_the_same_rows() -> None:
    clock = Clock()
    runtimes = {"torch": clock.runtime(2_000_000), "onnx": clock.runtime(500_000)}
    found = steps.race(runtimes, HOLDOUT, "p", clock_ns=lambda: clock.now_ns)
    assert found["torch"] == {1: [2.0] * steps.ROUNDS, 8: [2.0] * steps.ROUNDS}
    assert found["onnx"] == {1: [0.5] * steps.ROUNDS, 8: [0.5] * steps.ROUNDS}
    first = [runtime.batches[0]["x"] for runtime in runtimes.values()]
    np.testing.assert_array_equal(*first)
    assert len({batch["x"].tobytes() for batch in runtimes["onnx"].batches}) > 8


def test_a_race_times_rows_one_by_one_where_they_will_run_alone() -> None:
    clock = Clock()
    runtimes = {"onnx": clock.runtime(2_000_000), "int8-dynamic": clock.runtime(500_000)}
    found = steps.race(runtimes, HOLDOUT, "p", clock_ns=lambda: clock.now_ns, alone=["int8-dynamic"])
    assert found["onnx"] == {1: [2.0] * steps.ROUNDS, 8: [2.0] * steps.ROUNDS}
    assert found["int8-dynamic"] == {1: [0.5] * steps.ROUNDS, 8: [4.0] * steps.ROUNDS}
    assert set(runtimes["int8-dynamic"].rows) == {1}
    assert set(runtimes["onnx"].rows) == {1, 8}
    whole, apart = (set(np.concatenate([batch["x"] for batch in each.batches]).tolist()) for each in runtimes.values())
    assert apart <= whole, "the same rows, of as many batches as there is time for"


def test_a_race_begins_each_round_with_another_variant() -> None:
    begun: list[str] = []

    def runtime(name: str) -> StubRuntime:
        def answer(inputs: Arrays) -> Arrays:
            if not begun or begun[-1] != name:
                begun.append(name)
            return identity(inputs)

        return StubRuntime(answer)

    steps.race({"a": runtime("a"), "b": runtime("b")}, HOLDOUT, "p", clock_ns=lambda: 0)
    # Warm-up a, b; then a b | b a | a b ...: neighbours of two rounds run together.
    assert begun[:6] == ["a", "b", "a", "b", "a", "b"]
    assert begun.count("a") >= steps.ROUNDS


@pytest.mark.parametrize(
    ("machine", "flags", "wanted"),
    [
        ("x86_64", {"avx2"}, True),
        ("x86_64", {"avx2", "avx512f"}, True),
        ("x86_64", {"avx512f", "avx512_vnni"}, False),
        ("AMD64", {"avx2", "avx_vnni"}, False),
        ("aarch64", {"asimddp"}, False),
    ],
)
def test_weights_keep_to_seven_bits_on_x86_without_vnni(machine: str, flags: set[str], wanted: bool) -> None:
    here = host_capabilities.HostCapabilities(machine=machine, flags=tuple(flags), cores=1)
    assert here.saturates is wanted


def test_the_evidence_names_processor_and_versions() -> None:
    assert read_machine().cores >= 1
    assert read_machine().processor
    assert {"python", "numpy", "onnxruntime"} <= set(host_capabilities.versions())


# -- The user's own metrics ------------------------------------------------------------------------------------------

OWN_METRIC = """
def gain(labels, scores):
    return -labels * scores + (1 - labels) * (1 - scores)
"""


@pytest.mark.parametrize("coding", [None, Coding(classes=(False, True), origin="the model's classes_")])
def test_own_metrics_get_boolean_labels_as_0_and_1(tmp_path: Path, coding: Coding | None) -> None:
    (tmp_path / "own_metric_of_judging.py").write_text(OWN_METRIC)
    quality = {"budget": {"gain": 0.01}, "metrics": {"gain": "own_metric_of_judging:gain"}}
    model = {"source": "m:m", "inputs": [{"name": "x"}], "outputs": [{"name": "p"}]}
    manifest = Manifest(read({"name": "own", "model": model, "quality": quality}, {}), tmp_path, {})
    holdout = Holdout(inputs={"x": X}, labels=X > 0.3).coded(coding)
    answers = {"source": {"p": X}, "copy": {"p": X + np.float32(0.001)}}
    verdict = judging.judge(manifest, holdout, answers, source="source", uses=0)["copy"]
    (gain,) = verdict.metrics
    labels = (X > 0.3).astype(np.int64)
    assert gain.source == pytest.approx(float((-labels * X + (1 - labels) * (1 - X)).mean()))
