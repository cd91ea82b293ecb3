"""Trees in ONNX: they answer as the library does on rows at every threshold, NaN and categories included."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pytest
import xgboost
from hypothesis import given
from hypothesis import strategies as st
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier
from tests.build_kit import X, Y, live, made

from tailcut.builder.ensembles import base
from tailcut.builder.host_capabilities import look
from tailcut.builder.recipes import BUILT_IN, recipe
from tailcut.builder.recipes.base import TREES, Subject
from tailcut.errors import BuildError
from tailcut.manifest import Deployment, Model, TensorSpec

RNG = np.random.default_rng(5)
ROWS = RNG.normal(size=(600, 6)).astype(np.float32)
ROWS[:, 0] = np.round(ROWS[:, 0], 1)
ROWS[:, 5] = RNG.integers(0, 7, 600)
GAPS = ROWS.copy()
GAPS[::9, 2] = np.nan
SCORE = ROWS[:, 0] + ROWS[:, 1] * ROWS[:, 3] + ROWS[:, 5] % 2
BINARY, CLASSES, VALUES = (SCORE > 0).astype(int), np.digitize(SCORE, [-0.5, 1.0]), SCORE * 1000
THREE = TensorSpec(name="y", shape=(-1, 3))
FULL = TensorSpec(name="x", shape=(-1, 6))

LGB = {"verbose": -1, "num_leaves": 12, "min_data_per_group": 5, "max_cat_to_onehot": 1}


def lgb(objective: str, target: Any, rounds: int = 15, *, categories: tuple[int, ...] = (), **settings: Any) -> Any:
    data = lightgbm.Dataset(GAPS, target, categorical_feature=list(categories))
    return lightgbm.train({"objective": objective, **LGB, **settings}, data, rounds)


def xgb(objective: str, target: Any, **settings: Any) -> Any:
    return xgboost.train({"objective": objective, **settings}, xgboost.DMatrix(GAPS, target), 12)


WITH_GAPS: dict[str, tuple[Callable[[], Any], TensorSpec]] = {
    "lightgbm binary": (lambda: lightgbm.LGBMClassifier(n_estimators=15, verbose=-1).fit(GAPS, BINARY), Y),
    "lightgbm categories": (lambda: lgb("binary", BINARY, categories=(5,)), Y),
    "lightgbm classes": (lambda: lgb("multiclass", CLASSES, num_class=3), THREE),
    "lightgbm one against all": (lambda: lgb("multiclassova", CLASSES, num_class=3, sigmoid=1.5), THREE),
    "lightgbm regression": (lambda: lgb("regression", VALUES), Y),
    "lightgbm poisson": (lambda: lgb("poisson", np.abs(VALUES)), Y),
    "lightgbm dart": (lambda: lgb("binary", BINARY, boosting="dart"), Y),
    "lightgbm forest": (lambda: lgb("binary", BINARY, boosting="rf", bagging_freq=1, bagging_fraction=0.5), Y),
    "xgboost binary": (lambda: xgboost.XGBClassifier(n_estimators=12).fit(GAPS, BINARY), Y),
    "xgboost classes": (lambda: xgb("multi:softmax", CLASSES, num_class=3), THREE),
    "xgboost regression": (lambda: xgb("reg:squarederror", VALUES), Y),
    "xgboost poisson": (lambda: xgb("count:poisson", np.abs(VALUES)), Y),
    "xgboost dart": (lambda: xgb("binary:logistic", BINARY, booster="dart", rate_drop=0.3), Y),
    "forest": (lambda: RandomForestClassifier(8, random_state=0).fit(GAPS, BINARY), Y),
    "forest of classes": (lambda: RandomForestClassifier(8, random_state=0).fit(GAPS, CLASSES), THREE),
    "forest of values": (lambda: RandomForestRegressor(8, random_state=0).fit(GAPS, VALUES), Y),
    "tree": (lambda: DecisionTreeClassifier(random_state=0).fit(GAPS, BINARY), Y),
    "histograms": (lambda: HistGradientBoostingClassifier(max_iter=10).fit(GAPS, BINARY), Y),
    "histograms of classes": (lambda: HistGradientBoostingClassifier(max_iter=5).fit(GAPS, CLASSES), THREE),
    "histograms of values": (lambda: HistGradientBoostingRegressor(max_iter=10).fit(GAPS, VALUES), Y),
}
WITHOUT: dict[str, tuple[Callable[[], Any], TensorSpec]] = {
    "extra trees": (lambda: ExtraTreesClassifier(6, random_state=0).fit(ROWS, BINARY), Y),
    "boosting": (lambda: GradientBoostingClassifier(n_estimators=10, random_state=0).fit(ROWS, BINARY), Y),
    "boosting exponential": (
        lambda: GradientBoostingClassifier(n_estimators=10, loss="exponential", random_state=0).fit(ROWS, BINARY),
        Y,
    ),
    "boosting of values": (lambda: GradientBoostingRegressor(n_estimators=10, random_state=0).fit(ROWS, VALUES), Y),
}


@pytest.mark.parametrize("name", [*WITH_GAPS, *WITHOUT])
def test_onnx_answers_as_the_library_does_at_every_threshold(tmp_path: Path, name: str) -> None:
    make, output = (WITH_GAPS | WITHOUT)[name]
    rows, tensor = (GAPS, X) if name in WITH_GAPS else (ROWS, FULL)
    found, work = made(tmp_path, live(make()), {"x": rows}, (tensor,), output)
    evidence = recipe("onnx").make(work).found
    assert found.trees
    assert evidence["holdout"]["wrong"] == 0
    thresholds = evidence["thresholds"]
    assert thresholds["wrong"] == 0
    assert thresholds["splits"] == thresholds["looked_at"] > 10
    probes_per_split = 4 if name in WITH_GAPS else 3
    assert thresholds["rows"] >= thresholds["splits"] * (probes_per_split - 1)


def test_tensors_side_by_side_feed_one_model(tmp_path: Path) -> None:
    tensors = (
        TensorSpec(name="numbers", shape=(-1, 4)),
        TensorSpec(name="one", shape=(-1,)),
        TensorSpec(name="group", datatype="INT64", shape=(-1, 1)),
    )
    inputs = {"numbers": ROWS[:, :4], "one": ROWS[:, 4].copy(), "group": ROWS[:, 5:].astype(np.int64)}
    model = lightgbm.train({"objective": "binary", **LGB}, lightgbm.Dataset(ROWS, BINARY, categorical_feature=[5]), 10)
    found, work = made(tmp_path, live(model), inputs, tensors)
    evidence = recipe("onnx").make(work).found
    assert found.kind == "lightgbm"
    assert evidence["thresholds"]["wrong"] == 0
    given = work.open_file(work.path, "onnxruntime").run(inputs, ["y"])["y"]
    np.testing.assert_allclose(given, model.predict(ROWS), atol=1e-6)


def test_a_mismatch_at_thresholds_is_refused_with_the_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given thresholds rounded to the nearest float32, as converters do, the probes see it; the holdout does not."""
    from tailcut.builder.tables import estimators as writer

    monkeypatch.setattr(writer, "down", lambda thresholds: np.asarray(thresholds, dtype=np.float64).astype(np.float32))
    _, work = made(tmp_path, live(lgb("binary", BINARY)), {"x": GAPS})
    with pytest.raises(BuildError, match=r"\d+ of \d+ rows at the trees' thresholds get other answers") as refused:
        recipe("onnx").make(work)
    found = re.search(r"(\d+) of \d+ rows at the trees' thresholds", refused.value.message)
    assert found is not None
    assert int(found.group(1)) > 10


@given(st.floats(allow_nan=False))
def test_a_threshold_goes_down_to_the_greatest_float32_below_it(threshold: float) -> None:
    found = base.down(threshold)[()]
    assert float(found) <= threshold
    with np.errstate(over="ignore"):
        above = np.nextafter(found, np.float32(np.inf))
    assert float(above) > threshold or found == np.inf


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (lambda: lgb("regression", VALUES, linear_tree=True), r"linear trees \(linear_tree=true\)"),
        (lambda: lgb("binary", BINARY, zero_as_missing=True), "counts zeros as missing"),
        (lambda: lgb("regression", VALUES, reg_sqrt=True), "'regression sqrt' has a link that is not known"),
        (lambda: xgb("binary:hinge", BINARY), "objective 'binary:hinge' has a link that is not known"),
        (
            lambda: HistGradientBoostingClassifier(max_iter=3, categorical_features=[5]).fit(GAPS, BINARY),
            "has splits on categories",
        ),
    ],
)
def test_what_onnx_trees_cannot_say_is_refused(tmp_path: Path, model: Callable[[], Any], text: str) -> None:
    _, work = made(tmp_path, live(model()), {"x": GAPS})
    with pytest.raises(BuildError, match=text) as refused:
        recipe("onnx").make(work)
    assert "variant" in refused.value.hint or "without" in refused.value.hint


@pytest.mark.parametrize(
    ("model", "output"),
    [
        (make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, BINARY), Y),
        (make_pipeline(StandardScaler(), LogisticRegression()).fit(ROWS, CLASSES), THREE),
        (LinearRegression().fit(ROWS, VALUES), Y),
    ],
)
def test_linear_models_answer_in_the_shape_of_the_output(tmp_path: Path, model: Any, output: TensorSpec) -> None:
    found, work = made(tmp_path, live(model), {"x": ROWS}, (FULL,), output)
    assert not found.trees
    assert recipe("onnx").make(work).found["holdout"]["wrong"] == 0
    given = work.open_file(work.path, "onnxruntime").run({"x": ROWS[:5]}, ["y"])["y"]
    assert given.shape == ((5, 3) if output is THREE else (5,))


def test_trees_behind_other_steps_are_compared_at_their_thresholds_too(tmp_path: Path) -> None:
    model = make_pipeline(StandardScaler(), DecisionTreeClassifier(max_depth=3, random_state=0)).fit(ROWS, BINARY)
    found, work = made(tmp_path, live(model), {"x": ROWS}, (FULL,))
    evidence = recipe("onnx").make(work).found
    assert found.trees
    assert evidence["holdout"]["wrong"] == 0
    assert evidence["thresholds"]["wrong"] == 0
    assert evidence["thresholds"]["splits"] == 7


def test_int8_of_trees_is_refused_with_the_reason() -> None:
    model = Model(source="m:f", inputs=(X,), outputs=(Y,))
    subject = Subject(kind="lightgbm", trees=True, deployment=Deployment(name="m", model=model))
    for each in BUILT_IN:
        if each.precision == "int8":
            assert each.why_not(subject, look()) == TREES
    assert recipe("onnx").why_not(subject, look()) == ""
