"""build.sources for tables: what is kept of a model, how it answers, and what is said of one that cannot be built."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from tests.build_kit import Y, live, made

from tailcut.errors import ArtifactError, BuildError, InferenceError, ManifestError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import open_runtime
from tailcut.models.runtimes.base import OpenSpec

RNG = np.random.default_rng(3)
ROWS = RNG.normal(size=(200, 6)).astype(np.float32)
BINARY = (ROWS[:, 0] + ROWS[:, 1] > 0).astype(int)
CLASSES = np.digitize(ROWS[:, 0], [-0.5, 0.5])
THREE = TensorSpec(name="y", shape=(-1, 3))


def fit(kind: str, target: Any = BINARY, **settings: Any) -> Any:
    if kind == "lightgbm":
        return lightgbm.LGBMClassifier(n_estimators=8, verbose=-1, **settings).fit(ROWS, target)
    if kind == "xgboost":
        return xgboost.XGBClassifier(n_estimators=8, **settings).fit(ROWS, target)
    return RandomForestClassifier(8, random_state=0, **settings).fit(ROWS, target)


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost", "sklearn"])
@pytest.mark.parametrize(("target", "output"), [(BINARY, Y), (CLASSES, THREE)])
def test_classifiers_answer_with_probabilities(tmp_path: Path, kind: str, target: Any, output: TensorSpec) -> None:
    model = fit(kind, target)
    found, work = made(tmp_path, live(model), {"x": ROWS}, output=output)
    assert (found.kind, found.variant, found.runtime) == (kind, kind, "skops" if kind == "sklearn" else kind)
    assert found.live_code == ()
    assert found.found.classes == list(range(2 if output is Y else 3))
    runtime = work.open(work.base, threads=2)
    given = runtime.run({"x": ROWS}, ["y"])["y"]
    probabilities = model.predict_proba(ROWS)
    np.testing.assert_allclose(given, probabilities[:, 1] if output is Y else probabilities, atol=1e-6)
    assert given.dtype == np.float32
    runtime.close()
    runtime.close()


def test_early_stopping_keeps_the_best_trees_only(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eval_set": [(ROWS[100:], BINARY[100:])]}
    boosted = xgboost.XGBClassifier(n_estimators=60, early_stopping_rounds=3, learning_rate=0.9)
    boosted.fit(ROWS[:100], BINARY[:100], verbose=False, **settings)
    found, work = made(tmp_path, live(boosted), {"x": ROWS})
    assert found.found.details["rounds"] == boosted.best_iteration + 1 < 60
    given = work.open(work.base).run({"x": ROWS}, ["y"])["y"]
    np.testing.assert_allclose(given, boosted.predict_proba(ROWS)[:, 1], atol=1e-6)


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost", "sklearn"])
def test_a_broken_artifact_is_refused(tmp_path: Path, kind: str) -> None:
    _, work = made(tmp_path, live(fit(kind)), {"x": ROWS})
    Path(work.base.path).write_bytes(b"no model")
    with pytest.raises(ArtifactError, match=rf"variant '{kind}'"):
        work.open(work.base)


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost"])
def test_a_bad_batch_fails_alone(tmp_path: Path, kind: str) -> None:
    _, work = made(tmp_path, live(fit(kind)), {"x": ROWS})
    runtime = work.open(work.base)
    with pytest.raises(InferenceError, match=f"variant '{kind}' failed"):
        runtime.run({"x": ROWS[:, :2]}, ["y"])
    assert runtime.run({"x": ROWS[:1]}, ["y"])["y"].shape == (1,)


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost", "sklearn"])
def test_inputs_and_outputs_must_be_the_models(tmp_path: Path, kind: str) -> None:
    model = live(fit(kind))
    with pytest.raises(BuildError, match=r"the model gives \[-1(, 2)?\], model\.outputs say \[-1, 3\]"):
        made(tmp_path, model, {"x": ROWS}, output=THREE)
    with pytest.raises(BuildError, match=r"6 features|6 features as input|expecting 6"):
        made(tmp_path, model, {"x": ROWS[:, :4]}, (TensorSpec(name="x", shape=(-1, 4)),))
    free = TensorSpec(name="x", shape=(-1, -1))
    with pytest.raises(BuildError, match=r"this model takes (numbers of )?shape \[-1\] or \[-1, columns\]"):
        made(tmp_path, model, {"x": ROWS}, (free,))


def test_a_value_other_than_nan_for_missing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"counts -1\.0 as missing"):
        made(tmp_path, live(fit("xgboost", missing=-1.0)), {"x": ROWS})


class OwnForest(RandomForestClassifier):  # type: ignore[misc]  # scikit-learn has no type information
    """A class that skops does not know."""


def own_forest(seed: int = 0) -> Any:
    return OwnForest(8, random_state=seed).fit(ROWS, BINARY)


def test_an_estimator_of_an_unknown_class_is_not_stored(tmp_path: Path) -> None:
    found, _ = made(tmp_path, live(own_forest()), {"x": ROWS})
    with np.load(found.path, allow_pickle=False) as kept:
        assert sorted(kept.files) == ["answers", "input/x"]
    assert found.runtime == "sklearn"
    assert found.live_code == ("tailcut_live_models:model",)
    assert f"holds {__name__}:OwnForest" in found.found.not_stored


def test_an_estimator_that_is_not_the_builds_is_refused(tmp_path: Path) -> None:
    found, work = made(tmp_path, live(own_forest()), {"x": ROWS})
    live(own_forest(seed=1))
    with pytest.raises(ArtifactError, match="gives another OwnForest than the build had"):
        work.open(work.base)
    live(LogisticRegression())
    with pytest.raises(ArtifactError, match="LogisticRegression that fails on the rows of the build"):
        work.open(work.base)
    held = work.manifest.deployment.model
    variant = OpenSpec("sklearn", "sklearn", Path(found.path), held.inputs, held.outputs, {})
    with pytest.raises(ArtifactError, match="a test of the estimator that it belongs to"):
        open_runtime(variant, threads=1)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (LogisticRegression(), "a LogisticRegression that is not fitted"),
        (lightgbm.LGBMClassifier(), "a LGBMClassifier that is not fitted"),
        (LinearSVC().fit(ROWS, BINARY), "LinearSVC has no predict_proba"),
        ({"a": 1}, "gave a dict, from which tailcut cannot build"),
    ],
)
def test_models_that_cannot_be_served_are_named(tmp_path: Path, model: Any, text: str) -> None:
    with pytest.raises(BuildError, match=text) as refused:
        made(tmp_path, live(model), {"x": ROWS})
    assert refused.value.hint


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("models/none", "nor an existing file or folder .*models/none"),
        (".", "is neither an .onnx file nor a Hugging Face folder"),
    ],
)
def test_paths_that_hold_no_model_are_named(tmp_path: Path, source: str, text: str) -> None:
    with pytest.raises(ManifestError, match=text):
        made(tmp_path, source, {"x": ROWS})


@pytest.mark.parametrize("kind", ["lightgbm", "xgboost", "sklearn"])
def test_both_classes_and_doubles_come_as_the_library_gives_them(tmp_path: Path, kind: str) -> None:
    model = fit(kind)
    _, work = made(tmp_path, live(model), {"x": ROWS}, output=TensorSpec(name="y", datatype="FP64", shape=(-1, 2)))
    given = work.open(work.base).run({"x": ROWS}, ["y"])["y"]
    assert given.dtype == np.float64
    np.testing.assert_array_equal(given, model.predict_proba(ROWS).astype(np.float64))


def test_int64_outputs_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"gives one FP32 or FP64 output, model\.outputs names 'y' INT64"):
        made(tmp_path, live(fit("lightgbm")), {"x": ROWS}, output=TensorSpec(name="y", datatype="INT64"))
