"""Steps of models: each has a span of its own, by name and line, and the user's objects stay as they are."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.calibration import CalibratedClassifierCV, _CalibratedClassifier
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import FunctionTransformer, MinMaxScaler, StandardScaler
from sklearn.tree import DecisionTreeClassifier

import tailcut
from tailcut.profiler.hooks import estimators
from tailcut.profiler.recording.middleware import failed
from tailcut.profiler.recording.places import Places
from tailcut.profiler.recording.spans import one_line
from tailcut.profiler.recording.tracing import Trace, tracer

_HERE = "tests/unit/profiler/hooks/test_model_steps.py"
_ROWS = np.random.default_rng(0).normal(size=(60, 4))
_CLASSES = (_ROWS[:, 0] > 0).astype(int)


def doubled(rows: Any) -> Any:
    return rows * 2.0


class Shift(TransformerMixin, BaseEstimator):
    """The user's own, which calls a library's by hand."""

    def fit(self, rows: Any, _: Any = None) -> Shift:
        self.inner_ = StandardScaler().fit(rows)
        return self

    def transform(self, rows: Any) -> Any:
        return self.inner_.transform(rows) + 1.0


class Blend(BaseEstimator):
    """The user's own model, of two others."""

    def fit(self, rows: Any, classes: Any) -> Blend:
        self.one_, self.two_ = LogisticRegression().fit(rows, classes), RandomForestClassifier(5).fit(rows, classes)
        return self

    def predict_proba(self, rows: Any) -> Any:
        return (self.one_.predict_proba(rows) + self.two_.predict_proba(rows)) / 2


_HOOKED = (
    Pipeline, ColumnTransformer, FeatureUnion, GridSearchCV, CalibratedClassifierCV, RandomForestClassifier,
    LogisticRegression, StandardScaler, MinMaxScaler, FunctionTransformer, Shift, Blend, _CalibratedClassifier,
    DecisionTreeClassifier,
)  # fmt: skip


@pytest.fixture(autouse=True)
def hooked() -> Iterator[None]:
    """Hook the classes, and leave them as they were for the other tests."""
    before = {(one, name): vars(one)[name] for kind in _HOOKED for one in kind.__mro__ for name in vars(one)}
    behind = {found: found.fn for found in before.values() if hasattr(found, "fn")}
    for kind in _HOOKED:
        estimators.hook_class(kind)
    yield
    for descriptor, function in behind.items():
        descriptor.fn = function
    for (owner, name), found in before.items():
        if owner is not object and vars(owner).get(name) is not found:
            setattr(owner, name, found)


def tree(trace: Trace) -> list[tuple[int, str, str]]:
    """Depth, stage and label of each span."""
    found = []
    for span in trace.spans[1:]:
        depth, above = 0, span.parent
        while above is not None and above is not trace.spans[0]:
            depth, above = depth + 1, above.parent
        found.append((depth, str(span.stage), one_line(span.label)))
    return found


def scaled(first: Any = None) -> Pipeline:
    return Pipeline([("scale", first or StandardScaler()), ("net", LogisticRegression())])


_SCALED = ("Pipeline.predict_proba", "scale: StandardScaler.transform", "net: LogisticRegression.predict_proba")


def piped(last: Any) -> Pipeline:
    columns = ColumnTransformer([("low", StandardScaler(), [0, 1]), ("high", MinMaxScaler(), [2, 3])])
    inner = Pipeline([("columns", columns), ("twice", FunctionTransformer(doubled))])
    return Pipeline([("prepare", inner), ("shift", Shift()), ("model", last)])


def test_each_step_of_a_pipeline_is_named_by_its_way_and_by_the_line_that_calls_it(request_: Trace) -> None:
    model = piped(LogisticRegression()).fit(_ROWS, _CLASSES)
    request_.spans[1:] = []
    model.predict_proba(_ROWS[:1])
    shown = [(depth, stage, label.partition(" (")[0]) for depth, stage, label in tree(request_)]
    assert shown == [
        (0, "model", "Pipeline.predict_proba"),
        (1, "preprocess", "prepare: Pipeline.transform"),
        (2, "preprocess", "prepare > columns: ColumnTransformer.transform"),
        (3, "preprocess", "prepare > columns > low: StandardScaler.transform"),
        (3, "preprocess", "prepare > columns > high: MinMaxScaler.transform"),
        (2, "preprocess", "prepare > twice: doubled()"),
        (1, "preprocess", "shift: Shift.transform"),
        (2, "preprocess", "StandardScaler.transform"),
        (1, "model", "model: LogisticRegression.predict_proba"),
    ]
    labels = [one_line(span.label) for span in request_.spans[1:]]
    doubled_at, shift_at = doubled.__code__.co_firstlineno, inspect.unwrap(Shift.transform).__code__.co_firstlineno
    assert f"prepare > twice: doubled() ({_HERE}:{doubled_at})" in labels
    assert f"shift: Shift.transform ({_HERE}:{shift_at})" in labels
    places = {tracer.places.at(span.place, span.at) for span in request_.spans[1:] if not isinstance(span.place, str)}
    called = test_each_step_of_a_pipeline_is_named_by_its_way_and_by_the_line_that_calls_it.__code__.co_firstlineno + 3
    assert places == {f"{_HERE}:{called}", f"{_HERE}:{shift_at + 1}"}


@pytest.mark.parametrize(
    ("make", "labels"),
    [
        (lambda: RandomForestClassifier(20), ["RandomForestClassifier.predict_proba"]),
        (
            lambda: GridSearchCV(scaled(), {"net__C": [1]}, cv=2),
            [
                "GridSearchCV.predict_proba", *_SCALED,
            ],
        ),
        (
            lambda: CalibratedClassifierCV(scaled(), cv=2),
            [
                "CalibratedClassifierCV.predict_proba",
                *[label.replace("predict_proba", "decision_function") for label in _SCALED] * 2,
            ],
        ),
        (
            lambda: scaled(FeatureUnion([("a", StandardScaler()), ("b", MinMaxScaler())])),
            [
                "Pipeline.predict_proba",
                "scale: FeatureUnion.transform",
                "scale > a: StandardScaler.transform",
                "scale > b: MinMaxScaler.transform",
                "net: LogisticRegression.predict_proba",
            ],
        ),
        (Blend, ["Blend.predict_proba", "LogisticRegression.predict_proba", "RandomForestClassifier.predict_proba"]),
    ],
)  # fmt: skip
def test_what_an_estimator_is_put_together_from_is_shown_and_the_trees_of_a_forest_are_not(
    request_: Trace, make: Any, labels: list[str]
) -> None:
    model = make().fit(_ROWS, _CLASSES)
    request_.spans[1:] = []
    model.predict_proba(_ROWS[:1])
    shown = [label.partition(" (")[0] for _, _, label in tree(request_)]
    assert [label for label in shown if not label.startswith("LogisticRegression.decision")] == labels


def test_objects_answer_pickle_and_clone_as_before(request_: Trace) -> None:
    model = piped(RandomForestClassifier(5, random_state=0)).fit(_ROWS, _CLASSES)
    plain, stored = np.array(model.predict_proba(_ROWS)), pickle.dumps(model)
    held = {name: sorted(vars(step)) for name, step in model.named_steps.items()}
    assert (model.predict_proba(_ROWS) == plain).all()
    assert {name: sorted(vars(step)) for name, step in model.named_steps.items()} == held
    assert pickle.dumps(model) == stored
    assert b"tailcut" not in stored.replace(_HERE.encode(), b"")
    assert (clone(model).fit(_ROWS, _CLASSES).predict_proba(_ROWS) == plain).all()
    assert (pickle.loads(stored).predict_proba(_ROWS) == plain).all()


def test_a_traceback_of_the_application_has_no_frames_of_hooks(request_: Trace) -> None:
    model = piped(LogisticRegression()).fit(_ROWS, _CLASSES)
    tracer.failures.clear()
    try:
        model.predict_proba(_ROWS[:, :2])
    except ValueError as error:
        failed(error)
    assert "ValueError" in tracer.failures[0]
    assert "tailcut/profiler" not in tracer.failures[0]


def test_tailcut_s_own_files_are_never_the_user_s_wherever_it_is_installed() -> None:
    source = Path(tailcut.__file__).parent
    places = Places(str(source.parent))
    assert not any(places.is_user(str(file)) for file in source.rglob("*.py"))
    assert places.is_user(str(source.parent / "app.py"))


def test_a_step_that_raises_raises_as_before_and_ends_its_span(request_: Trace) -> None:
    model = piped(LogisticRegression()).fit(_ROWS, _CLASSES)
    with pytest.raises(ValueError, match="features"):
        model.predict_proba(_ROWS[:, :2])
    assert all(span.end_ns >= span.start_ns for span in request_.spans[1:])


def test_without_a_request_steps_are_the_plain_calls() -> None:
    model = piped(LogisticRegression()).fit(_ROWS, _CLASSES)
    assert model.predict_proba(_ROWS[:1]).shape == (1, 2)
