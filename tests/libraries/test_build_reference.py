"""build.reference: the source variant gives the answers of the user's own object, or the build stops and shows rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas
import pytest
import xgboost
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor, RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler
from tests.build_kit import live, made

from tailcut.builder import Holdout, sources
from tailcut.builder.holdouts import datatypes
from tailcut.builder.quality import reference
from tailcut.common.tensors import Arrays
from tailcut.errors import BuildError
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec

ROWS = 400
RNG = np.random.default_rng(5)
IDS = 400_000_000 + RNG.integers(0, 40, ROWS)
WHEN = 1_790_000_000 + RNG.integers(0, 4 * 3600, ROWS)
AMOUNT = RNG.exponential(30, ROWS)
LABELS = ((IDS % 7 == 3) | (WHEN // 60 % 10 < 2)).astype(np.int64)
WIDE: Arrays = {"merchant": IDS, "when": WHEN, "amount": AMOUNT}
TENSORS = (
    TensorSpec(name="merchant", datatype="INT64"),
    TensorSpec(name="when", datatype="INT64"),
    TensorSpec(name="amount", datatype="FP64"),
)
STACKED = np.column_stack([IDS, WHEN, AMOUNT])
FRAME = pandas.DataFrame(WIDE)
SMALL: dict[str, Any] = {"n_estimators": 30, "min_child_samples": 5, "verbose": -1}


def answers(tmp_path: Path, model: Any, inputs: Arrays = WIDE, tensors: tuple[TensorSpec, ...] = TENSORS) -> Any:
    """The source variant's answers, as FP64."""
    found, work = made(tmp_path, live(model), inputs, tensors, TensorSpec(name="y", datatype="FP64"))
    assert found.found.details["reference"]["max_abs"] == {"y": 0.0}
    return work.open(work.base).run(inputs, ["y"])["y"]


@pytest.mark.parametrize(
    "model",
    [
        lightgbm.LGBMClassifier(**SMALL),
        xgboost.XGBClassifier(n_estimators=30),
        HistGradientBoostingClassifier(max_iter=20),
        RandomForestClassifier(10, random_state=0),
        make_pipeline(StandardScaler(), LogisticRegression()),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.parametrize("rows", [STACKED, FRAME], ids=["array", "frame"])
def test_numbers_beyond_24_bits_stay_what_they_are(tmp_path: Path, model: Any, rows: Any) -> None:
    model.fit(rows, LABELS)
    np.testing.assert_array_equal(answers(tmp_path, model), model.predict_proba(rows)[:, 1].astype(np.float64))


@pytest.mark.parametrize("limits", [{}, {"min": 0}, {"max": 2**24 + 1}])
def test_whole_numbers_that_lightgbm_rounds_are_refused(tmp_path: Path, limits: dict[str, float]) -> None:
    """Of an array of integers it makes float32; which rows that moves is not in the holdout."""
    hours = {"hour": WHEN // 3600 % 24, "day": WHEN // 86400 % 7}
    model = lightgbm.LGBMClassifier(**SMALL).fit(np.column_stack(list(hours.values())), LABELS)
    tensors = (
        TensorSpec(name="hour", datatype="INT64", min=0, max=23),
        TensorSpec(name="day", datatype="INT32", **limits),
    )
    with pytest.raises(BuildError, match=r"input 'day' is INT32 and may hold numbers beyond 16777216") as refused:
        made(tmp_path, live(model), hours, tensors)
    assert "declare the input FP64" in refused.value.hint
    made(tmp_path, live(model), hours, (tensors[0], TensorSpec(name="day", datatype="INT8")))
    made(tmp_path, live(model), hours, (tensors[0], TensorSpec(name="day", datatype="INT32", min=-(2**24), max=2**24)))
    model.fit(pandas.DataFrame(hours), LABELS)
    made(tmp_path, live(model), hours, (tensors[0], TensorSpec(name="day", datatype="INT64")))


def test_a_regression_on_unix_times_is_the_objects_own(tmp_path: Path) -> None:
    for model in (LinearRegression(), HistGradientBoostingRegressor(max_iter=10), lightgbm.LGBMRegressor(**SMALL)):
        model.fit(STACKED, WHEN % 3600 + AMOUNT)
        np.testing.assert_array_equal(answers(tmp_path, model), model.predict(STACKED))


@pytest.mark.parametrize("kind", [lightgbm.LGBMClassifier(**SMALL), xgboost.XGBClassifier(n_estimators=30)])
def test_columns_are_found_by_name(tmp_path: Path, kind: Any) -> None:
    model = kind.fit(FRAME, LABELS)
    turned = (TENSORS[2], TENSORS[0], TENSORS[1])
    np.testing.assert_array_equal(answers(tmp_path, model, tensors=turned), model.predict_proba(FRAME)[:, 1])
    with pytest.raises(BuildError, match=r"fitted on the columns merchant, when, amount; model\.inputs have shop"):
        made(tmp_path, live(model), {**WIDE, "shop": IDS}, (TensorSpec(name="shop", datatype="INT64"), *TENSORS[1:]))


def test_names_that_the_model_does_not_know_are_no_order(tmp_path: Path) -> None:
    """Taken in the manifest's order, columns that were renamed and exchanged would answer wrongly."""
    model = LinearRegression().fit(FRAME, AMOUNT)
    renamed = [TensorSpec(name=tensor.name.title(), datatype=tensor.datatype) for tensor in reversed(TENSORS)]
    inputs = {tensor.name: WIDE[tensor.name.lower()] for tensor in renamed}
    with pytest.raises(BuildError, match="have Amount, When, Merchant, which it does not know"):
        made(tmp_path, live(model), inputs, tuple(renamed))


@pytest.mark.parametrize(
    "kind", [lightgbm.LGBMClassifier(**SMALL), xgboost.XGBClassifier(n_estimators=30, enable_categorical=True)]
)
def test_pandas_categories_are_given_as_their_codes(tmp_path: Path, kind: Any) -> None:
    city = pandas.Categorical(np.array(["Bern", "Genf", "Lugano"])[IDS % 3])
    frame = pandas.DataFrame({"city": city, "amount": AMOUNT})
    model = kind.fit(frame, LABELS)
    inputs = {"city": city.codes.astype(np.int32), "amount": AMOUNT}
    tensors = (TensorSpec(name="city", datatype="INT32"), TENSORS[2])
    found = answers(tmp_path, model, inputs, tensors)
    np.testing.assert_allclose(found, model.predict_proba(frame)[:, 1], rtol=1e-6)


@pytest.mark.parametrize(
    "kind", [lightgbm.LGBMClassifier(**SMALL), xgboost.XGBClassifier(n_estimators=30, enable_categorical=True)]
)
@pytest.mark.parametrize("last", [False, True], ids=["alone", "last step"])
def test_pandas_categories_that_are_numbers_must_be_their_own_codes(tmp_path: Path, kind: Any, last: bool) -> None:
    """An id that is taken for a category's place would be answered wrongly, by the reference too."""
    model = make_pipeline("passthrough", kind) if last else kind
    tensors = (TensorSpec(name="shop", datatype="INT64"), TENSORS[2])
    inputs = {"shop": np.array([101, 204, 305, 412, 518, 623, 7])[IDS % 7], "amount": AMOUNT}
    model.fit(pandas.DataFrame(inputs).astype({"shop": "category"}), LABELS)
    with pytest.raises(BuildError, match=r"whose 7 categories are the numbers 7, 101, .*places, 0 to 6") as refused:
        made(tmp_path, live(model), inputs, tensors)
    assert "OrdinalEncoder" in refused.value.hint


@pytest.mark.parametrize(
    "kind", [lightgbm.LGBMClassifier(**SMALL), xgboost.XGBClassifier(n_estimators=30, enable_categorical=True)]
)
def test_pandas_categories_that_are_their_own_codes_are_served(tmp_path: Path, kind: Any) -> None:
    inputs = {"shop": IDS % 7, "amount": AMOUNT}
    frame = pandas.DataFrame(inputs).astype({"shop": "category"})
    model = kind.fit(frame, LABELS)
    found = answers(tmp_path, model, inputs, (TensorSpec(name="shop", datatype="INT64"), TENSORS[2]))
    np.testing.assert_allclose(found, model.predict_proba(frame)[:, 1], rtol=1e-6)


def test_the_way_out_of_categories_that_are_numbers_answers_as_the_object(tmp_path: Path) -> None:
    """Ids stay in requests: an OrdinalEncoder in the Pipeline makes the codes."""
    inputs = {"shop": np.array([101, 204, 305, 412, 518, 623, 7])[IDS % 7], "amount": AMOUNT}
    coded = make_column_transformer((OrdinalEncoder(), ["shop"]), remainder="passthrough")
    model = make_pipeline(coded, lightgbm.LGBMClassifier(**SMALL))
    model.fit(pandas.DataFrame(inputs), LABELS, lgbmclassifier__categorical_feature=[0])
    found = answers(tmp_path, model, inputs, (TensorSpec(name="shop", datatype="INT64"), TENSORS[2]))
    np.testing.assert_array_equal(found, model.predict_proba(pandas.DataFrame(inputs))[:, 1])


def test_rows_of_mixed_types_reach_a_pipeline_as_it_was_fitted(tmp_path: Path) -> None:
    frame = FRAME.assign(city=np.where(IDS % 2, "Bern", "Genf"))
    prepare = make_column_transformer((OneHotEncoder(), ["city"]), (StandardScaler(), ["amount"]))
    model = make_pipeline(prepare, LogisticRegression()).fit(frame, LABELS)
    tensors = (TensorSpec(name="city", datatype="BYTES"), *TENSORS)
    inputs = {**WIDE, "city": frame["city"].to_numpy(dtype=object)}
    found = answers(tmp_path, model, inputs, tensors)
    np.testing.assert_array_equal(found, model.predict_proba(frame)[:, 1])


def test_missing_texts_are_the_models_nan(tmp_path: Path) -> None:
    city = np.where(IDS % 3 == 0, None, np.where(IDS % 2, "Bern", "Genf")).astype(object)
    frame = pandas.DataFrame({"city": np.where(city == None, np.nan, city)})  # noqa: E711
    model = make_pipeline(OneHotEncoder(), LogisticRegression()).fit(frame, LABELS)
    tensor = TensorSpec(name="city", datatype="BYTES", allow_nan=True)
    given = Holdout(inputs={"city": city}, labels=LABELS)
    section = Model(source=live(model), inputs=(tensor,), outputs=(TensorSpec(name="y"),))
    holdout = datatypes.fitted(given, section)
    assert set(holdout.inputs["city"].tolist()) == {"", "Bern", "Genf"}
    found = answers(tmp_path, model, holdout.inputs, (tensor,))
    np.testing.assert_array_equal(found, model.predict_proba(frame)[:, 1])
    with pytest.raises(BuildError, match=r"'city' has no text in row \d+ .*such rows"):
        datatypes.fitted(
            given, Model(source="m:m", inputs=(TensorSpec(name="city", datatype="BYTES"),), outputs=section.outputs)
        )


@pytest.mark.parametrize("array", [False, True], ids=["frame", "array"])
def test_an_encoder_that_saw_missing_texts_as_none_is_refused(tmp_path: Path, array: bool) -> None:
    """It would take NaN, which it is given, for an unknown category, and no answer would show that."""
    city = np.where(IDS % 3 == 0, None, np.where(IDS % 2, "Bern", "Genf")).astype(object)
    frame = pandas.DataFrame({"city": pandas.Series(city, dtype=object)})
    gaps, none = TensorSpec(name="city", datatype="BYTES", allow_nan=True), TensorSpec(name="city", datatype="BYTES")
    given = {"city": np.where(city == None, "", city).astype(object)}  # noqa: E711
    encoder = OneHotEncoder(handle_unknown="ignore")
    model = make_pipeline(encoder, LogisticRegression()).fit(frame.to_numpy() if array else frame, LABELS)
    with pytest.raises(
        BuildError, match=r"the OneHotEncoder was fitted on None as a category of the column"
    ) as refused:
        made(tmp_path, live(model), given, (gaps,))
    assert "fillna(numpy.nan)" in refused.value.hint
    made(tmp_path, live(model), {"city": np.where(IDS % 2, "Bern", "Genf").astype(object)}, (none,))
    filled = frame.fillna(np.nan)
    model.fit(filled.to_numpy() if array else filled, LABELS)
    expected = model.predict_proba(filled.to_numpy() if array else filled)[:, 1]
    np.testing.assert_array_equal(answers(tmp_path, model, given, (gaps,)), expected)


def test_a_datatype_that_rounds_the_holdout_is_refused_with_the_value(tmp_path: Path) -> None:
    model = lightgbm.LGBMClassifier(**SMALL).fit(STACKED, LABELS)
    tensors = tuple(TensorSpec(name=name) for name in WIDE)  # FP32, which is the default
    section = Model(source=live(model), inputs=tensors, outputs=(TensorSpec(name="y"),))
    holdout = datatypes.fitted(Holdout(inputs=WIDE, labels=LABELS), section)
    with pytest.raises(
        BuildError, match=r"answers change, .*input 'when', FP32: np\.int64\(1790\d+\) becomes"
    ) as refused:
        sources.make(tmp_path, Manifest(Deployment(name="m", model=section), tmp_path, {}), holdout)
    assert "FP64, INT64" in refused.value.hint


def test_unix_times_in_an_array_of_floats_are_the_objects_own(tmp_path: Path) -> None:
    both = np.column_stack([IDS, WHEN]).astype(float)
    model = lightgbm.LGBMClassifier(**SMALL).fit(both, LABELS)
    floats = tuple(TensorSpec(name=tensor.name, datatype="FP64") for tensor in TENSORS[:2])
    inputs = {"merchant": IDS.astype(float), "when": WHEN.astype(float)}
    np.testing.assert_array_equal(answers(tmp_path, model, inputs, floats), model.predict_proba(both)[:, 1])


def test_a_booster_predicts_with_the_rounds_that_it_predicts_with(tmp_path: Path) -> None:
    rows = RNG.normal(size=(ROWS, 3)).astype(np.float32)
    data, watched = xgboost.DMatrix(rows[:200], LABELS[:200]), xgboost.DMatrix(rows[200:], LABELS[200:])
    booster = xgboost.train(
        {"objective": "binary:logistic", "eta": 0.9},
        data,
        40,
        evals=[(watched, "v")],
        early_stopping_rounds=3,
        verbose_eval=False,
    )
    assert booster.best_iteration + 1 < booster.num_boosted_rounds()
    found = answers(tmp_path, booster, {"x": rows}, (TensorSpec(name="x", shape=(-1, 3)),))
    np.testing.assert_array_equal(found, booster.predict(xgboost.DMatrix(rows)))


@pytest.mark.torch
def test_state_outside_the_state_dict_is_seen(tmp_path: Path) -> None:
    import torch

    class Shifted(torch.nn.Module):
        def __init__(self, shift: float) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 1)
            self.shift = shift  # neither a parameter nor a buffer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x).squeeze(1) + self.shift

    shifts = iter((1.0, 2.0, 3.0))
    module = live(None).partition(":")[0]
    sys.modules[module].model = lambda: Shifted(next(shifts))  # type: ignore[attr-defined]
    rows = RNG.normal(size=(40, 3)).astype(np.float32)
    with pytest.raises(BuildError, match=r"output 'y' differs in 40 of 40 holdout rows, by up to 1") as refused:
        made(tmp_path, f"{module}:model", {"x": rows}, (TensorSpec(name="x", shape=(-1, 3)),))
    assert "state dict" in refused.value.hint


def test_differs_knows_nan_infinity_and_rounding() -> None:
    own = np.array([1.0, np.nan, np.inf, -np.inf, 1e-30, 5.0], dtype=np.float32)
    wrong, worst = reference.differs(own, own.copy())
    assert (wrong.any(), worst) == (False, 0.0)
    moved = own * np.float32(1 + 2e-6)
    assert not reference.differs(own, moved)[0].any()
    for place, value in ((1, 0.0), (2, np.nan), (2, -np.inf), (0, 1.001), (5, np.nan)):
        spoiled = own.copy()
        spoiled[place] = value
        assert np.flatnonzero(reference.differs(own, spoiled)[0]).tolist() == [place]
