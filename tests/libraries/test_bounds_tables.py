"""Bounds that estimators prove: categories that an encoder must know, infinity, and what float32 cannot hold."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler
from tests.derived_kit import Call, bounds_of, slow

from tailcut.common.bounds import Bound
from tailcut.common.tensors import NUMPY_OF
from tailcut.manifest import TensorSpec

FLOAT32 = 3.4028235e38
LARGEST = float(np.finfo(np.float64).max)
NUMBERS = np.random.default_rng(0).normal(size=(200, 3))
CLASSES = (NUMBERS[:, 0] > 0).astype(np.int64)
CODES = np.column_stack([np.arange(200) % 4, np.arange(200) % 7 + 10])


def on_array(model: Any) -> Call:
    return lambda arrays: {"y": model.predict_proba(arrays["x"])}


def of_array(model: Any, rows: Any, datatype: Any = "FP64", *, allow_nan: bool = False) -> dict[Any, Bound]:
    """Return the bounds of an estimator that takes one array, input x."""
    tensor = TensorSpec(name="x", datatype=datatype, shape=(-1, rows.shape[1]), allow_nan=allow_nan)
    return bounds_of(model, on_array(model), (tensor,), {"x": rows[:3].astype(NUMPY_OF[datatype])})


@pytest.mark.parametrize("allow_nan", [False, True])
def test_a_forest_refuses_what_float32_cannot_hold(allow_nan: bool) -> None:
    forest = RandomForestClassifier(3, random_state=0).fit(NUMBERS, CLASSES)
    found = of_array(forest, NUMBERS, allow_nan=allow_nan)
    assert found == {("x", ()): Bound(input="x", min=-FLOAT32, max=FLOAT32, why="the model computes in float32")}


def test_a_forest_on_float32_refuses_infinity() -> None:
    forest = RandomForestClassifier(3, random_state=0).fit(NUMBERS, CLASSES)
    assert of_array(forest, NUMBERS, "FP32") == {}
    found = of_array(forest, NUMBERS, "FP32", allow_nan=True)
    assert (found["x", ()].min, found["x", ()].max) == (-FLOAT32, FLOAT32)


@pytest.mark.parametrize("datatype", ["FP32", "FP64"])
def test_hist_gradient_boosting_takes_infinity(datatype: str) -> None:
    model = HistGradientBoostingClassifier(max_iter=3).fit(NUMBERS, CLASSES)
    assert of_array(model, NUMBERS, datatype, allow_nan=True) == {}


def test_lightgbm_and_xgboost_take_infinity_and_a_dmatrix_does_not() -> None:
    lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
    for model in (lightgbm.LGBMClassifier(n_estimators=3, verbose=-1), xgboost.XGBClassifier(n_estimators=3)):
        assert of_array(model.fit(NUMBERS, CLASSES), NUMBERS, allow_nan=True) == {}
    booster = model.get_booster()
    tensor = TensorSpec(name="x", datatype="FP64", shape=(-1, 3), allow_nan=True)
    call: Call = lambda arrays: {"y": booster.predict(xgboost.DMatrix(arrays["x"]))}  # noqa: E731
    assert bounds_of(booster, call, (tensor,), {"x": NUMBERS[:3]})["x", ()].max == FLOAT32


def test_a_linear_model_refuses_infinity_only() -> None:
    model = LogisticRegression().fit(NUMBERS, CLASSES)
    assert of_array(model, NUMBERS) == {}
    found = of_array(model, NUMBERS, allow_nan=True)
    assert found == {("x", ()): Bound(input="x", min=-LARGEST, max=LARGEST, why="the model refuses infinity")}


def test_a_scaler_that_overflows_has_the_limit_where_it_does() -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(NUMBERS * [1, 1e-3, 1e3], CLASSES)
    found = of_array(model, NUMBERS)
    assert list(found) == [("x", (1,))]
    limit = found["x", (1,)].max
    assert limit is not None
    assert LARGEST / 2000 < limit < LARGEST / 900
    row = NUMBERS[:1].copy()
    row[0, 1] = limit
    model.predict_proba(row)
    row[0, 1] = limit * 1.1
    with pytest.raises(ValueError, match="infinity"), np.errstate(over="ignore"):
        model.predict_proba(row)


@pytest.mark.parametrize("datatype", ["FP64", "INT64"])
def test_an_encoder_that_must_know_its_values_bounds_them(datatype: str) -> None:
    model = make_pipeline(OneHotEncoder(handle_unknown="error"), LogisticRegression())
    kind = NUMPY_OF[datatype].type
    found = of_array(model.fit(CODES.astype(kind), CLASSES), CODES, datatype)
    assert {columns: bound.values for (_, columns), bound in found.items()} == {
        (0,): (0, 1, 2, 3),
        (1,): (10, 11, 12, 13, 14, 15, 16),
    }
    assert found["x", (0,)].why == "OneHotEncoder knows 4 values"


def test_a_list_within_another_columns_list_is_its_own_columns() -> None:
    codes = np.column_stack([np.arange(200) % 4, np.arange(200) % 2 + 1])
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(codes, CLASSES)
    found = of_array(model, codes, "INT64")
    assert {columns: bound.values for (_, columns), bound in found.items()} == {(0,): (0, 1, 2, 3), (1,): (1, 2)}


def _with_another_code(codes: Any) -> Any:
    return np.where(codes == 12, 0, codes) if codes.shape[1] == 1 else codes


def test_values_that_a_function_changes_before_the_encoder_have_no_bounds() -> None:
    first = make_pipeline(FunctionTransformer(_with_another_code), OneHotEncoder())
    steps = [("first", first, [0]), ("second", OneHotEncoder(), [1])]
    model = make_pipeline(ColumnTransformer(steps), LogisticRegression()).fit(CODES, CLASSES)
    assert of_array(model, CODES, "INT64") == {}


def test_a_list_is_not_proven_where_other_values_are_answered() -> None:
    """As where the caller changes them: 12, a value of the second column, becomes 0 in the first."""
    codes = np.column_stack([np.arange(200) % 4, np.arange(200) % 7 + 10])
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(codes, CLASSES)

    def call(arrays: Any) -> Any:
        return {"y": model.predict_proba(np.where(arrays["x"] == [12, -1], 0, arrays["x"]))}

    tensor = TensorSpec(name="x", datatype="INT64", shape=(-1, 2))
    assert list(bounds_of(model, call, (tensor,), {"x": codes[:3]})) == [("x", (1,))]


def test_an_encoder_that_ignores_unknown_values_bounds_nothing() -> None:
    model = make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression())
    assert of_array(model.fit(CODES, CLASSES), CODES, "INT64") == {}


def test_a_pipeline_on_a_frame_bounds_text_and_numbers() -> None:
    """Two columns with overlapping categories: each has those of its own encoder."""
    frame = pd.DataFrame({
        "city": ["a", "b", "c", "d"] * 50,
        "plan": ["b", "c", "z", "b"] * 50,
        "free": ["u", "v"] * 100,
        "age": NUMBERS[:, 0],
    })  # fmt: skip
    steps = [
        ("city", OneHotEncoder(), ["city"]),
        ("plan", make_pipeline(SimpleImputer(strategy="most_frequent"), OrdinalEncoder()), ["plan"]),
        ("free", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["free"]),
        ("age", SimpleImputer(), ["age"]),
    ]
    model = make_pipeline(ColumnTransformer(steps), RandomForestClassifier(3, random_state=0)).fit(frame, CLASSES)
    texts = [TensorSpec(name=name, datatype="BYTES") for name in ("city", "plan", "free")]
    inputs = [*texts, TensorSpec(name="age", datatype="FP64", allow_nan=True)]
    rows = {name: frame[name].to_numpy(dtype=object)[:3] for name in ("city", "plan", "free")}
    rows |= {"age": NUMBERS[:3, 0]}
    found = bounds_of(model, lambda arrays: {"y": model.predict_proba(pd.DataFrame(arrays))}, inputs, rows)
    assert {name: (bound.values, bound.max) for (name, _), bound in found.items()} == {
        "city": (("a", "b", "c", "d"), None),
        "plan": (("b", "c", "z"), None),
        "age": (None, FLOAT32),
    }


@pytest.mark.parametrize("known", [False, True])
def test_a_missing_text_is_a_value_where_the_estimator_takes_it(known: bool) -> None:
    """The empty text stands for a missing value of an input with allow_nan."""
    frame = pd.DataFrame({"city": ["a", "b", None if known else "a", "b"] * 50}, dtype=object)
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(frame, CLASSES)

    def call(arrays: Any) -> Any:
        texts = [None if text == "" else text for text in arrays["city"]]
        return {"y": model.predict_proba(pd.DataFrame({"city": texts}, dtype=object))}

    city = TensorSpec(name="city", datatype="BYTES", allow_nan=True)
    rows = {"city": np.array(["a", "b"], dtype=object)}
    values = bounds_of(model, call, (city,), rows)["city", ()].values
    assert values == (("a", "b", "") if known else ("a", "b"))


def _of_twelve(codes: Any) -> Any:
    return np.eye(12)[codes[:, 0]]


def _of_known(codes: Any) -> Any:
    known = {1: 0, 2: 1, 5: 2}
    return np.array([[known[code]] for code in codes[:, 0]])


def test_whole_numbers_have_limits_but_a_list_of_codes_with_gaps_has_none() -> None:
    codes = np.arange(200)[:, None] % 12
    model = make_pipeline(FunctionTransformer(_of_twelve), LogisticRegression()).fit(codes, CLASSES)
    found = of_array(model, codes, "INT64")
    assert (found["x", ()].min, found["x", ()].max) == (-12, 11)
    codes = np.array([1, 2, 5])[np.arange(200) % 3][:, None]
    model = make_pipeline(FunctionTransformer(_of_known), LogisticRegression()).fit(codes, CLASSES)
    assert of_array(model, codes, "INT64") == {}


def test_a_source_that_refuses_its_own_holdout_has_no_bounds() -> None:
    def call(arrays: Any) -> Any:
        raise ValueError("no")

    tensor = TensorSpec(name="x", datatype="FP64", shape=(-1, 3))
    assert bounds_of(LogisticRegression(), call, (tensor,), {"x": NUMBERS[:3]}) == {}


@pytest.mark.parametrize("trials", range(1, 40, 3))
def test_categories_for_which_no_time_is_left_are_not_proven(trials: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(CODES, CLASSES)
    tensor = TensorSpec(name="x", datatype="INT64", shape=(-1, 2))
    rows = {"x": CODES[:3]}
    whole = {place: bound.values for (_, (place,)), bound in bounds_of(model, on_array(model), (tensor,), rows).items()}
    assert set(whole) == {0, 1}
    call, made = slow(monkeypatch, on_array(model), trials)
    found = bounds_of(model, call, (tensor,), rows)
    assert len(made) <= trials
    assert all(bound.values == whole[place] for (_, columns), bound in found.items() for place in columns)
