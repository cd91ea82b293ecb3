"""Models on tables in ONNX give the answers of the user's own object, or are refused with the step named."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import pytest
import xgboost
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import ModelProto
from sklearn.compose import ColumnTransformer, TransformedTargetRegressor, make_column_selector
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.ensemble import (
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
    VotingClassifier,
)
from sklearn.feature_selection import SelectKBest
from sklearn.impute import KNNImputer, MissingIndicator, SimpleImputer
from sklearn.linear_model import (
    GammaRegressor,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
    TweedieRegressor,
)
from sklearn.model_selection import GridSearchCV
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    RobustScaler,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import LinearSVC, LinearSVR
from sklearn.tree import DecisionTreeClassifier
from tests.table_kit import onnx_answers, table_work
from threadpoolctl import threadpool_limits

from tailcut.builder.host_capabilities import look
from tailcut.builder.recipes import recipe
from tailcut.builder.tables import estimators, fallback, features, scalers, steps
from tailcut.builder.tables import model as tables
from tailcut.builder.tables.comparing import wrong_rows
from tailcut.builder.tables.edges import answered, edges
from tailcut.builder.tables.live import Live, table_of
from tailcut.builder.tables.nodes import Graph, model_of, run, value_info
from tailcut.errors import ArtifactError, BuildError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.sklearn import fitted_names
from tailcut.models.runtimes.tables import EstimatorTable

HERE = look()
N = 800
RNG = np.random.default_rng(11)

MERCHANT = 400_000_000 + RNG.integers(0, 40, N)
WHEN = 1_790_000_000 + RNG.integers(0, 4 * 3600, N)
AMOUNT = RNG.exponential(30, N)
AGE = np.where(RNG.random(N) < 0.15, np.nan, RNG.normal(40, 12, N).round(1))
SEX = RNG.choice(["male", "female"], N).astype(object)
PORT = RNG.choice(["S", "C", "Q", ""], N, p=[0.6, 0.2, 0.15, 0.05]).astype(object)
CITY = np.array([f"city {number}" for number in RNG.integers(0, 150, N)], object)
KIND = RNG.integers(0, 6, N).astype(np.uint8)
FLAG = RNG.random(N) < 0.4
SHORT = RNG.normal(size=N).astype(np.float32)
STEP = np.where(RNG.random(N) < 0.2, np.nan, RNG.integers(0, 5, N) * 0.1)
LEVEL = np.where(RNG.random(N) < 0.1, np.nan, RNG.integers(0, 9, N))

RISKY = ((MERCHANT % 7 == 3) * 0.6 + ((WHEN // 60) % 10 < 2) * 0.3 + (SEX == "male") * 0.2 + RNG.random(N) * 0.4) > 0.55
BINARY = RISKY.astype(int)
CLASSES = np.digitize(AMOUNT + KIND * 3 + (SEX == "male") * 10, [15, 40])
VALUES = AMOUNT * 3 + KIND.astype(float) ** 2 + (SEX == "male") * 10 + RNG.random(N)

INPUTS: dict[str, Any] = {
    "merchant": MERCHANT,
    "when": WHEN,
    "amount": AMOUNT,
    "age": AGE,
    "sex": SEX,
    "port": PORT,
    "city": CITY,
    "kind": KIND,
    "flag": FLAG,
    "short": SHORT,
    "step": STEP,
    "level": LEVEL,
}
TENSORS = {
    name: TensorSpec(name=name, datatype=datatype, shape=(-1,), allow_nan=name in {"age", "port", "step", "level"})
    for name, datatype in {
        "merchant": "INT64",
        "when": "INT64",
        "amount": "FP64",
        "age": "FP64",
        "sex": "BYTES",
        "port": "BYTES",
        "city": "BYTES",
        "kind": "UINT8",
        "flag": "BOOL",
        "short": "FP32",
        "step": "FP64",
        "level": "FP64",
    }.items()
}
FRAME = pd.DataFrame({**INPUTS, "port": np.where(PORT == "", np.nan, PORT).astype(object)})

ONE, ONE64 = TensorSpec(name="y"), TensorSpec(name="y", datatype="FP64")
TWO, THREE = TensorSpec(name="y", shape=(-1, 2)), TensorSpec(name="y", shape=(-1, 3))

ID = ("merchant", "when", "amount")
TITANIC = ("age", "amount", "sex", "port", "kind")


def lgbm(**settings: Any) -> Any:
    return lightgbm.LGBMClassifier(n_estimators=12, verbose=-1, min_child_samples=5, n_jobs=1, **settings)


def xgb(**settings: Any) -> Any:
    return xgboost.XGBClassifier(n_estimators=10, n_jobs=1, **settings)


def array(names: tuple[str, ...]) -> Any:
    return np.column_stack([INPUTS[name] for name in names])


def prepared(categories: Any = None, scaler: Any = None) -> ColumnTransformer:
    """Numbers with gaps and text with gaps, as on every tutorial's first page."""
    numbers = make_pipeline(SimpleImputer(strategy="median", add_indicator=True), scaler or StandardScaler())
    text = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(handle_unknown="ignore"))
    parts = [("num", numbers, ["age", "amount"]), ("cat", categories or text, ["sex", "port"])]
    return ColumnTransformer(parts, remainder="passthrough")


def on_frame(model: Any, names: tuple[str, ...], target: Any = BINARY) -> Any:
    return model.fit(FRAME[list(names)], target)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """Threads that wait for one another cost more than these small models."""
    with threadpool_limits(1):
        yield


Case = tuple[Callable[[], Any], tuple[str, ...], TensorSpec]

ARRAYS: dict[str, Case] = {
    "lightgbm": (lambda: lgbm().fit(array(ID), BINARY), ID, ONE),
    "lightgbm in double": (lambda: lgbm().fit(array(ID), BINARY), ID, ONE64),
    "lightgbm both columns": (lambda: lgbm().fit(array(ID), BINARY), ID, TWO),
    "lightgbm classes": (lambda: lgbm().fit(array(ID), CLASSES), ID, THREE),
    "lightgbm whole numbers": (lambda: lgbm().fit(array(ID[:2]).astype(float), BINARY), ID[:2], ONE),
    "lightgbm gaps": (lambda: lgbm().fit(array(("step", "age")), np.isnan(STEP)), ("step", "age"), ONE),
    "lightgbm categories": (
        lambda: lgbm(max_cat_to_onehot=1, min_data_per_group=5).fit(
            array(("kind", "step")), BINARY, categorical_feature=[0]
        ),
        ("kind", "step"),
        ONE,
    ),
    "lightgbm categories with gaps": (
        lambda: lgbm(max_cat_to_onehot=1, min_data_per_group=5).fit(
            array(("level", "amount")), LEVEL % 3 == 1, categorical_feature=[0]
        ),
        ("level", "amount"),
        ONE,
    ),
    "xgboost": (lambda: xgb().fit(array(ID), BINARY), ID, ONE),
    "xgboost gaps": (lambda: xgb().fit(array(("step", "when")), BINARY), ("step", "when"), ONE),
    "histograms": (lambda: HistGradientBoostingClassifier(max_iter=10).fit(array(ID), BINARY), ID, ONE),
    "histograms of classes": (lambda: HistGradientBoostingClassifier(max_iter=4).fit(array(ID), CLASSES), ID, THREE),
    "histograms of values": (lambda: HistGradientBoostingRegressor(max_iter=10).fit(array(ID), VALUES), ID, ONE64),
    "forest": (lambda: RandomForestClassifier(5, random_state=0).fit(array(ID), BINARY), ID, ONE),
    "forest of classes": (lambda: RandomForestClassifier(4, random_state=0).fit(array(ID), CLASSES), ID, THREE),
    "forest of values": (lambda: RandomForestRegressor(4, random_state=0).fit(array(ID[:2]), VALUES), ID[:2], ONE64),
    "boosting": (lambda: GradientBoostingClassifier(n_estimators=8).fit(array(ID), BINARY), ID, ONE),
    "tree with gaps": (
        lambda: DecisionTreeClassifier(max_depth=5).fit(array(("step", "when")), BINARY),
        ("step", "when"),
        ONE,
    ),
    "logistic, not scaled": (lambda: LogisticRegression(solver="liblinear").fit(array(ID), BINARY), ID, ONE64),
    "logistic of Unix times": (
        lambda: make_pipeline(StandardScaler(), LogisticRegression()).fit(array(ID), BINARY),
        ID,
        ONE64,
    ),
    "logistic of classes": (
        lambda: make_pipeline(RobustScaler(), LogisticRegression()).fit(array(ID), CLASSES),
        ID,
        THREE,
    ),
    "one against the rest": (
        lambda: make_pipeline(StandardScaler(), SGDClassifier(loss="log_loss", random_state=0)).fit(array(ID), CLASSES),
        ID,
        THREE,
    ),
    "clipped": (
        lambda: make_pipeline(StandardScaler(), SGDClassifier(loss="modified_huber", random_state=0)).fit(
            array(ID), CLASSES
        ),
        ID,
        THREE,
    ),
    "linear": (lambda: LinearRegression().fit(array(ID), VALUES), ID, ONE64),
    "linear of float32": (lambda: Ridge().fit(SHORT[:, None], VALUES), ("short",), ONE),
    "several targets": (lambda: LinearRegression().fit(array(ID), np.column_stack([VALUES] * 3)), ID, THREE),
    "support vectors": (lambda: make_pipeline(MinMaxScaler(), LinearSVR()).fit(array(ID), VALUES), ID, ONE64),
    "poisson": (lambda: make_pipeline(MinMaxScaler(), PoissonRegressor()).fit(array(ID), VALUES), ID, ONE64),
    "gamma": (lambda: make_pipeline(StandardScaler(), GammaRegressor()).fit(array(ID), VALUES + 1), ID, ONE64),
    "tweedie": (lambda: make_pipeline(StandardScaler(), TweedieRegressor(power=0)).fit(array(ID), VALUES), ID, ONE64),
    "perceptron": (
        lambda: make_pipeline(StandardScaler(), MLPClassifier((6,), max_iter=300, random_state=0)).fit(
            array(ID), BINARY
        ),
        ID,
        ONE,
    ),
    "scaled lightgbm": (lambda: make_pipeline(StandardScaler(), lgbm()).fit(array(ID), BINARY), ID, ONE),
    "votes": (
        lambda: VotingClassifier(
            [("a", make_pipeline(StandardScaler(), LogisticRegression())), ("b", lgbm())], voting="soft", weights=[1, 2]
        ).fit(array(ID), BINARY),
        ID,
        ONE64,
    ),
    "search": (
        lambda: GridSearchCV(
            make_pipeline(StandardScaler(), LogisticRegression()), {"logisticregression__C": [0.1, 1]}, cv=2
        ).fit(array(ID), BINARY),
        ID,
        ONE,
    ),
    "logarithm of the target": (
        lambda: TransformedTargetRegressor(
            make_pipeline(StandardScaler(), Ridge()), func=np.log1p, inverse_func=np.expm1
        ).fit(array(ID), VALUES),
        ID,
        ONE64,
    ),
    "objects": (
        lambda: make_pipeline(
            ColumnTransformer([("c", OneHotEncoder(handle_unknown="ignore"), [0]), ("n", StandardScaler(), [1])]),
            LogisticRegression(),
        ).fit(np.column_stack([SEX, AMOUNT.astype(object)]), BINARY),
        ("sex", "amount"),
        ONE,
    ),
}

STEPS: dict[str, Any] = {
    "min max": MinMaxScaler(clip=True),
    "max abs": MaxAbsScaler(),
    "robust": RobustScaler(),
    "l1": Normalizer("l1"),
    "l2": Normalizer("l2"),
    "binary": Binarizer(threshold=25.0),
    "bins": KBinsDiscretizer(5, quantile_method="averaged_inverted_cdf"),
    "bin numbers": KBinsDiscretizer(4, encode="ordinal", quantile_method="averaged_inverted_cdf"),
    "products": make_pipeline(StandardScaler(), PolynomialFeatures(3)),
    "interactions": make_pipeline(StandardScaler(), PolynomialFeatures(2, interaction_only=True, include_bias=False)),
    "components": PCA(2, whiten=True),
    "singular values": TruncatedSVD(2),
    "best columns": SelectKBest(k=2),
    "power": PowerTransformer(),
    "logarithm": FunctionTransformer(np.log1p),
    "none": FunctionTransformer(),
    "union": FeatureUnion([("a", PCA(2)), ("b", MinMaxScaler())], transformer_weights={"a": 0.5}),
}

FRAMES: dict[str, Case] = {
    **{
        f"titanic {name}": (lambda last=last: on_frame(make_pipeline(prepared(), last), TITANIC), TITANIC, ONE)
        for name, last in {
            "logistic": LogisticRegression(max_iter=500),
            "lightgbm": lgbm(),
            "xgboost": xgb(),
            "forest": RandomForestClassifier(5, random_state=0),
            "histograms": HistGradientBoostingClassifier(max_iter=8),
        }.items()
    },
    **{
        f"categories {name}": (
            lambda encoder=encoder: on_frame(make_pipeline(prepared(encoder), lgbm()), TITANIC),
            TITANIC,
            ONE,
        )
        for name, encoder in {
            "missing": OneHotEncoder(handle_unknown="ignore"),
            "dropped": OneHotEncoder(drop="first", min_frequency=100, handle_unknown="infrequent_if_exist"),
            "numbered": OrdinalEncoder(
                handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=np.nan
            ),
            "target": TargetEncoder(random_state=0),
            "constant": make_pipeline(
                SimpleImputer(strategy="constant", fill_value="none"), OneHotEncoder(handle_unknown="ignore")
            ),
        }.items()
    },
    "target of classes": (
        lambda: on_frame(make_pipeline(prepared(TargetEncoder(random_state=0)), lgbm()), TITANIC, CLASSES),
        TITANIC,
        THREE,
    ),
    "sparse zeros are missing to xgboost": (
        lambda: on_frame(
            make_pipeline(
                ColumnTransformer([("c", OneHotEncoder(handle_unknown="ignore"), ["city"])], remainder="passthrough"),
                xgb(),
            ),
            ("city", "kind"),
            ((KIND == 0) | (KIND > 3)).astype(int),
        ),
        ("city", "kind"),
        ONE,
    ),
    "sparse scaled": (
        lambda: on_frame(
            make_pipeline(
                ColumnTransformer([("c", OneHotEncoder(handle_unknown="ignore"), ["city"])], remainder="passthrough"),
                StandardScaler(with_mean=False),
                LogisticRegression(),
            ),
            ("city", "amount"),
        ),
        ("city", "amount"),
        ONE,
    ),
    "pandas between steps": (
        lambda: on_frame(
            make_pipeline(
                ColumnTransformer(
                    [("v", SimpleImputer(), ["age"]), ("o", "passthrough", ["city", "kind"])],
                    verbose_feature_names_out=False,
                ),
                ColumnTransformer(
                    [
                        ("s", StandardScaler(), ["age", "kind"]),
                        ("o", OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1), ["city"]),
                    ]
                ),
                lgbm(),
            ).set_output(transform="pandas"),
            ("city", "age", "kind"),
        ),
        ("city", "age", "kind"),
        ONE,
    ),
    "selectors": (
        lambda: on_frame(
            make_pipeline(
                ColumnTransformer(
                    [
                        (
                            "n",
                            make_pipeline(SimpleImputer(), StandardScaler()),
                            make_column_selector(dtype_include="f"),
                        ),
                        ("c", OneHotEncoder(handle_unknown="ignore"), make_column_selector("port|flag")),
                    ]
                ),
                LogisticRegression(),
            ),
            ("port", "amount", "age", "flag"),
        ),
        ("port", "amount", "age", "flag"),
        ONE,
    ),
    "slices and masks": (
        lambda: on_frame(
            make_pipeline(
                ColumnTransformer(
                    [
                        ("n", StandardScaler(), slice(1, 3)),
                        ("t", "passthrough", [True, False, False, False]),
                        ("d", "drop", [3]),
                    ]
                ),
                LogisticRegression(),
            ),
            ("short", "amount", "when", "kind"),
        ),
        ("short", "amount", "when", "kind"),
        ONE,
    ),
    "nested": (
        lambda: on_frame(
            make_pipeline(
                ColumnTransformer(
                    [
                        (
                            "o",
                            ColumnTransformer(
                                [("a", StandardScaler(), ["amount"]), ("b", OrdinalEncoder(dtype=np.int64), ["sex"])]
                            ),
                            ["sex", "amount"],
                        )
                    ],
                    remainder=MinMaxScaler(),
                ),
                RandomForestClassifier(4, random_state=0),
            ),
            ("sex", "amount", "kind"),
        ),
        ("sex", "amount", "kind"),
        ONE,
    ),
    "float categories": (
        lambda: on_frame(
            make_pipeline(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()), ("step", "flag", "merchant")
        ),
        ("step", "flag", "merchant"),
        ONE,
    ),
    "flags of gaps": (
        lambda: on_frame(
            make_pipeline(FeatureUnion([("a", SimpleImputer()), ("b", MissingIndicator())]), lgbm()), ("age", "step")
        ),
        ("age", "step"),
        ONE,
    ),
    "other values are missing": (
        lambda: on_frame(
            make_pipeline(
                SimpleImputer(missing_values=0, strategy="most_frequent", add_indicator=True), LogisticRegression()
            ),
            ("kind", "merchant"),
        ),
        ("kind", "merchant"),
        ONE,
    ),
    "lightgbm behind nothing": (
        lambda: on_frame(Pipeline([("p", "passthrough"), ("m", lgbm())]), ("merchant", "when")),
        ("merchant", "when"),
        ONE,
    ),
    "float32 and int64": (
        lambda: on_frame(make_pipeline(StandardScaler(), lgbm()), ("short", "when")),
        ("short", "when"),
        ONE,
    ),
    "float32 alone": (
        lambda: on_frame(make_pipeline(StandardScaler(), MinMaxScaler(), lgbm()), ("short", "kind")),
        ("short", "kind"),
        ONE,
    ),
    **{
        f"step {name}": (
            lambda step=step: on_frame(make_pipeline(step, Ridge()), ("amount", "when"), VALUES),
            ("amount", "when"),
            ONE64,
        )
        for name, step in STEPS.items()
    },
}


def rows_of(names: tuple[str, ...]) -> dict[str, Any]:
    return {name: INPUTS[name] for name in names}


def own_answers(model: Any, names: tuple[str, ...], output: TensorSpec, *, frame: bool) -> Any:
    """Call the user's object as a user does."""
    given: Any = FRAME[list(names)] if frame else array(names)
    if names == ("sex", "amount"):
        given = np.column_stack([SEX, AMOUNT.astype(object)])
    if isinstance(model, lightgbm.LGBMModel):
        given = given.astype(float)  # LightGBM rounds an array of whole numbers, and nothing else, to float32
    found = model.predict_proba(given) if hasattr(model, "predict_proba") else model.predict(given)
    return found[:, 1] if found.ndim == 2 and output.shape == (-1,) else found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", [*ARRAYS, *FRAMES])
def test_onnx_answers_as_the_users_own_object(tmp_path: Path, name: str) -> None:
    make, names, output = (ARRAYS | FRAMES)[name]
    model = make()
    work = table_work(tmp_path, model, rows_of(names), tuple(TENSORS[each] for each in names), output, HERE)
    evidence = recipe("onnx").make(work).found
    assert evidence["holdout"]["wrong"] == 0
    assert evidence["edges"]["rows"] > 0
    own = own_answers(model, names, output, frame=name in FRAMES)
    found = onnx_answers(work, rows_of(names))
    assert found.shape == own.shape
    assert found.dtype == (np.float64 if output is ONE64 else np.float32)
    limit = 2e-5 if evidence["float32"] else 1e-9 if output is ONE64 else 5e-7
    np.testing.assert_allclose(found, own, rtol=limit, atol=limit * np.abs(own).max())
    empty = onnx_answers(work, {each: INPUTS[each][:0] for each in names})
    assert empty.shape == (0, *own.shape[1:])
    one = onnx_answers(work, {each: INPUTS[each][3:4] for each in names})
    np.testing.assert_allclose(one, found[3:4], rtol=limit)


def test_ids_and_unix_times_keep_every_digit(tmp_path: Path) -> None:
    """float32 has one value for 32 neighbouring ids; LightGBM was trained in double."""
    model = lgbm(num_leaves=31).fit(array(ID), BINARY)
    work = table_work(tmp_path, model, rows_of(ID), tuple(TENSORS[each] for each in ID), ONE, HERE)
    evidence = recipe("onnx").make(work).found
    own = model.predict_proba(array(ID))[:, 1]
    np.testing.assert_array_equal(onnx_answers(work, rows_of(ID)), own.astype(np.float32))
    rounded = model.predict_proba(array(ID).astype(np.float32))[:, 1]
    assert (np.abs(rounded - own) > 0.05).sum() > 50, "these rows would not show float32"
    assert not evidence["float32"]
    assert evidence["thresholds"]["rows"] >= 2 * evidence["thresholds"]["splits"] > 100


def test_thresholds_rounded_to_float32_are_found_by_the_probes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = estimators._double_node

    def rounded(table: Any, feature: int, mode: int, split: float, *rest: Any) -> None:
        node(table, feature, mode, float(np.float32(split)), *rest)

    monkeypatch.setattr(estimators, "_double_node", rounded)
    model = lgbm().fit(AMOUNT[:, None], BINARY)
    work = table_work(tmp_path, model, {"amount": AMOUNT}, (TENSORS["amount"],), ONE, HERE)
    with pytest.raises(BuildError, match="rows at the trees' thresholds get other answers"):
        recipe("onnx").make(work)


def test_an_unknown_category_that_the_source_refuses_has_no_answer(tmp_path: Path) -> None:
    model = on_frame(make_pipeline(prepared(OneHotEncoder()), LogisticRegression()), TITANIC)
    work = table_work(tmp_path, model, rows_of(TITANIC), tuple(TENSORS[each] for each in TITANIC), ONE, HERE)
    assert recipe("onnx").make(work).found["edges"]["refused"] > 0
    inputs = {name: INPUTS[name][:3].copy() for name in TITANIC}
    before = onnx_answers(work, inputs)
    inputs["sex"][1] = "unknown"
    after = onnx_answers(work, inputs)
    assert np.isnan(after[1])
    np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])


def test_infinity_that_the_source_refuses_has_no_answer(tmp_path: Path) -> None:
    model = on_frame(make_pipeline(SimpleImputer(), LogisticRegression()), ("age", "step"))
    tensors = (TENSORS["age"], TENSORS["step"])
    work = table_work(tmp_path, model, rows_of(("age", "step")), tensors, ONE, HERE)
    recipe("onnx").make(work)
    found = onnx_answers(work, {"age": np.array([np.inf, np.nan, 30.0]), "step": np.array([0.1, 0.1, np.nan])})
    assert np.isnan(found).tolist() == [True, False, False]


@pytest.mark.parametrize(("step", "refused"), [(Binarizer(), [False, True]), (MinMaxScaler(), [False, False])])
def test_a_step_left_to_skl2onnx_refuses_nan_as_the_fitted_one_does(step: Any, refused: list[bool]) -> None:
    graph, rows = Graph(), np.array([[1.0, 2.0], [3.0, 4.0]])
    table = replace(table_of(rows)[0], loose=True)
    fallback.step(graph, step.fit(rows), table, Live(rows, step.transform(rows)))
    end = graph.add("Identity", [graph.guards[0]])
    model = model_of(graph, [value_info("given", np.float64, [-1, 2])], [value_info(end, np.float64, [-1, 1])])
    found = run(model, {"given": np.array([[1.0, 2.0], [3.0, np.nan]])})
    assert np.isnan(found[:, 0]).tolist() == refused


def test_a_value_on_the_threshold_of_a_binarizer_is_not_above_it() -> None:
    """skl2onnx's form says that it is."""
    rows = np.column_stack([KIND.astype(np.int64), MERCHANT])
    found, expected = converted(Binarizer(threshold=3).fit(rows), rows)
    np.testing.assert_array_equal(found, expected)
    assert found.dtype == np.int64


def test_every_step_without_an_exact_form_is_named_with_the_way_out(tmp_path: Path) -> None:
    prep = ColumnTransformer(
        [("num", KNNImputer(), ["age"]), ("own", FunctionTransformer(lambda rows: rows * 2), ["amount"])]
    )
    model = on_frame(Pipeline([("prep", prep), ("clf", LinearSVC())]), ("age", "amount"))
    work = table_work(tmp_path, model, rows_of(("age", "amount")), (TENSORS["age"], TENSORS["amount"]), ONE, HERE)
    with pytest.raises(BuildError) as refused:
        recipe("onnx").make(work)
    said = refused.value.message
    assert "step 'prep' > 'num' (KNNImputer): skl2onnx cannot convert it" in said
    assert "step 'prep' > 'own' (FunctionTransformer): its function '<lambda>' is Python code" in said
    assert "step 'clf' (LinearSVC): it has no predict_proba" in said
    assert refused.value.hint == (
        "the 'sklearn' variant serves it unchanged; or move this step into the preprocess hook"
    )


def test_a_step_that_onnxruntime_does_not_open_is_named_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code, file and signature in front of it would take the room that the reason needs."""

    def refuse(*arguments: object, **options: object) -> None:
        raise RuntimeError(
            "[ONNXRuntimeError] : 1 : FAIL : Exception during initialization: /onnxruntime_src/onnxruntime/core/"
            "providers/cpu/text/string_normalizer.cc:235 onnxruntime::StringNormalizer::Locale::Locale("
            "const std::string&)::<lambda()> Failed to construct locale with name:en_US.UTF-8"
        )

    model = on_frame(make_pipeline(KNNImputer(), LogisticRegression()), ("age", "step"))
    work = table_work(tmp_path, model, rows_of(("age", "step")), (TENSORS["age"], TENSORS["step"]), ONE, HERE)
    monkeypatch.setattr("skl2onnx.to_onnx", lambda *arguments, **options: ModelProto())
    monkeypatch.setattr("onnxruntime.InferenceSession", refuse)
    with pytest.raises(BuildError) as refused:
        recipe("onnx").make(work)
    reason = "onnxruntime cannot open the conversion by skl2onnx: Failed to construct locale with name:en_US.UTF-8"
    assert f"(KNNImputer): {reason}" in refused.value.message


def test_a_model_with_a_step_that_computes_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(graph: Graph, step: Any, table: Any, live: Live) -> Any:
        made = scalers.robust(graph, step, table, live)
        block = made.blocks[0]
        short = graph.cast(graph.cast(block.name, block.dtype, np.float32), np.float32, np.float64)
        return scalers.one(short, made.width, np.float64, made)

    monkeypatch.setitem(steps._CONVERTERS, "RobustScaler", wrong)
    model = on_frame(make_pipeline(prepared(scaler=RobustScaler()), LogisticRegression()), TITANIC)
    work = table_work(tmp_path, model, rows_of(TITANIC), tuple(TENSORS[each] for each in TITANIC), ONE64, HERE)
    with pytest.raises(BuildError, match="holdout rows get other answers than from the source model"):
        recipe("onnx").make(work)


def test_a_column_that_is_no_input_is_named(tmp_path: Path) -> None:
    model = on_frame(make_pipeline(StandardScaler(), LogisticRegression()), ("amount", "when"))
    tensors = (TENSORS["amount"], TensorSpec(name="time", datatype="INT64"))
    with pytest.raises(ArtifactError, match="have time, which it does not know; lack when"):
        tables.table_of_inputs(Graph(), model, tensors)


def test_columns_of_a_wide_tensor_have_their_own_names(tmp_path: Path) -> None:
    names = ("amount", "age")
    model = on_frame(make_pipeline(SimpleImputer(), LogisticRegression()), names)
    tensor = TensorSpec(name="x", datatype="FP64", shape=(-1, 2), columns=("age", "amount"), allow_nan=True)
    inputs = {"x": np.column_stack([AGE, AMOUNT])}
    work = table_work(tmp_path, model, inputs, (tensor,), ONE64, HERE)
    recipe("onnx").make(work)
    np.testing.assert_allclose(onnx_answers(work, inputs), model.predict_proba(FRAME[list(names)])[:, 1], rtol=1e-9)


def test_a_model_fitted_on_an_array_has_no_column_names() -> None:
    assert fitted_names(make_pipeline(StandardScaler(), lgbm()).fit(array(ID), BINARY)) is None
    assert fitted_names(Pipeline([("p", "passthrough"), ("m", lgbm().fit(array(ID), BINARY))])) is None
    named = on_frame(Pipeline([("p", "passthrough"), ("m", lgbm())]), ("when", "amount"))
    assert fitted_names(named) == ["when", "amount"]


def test_an_empty_text_is_missing_only_where_the_input_may_be() -> None:
    inputs = {"text": np.array(["a", "", ""], object)}
    for allowed, expected in ((True, [False, True, True]), (False, [False, False, False])):
        tensor = TensorSpec(name="text", datatype="BYTES", allow_nan=allowed)
        assert EstimatorTable((tensor,), ["text"], "it")(inputs)["text"].isna().tolist() == expected


def converted(step: Any, given: Any) -> Any:
    """Run one converted step on what the live one gets."""
    graph = Graph()
    table, feeds = table_of(given)
    live = Live(given, step.transform(given))
    made = steps.as_live(graph, steps.converter_of(step)(graph, step, table, live), live.out)
    end = graph.add("Identity", [made.blocks[0].name])
    inputs = [value_info(block.name, block.dtype, [-1, block.width]) for block in table.blocks]
    model = model_of(graph, inputs, [value_info(end, made.blocks[0].dtype, [-1, made.width])])
    return run(model, feeds), live.out


WORDS = st.sampled_from(["a", "b", "", "ä", "a ", "nan", "0"])
COLUMNS = (
    st.lists(WORDS, min_size=4, max_size=12),
    st.lists(st.integers(-(2**60), 2**60) | st.integers(-3, 3), min_size=4, max_size=12),
    st.lists(st.sampled_from([0.1, 0.5, -0.0, 1e300, float("nan"), 2.0**53]), min_size=4, max_size=12),
)


@settings(max_examples=60, deadline=None)
@given(values=st.one_of(*COLUMNS), share=st.integers(1, 4), kind=st.sampled_from(["one hot", "ordinal"]))
def test_encoders_know_every_category_unknown_and_missing_ones_too(values: list[Any], share: int, kind: str) -> None:
    text = any(isinstance(value, str) for value in values)
    column = np.array(values, dtype=object if text else None).reshape(-1, 1)
    given: Any = pd.DataFrame({"c": column[:, 0]})
    step: Any = (
        OneHotEncoder(handle_unknown="ignore", sparse_output=False)
        if kind == "one hot"
        else OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
    )
    step.fit(given.iloc[: len(values) // share])
    found, expected = converted(step, given)
    np.testing.assert_array_equal(found, expected)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.floats(-0.999, 700), min_size=1, max_size=20), st.sampled_from([np.log1p, np.expm1]))
def test_logarithms_near_zero_keep_their_digits(values: list[float], function: Any) -> None:
    rows = np.array([*values, 1e-12, -1e-9])[:, None]
    found, expected = converted(FunctionTransformer(function), rows)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-300)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=6, max_size=20), st.booleans())
def test_scalers_round_as_numpy_does(values: list[float], short: bool) -> None:
    rows = np.array(values)[:, None].astype(np.float32 if short else np.float64)
    for step in (StandardScaler(), MinMaxScaler(), MaxAbsScaler(), RobustScaler()):
        found, expected = converted(step.fit(rows), rows)
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == rows.dtype


def test_rows_that_a_model_refuses_are_told_apart() -> None:
    def picky(inputs: Any) -> Any:
        if (inputs["x"] < 0).any():
            raise ValueError("negative")
        return inputs["x"] * 2

    mask, answers = answered(picky, {"x": np.array([1.0, -1.0, 3.0, 4.0, -2.0])})
    assert mask.tolist() == [True, False, True, True, False]
    assert answers.tolist() == [2.0, 6.0, 8.0]


def test_edges_hold_numbers_beyond_float32_and_missing_values() -> None:
    tensors = (TENSORS["when"], TENSORS["age"], TENSORS["port"])
    made = edges(tensors, {name: INPUTS[name] for name in ("when", "age", "port")})
    assert {2**24 + 1, 2**31, 2**53 + 1, 2**63 - 1} <= set(made.inputs["when"].tolist())
    assert np.isnan(made.inputs["age"]).any()
    assert np.isinf(made.inputs["age"]).any()
    assert "" in made.inputs["port"].tolist()


def test_what_counts_as_rounding() -> None:
    expected = np.array([0.5, 1e-3, np.nan, np.inf])
    given_ = np.array([0.5 + 1e-8, 1e-3, np.nan, 1.0])
    assert wrong_rows(expected, given_, single=False)[0].tolist() == [True, False, False, True]
    assert wrong_rows(expected, given_, single=True)[0].tolist() == [False, False, False, True]


def test_a_function_with_python_inside_has_no_form() -> None:
    with pytest.raises(features.Unconvertible, match=r"np\.log1p"):
        features.apply(Graph(), "x", len)
    step = OneHotEncoder().fit(pd.DataFrame({"c": ["a", "b"]}))
    numbers = pd.DataFrame({"c": [1, 2]})
    with pytest.raises(steps.Unconvertible, match="fitted on text and is given numbers"):
        steps.one_hot_encoder(Graph(), step, table_of(numbers)[0], Live(numbers, np.zeros((2, 2))))


def test_probabilities_keep_their_tails(tmp_path: Path) -> None:
    """onnxruntime's Sigmoid is 0 below -37 or so; the object's answers are 1e-80, and rank the rows."""
    rows = np.linspace(-2, 2, N)[:, None]
    labels = (rows[:, 0] > 0).astype(int)
    x = TensorSpec(name="x", datatype="FP64", shape=(-1, 1))
    for model in (LogisticRegression(C=1e8, max_iter=2000), MLPClassifier((), max_iter=1)):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model.fit(rows, labels)
        if isinstance(model, MLPClassifier):
            model.coefs_ = [np.array([[90.0]])]
        work = table_work(tmp_path, model, {"x": rows}, (x,), ONE64, HERE)
        recipe("onnx").make(work)
        own = model.predict_proba(rows)[:, 1]
        assert 0 < own.min() < 1e-60
        np.testing.assert_allclose(onnx_answers(work, {"x": rows}), own, rtol=1e-9)


@pytest.mark.parametrize("output", [ONE, TensorSpec(name="p", shape=(-1, 2))], ids=["one", "two"])
def test_forests_on_doubles_may_answer_in_float32(tmp_path: Path, output: TensorSpec) -> None:
    """Sums in float32 differ from sums in double by rounding, on every row."""
    rows = np.column_stack([AMOUNT, WHEN.astype(float)])
    for model in (RandomForestClassifier(100, random_state=0), GradientBoostingClassifier(random_state=0)):
        model.fit(rows, BINARY)
        x = TensorSpec(name="x", datatype="FP64", shape=(-1, 2))
        recipe("onnx").make(table_work(tmp_path, model, {"x": rows}, (x,), output, HERE))
