"""Models on tables whose columns, inputs and outputs have awkward names: every variant answers as the model does."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from onnx import TensorProto, helper
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_transformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from tests.build_kit import live, made
from tests.table_kit import onnx_answers, table_work

from tailcut.builder.host_capabilities import look
from tailcut.builder.recipes import recipe
from tailcut.builder.tables.nodes import Graph
from tailcut.common.tensors import Arrays
from tailcut.errors import ArtifactError, BuildError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.tables import EstimatorTable, order_of

AWKWARD = [
    ("class", "a b", "a.b", 'a"b', "ü", "1st"),
    ("A", "a", "self", "index", "values", "columns"),
    ("constant_0", "constant_1", "cast_1", "concat_0", "reshape_0", "gather_2"),
    ("file", "allow_pickle", "labels", "answers", "T", "loc"),
    ("skl2onnx_0/given", "skl2onnx_1/given", "rows", "input/x", "given", "min"),
]
OUTPUTS = ["p", "file", "constant_2", "identity_3", "allow_pickle"]
"""One for each group of columns."""
HERE = look()
ROWS = 300


def fitted(columns: Sequence[str]) -> tuple[Any, Any]:
    """A pipeline in which a swapped column changes every answer, and its rows."""
    random = np.random.default_rng(11)
    frame = pandas.DataFrame({name: random.normal(place, place + 1, ROWS) for place, name in enumerate(columns)})
    labels = (frame.to_numpy() @ np.arange(1, len(columns) + 1)) > 80
    model = make_pipeline(
        make_column_transformer((StandardScaler(), list(columns[:2])), remainder="passthrough"),
        LogisticRegression(C=0.01),
    )
    return model.fit(frame, labels), frame


@pytest.mark.parametrize("columns", AWKWARD)
@pytest.mark.parametrize("wide", [False, True], ids=["an input each", "one input"])
def test_every_column_is_found_by_its_name(tmp_path: Path, columns: tuple[str, ...], wide: bool) -> None:
    model, frame = fitted(columns)
    turned = tuple(reversed(columns))  # the manifest's order is another one
    output = TensorSpec(name=OUTPUTS[AWKWARD.index(columns)], datatype="FP64")
    tensors: tuple[TensorSpec, ...] = tuple(TensorSpec(name=name, datatype="FP64") for name in turned)
    inputs: Arrays = {name: frame[name].to_numpy() for name in turned}
    if wide:
        tensors = (TensorSpec(name="constant_0", datatype="FP64", shape=(-1, len(turned)), columns=turned),)
        inputs = {"constant_0": frame[list(turned)].to_numpy()}
    work = table_work(tmp_path, model, inputs, tensors, output, HERE)
    recipe("onnx").make(work)
    np.testing.assert_allclose(onnx_answers(work, inputs), model.predict_proba(frame)[:, 1], rtol=1e-9)
    made = EstimatorTable(tensors, columns, "the model")(inputs)
    np.testing.assert_allclose(model.predict_proba(made), model.predict_proba(frame))


class Clip(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no type information
    """A step as users write it: it keeps no names, and gives the kind of table that it gets."""

    def __init__(self, arrays: bool = False, ratio: bool = False, names: bool = False) -> None:
        self.arrays, self.ratio, self.names = arrays, ratio, names

    def fit(self, X: Any, y: Any = None) -> Clip:
        self.low_ = -100.0
        if self.names:
            self.feature_names_in_ = X.columns.to_numpy()
        return self

    def transform(self, X: Any) -> Any:
        if self.ratio:
            X = X.assign(ratio=X["pulse"] / X["pressure"])
        clipped = X.clip(self.low_, 1000.0)
        return np.asarray(clipped) if self.arrays else clipped


VITALS = ("pulse", "pressure", "sugar")
TURNED = tuple(TensorSpec(name=name, datatype="FP64") for name in ("pressure", "sugar", "pulse"))


def vitals(first: Any, *, search: bool = False) -> tuple[Any, Any]:
    """A pipeline whose first step is the user's own, on columns of one scale, and its rows."""
    random = np.random.default_rng(13)
    frame = pandas.DataFrame({name: random.normal(80 + place, 12, ROWS) for place, name in enumerate(VITALS)})
    labels = (0.12 * (frame["pulse"] - 80) + 0.02 * (frame["sugar"] - 82) + random.normal(0, 0.5, ROWS)) > 0
    model = make_pipeline(first, StandardScaler(), LogisticRegression())
    return (GridSearchCV(model, {}, cv=2) if search else model).fit(frame, labels), frame


@pytest.mark.parametrize("search", [False, True], ids=["pipeline", "search"])
@pytest.mark.parametrize(
    "first", [Clip(), Clip(ratio=True), Clip(arrays=True, names=True)], ids=["clip", "ratio", "names"]
)
def test_columns_of_an_own_first_step_are_found_by_name(tmp_path: Path, first: Clip, search: bool) -> None:
    model, frame = vitals(first, search=search)
    inputs: Arrays = {tensor.name: frame[tensor.name].to_numpy() for tensor in TURNED}
    _, work = made(tmp_path, live(model), inputs, TURNED, TensorSpec(name="p", datatype="FP64"))
    answered = work.open(work.base).run(inputs, ["p"])["p"]
    np.testing.assert_allclose(answered, model.predict_proba(frame)[:, 1], rtol=1e-12)
    with pytest.raises(BuildError, match="no exact ONNX form"):
        recipe("onnx").make(table_work(tmp_path, model, inputs, TURNED, TensorSpec(name="p", datatype="FP64"), HERE))


def test_an_order_that_no_step_tells_is_refused_or_one_tensor(tmp_path: Path) -> None:
    """In the manifest's order, columns of one scale would be exchanged without an error."""
    model, frame = vitals(Clip(arrays=True))
    inputs: Arrays = {tensor.name: frame[tensor.name].to_numpy() for tensor in TURNED}
    refuse = r"does not say in which order it was fitted on the 3 columns .*: its first step, a Clip, keeps no"
    with pytest.raises(BuildError, match=refuse) as refused:
        made(tmp_path, live(model), inputs, TURNED)
    assert "one tensor of shape [-1, columns]" in refused.value.hint
    wide: Arrays = {"x": frame.to_numpy()}
    tensor = TensorSpec(name="x", datatype="FP64", shape=(-1, 3))
    _, work = made(tmp_path, live(model), wide, (tensor,), TensorSpec(name="p", datatype="FP64"))
    answered = work.open(work.base).run(wide, ["p"])["p"]
    np.testing.assert_allclose(answered, model.predict_proba(frame.to_numpy())[:, 1], rtol=1e-12)


@pytest.mark.parametrize("search", [False, True], ids=["pipeline", "search"])
def test_a_vectorizer_gets_the_texts_of_one_input(tmp_path: Path, search: bool) -> None:
    """It takes (rows,); in (rows, 1) every row would be an array and no text."""
    random = np.random.default_rng(14)
    words = np.array(["great", "nice", "fast", "slow", "broken", "late"])
    picked = random.integers(0, 6, (ROWS, 3))
    texts = np.array([" ".join(row) for row in words[picked].tolist()], dtype=object)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression())
    model = (GridSearchCV(model, {}, cv=2) if search else model).fit(texts, picked.sum(axis=1) > 7)
    inputs, tensors = {"text": texts}, (TensorSpec(name="text", datatype="BYTES"),)
    _, work = made(tmp_path, live(model), inputs, tensors, TensorSpec(name="p", datatype="FP64"))
    answered = work.open(work.base).run(inputs, ["p"])["p"]
    np.testing.assert_array_equal(answered, model.predict_proba(texts)[:, 1])


def test_lightgbm_keeps_spaces_as_underscores(tmp_path: Path) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    columns = ("a b", "class", "ü.1")
    random = np.random.default_rng(12)
    frame = pandas.DataFrame({name: random.normal(place, 1, ROWS) for place, name in enumerate(columns)})
    model = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(frame, frame["a b"] > frame["ü.1"] - 2)
    tensors = tuple(TensorSpec(name=name, datatype="FP64") for name in reversed(columns))
    inputs = {name: frame[name].to_numpy() for name in reversed(columns)}
    work = table_work(tmp_path, model, inputs, tensors, TensorSpec(name="p", datatype="FP64"), HERE)
    recipe("onnx").make(work)
    np.testing.assert_allclose(onnx_answers(work, inputs), model.predict_proba(frame)[:, 1], rtol=1e-9)


def test_a_column_that_two_inputs_fill_is_refused() -> None:
    tensors = (TensorSpec(name="a"), TensorSpec(name="x", shape=(-1, 2), columns=("a", "b")))
    with pytest.raises(ArtifactError, match="two inputs fill the column 'a' of the model"):
        order_of(["a", "b"], tensors, "the model")


def test_a_part_from_another_converter_makes_room_for_the_inputs() -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.DOUBLE, [None, 1]) for name in ("given", "out")]
    made = helper.make_graph([helper.make_node("Neg", ["given"], ["out"])], "g", values[:1], values[1:])
    part = helper.make_model(made)
    taken = {"skl2onnx_0/given", "_skl2onnx_0/out"}
    graph = Graph(taken)
    end = graph.merge(part, ["skl2onnx_0/given"], "skl2onnx")
    assert not taken & {name for node in graph.nodes for name in node.output}
    assert end == graph.nodes[-1].output[0]
