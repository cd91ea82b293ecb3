"""The users' own objects: an estimator, a module or an ONNX file for each group, as people write them."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tests.matrix import networks
from tests.matrix.axes import ESTIMATORS, Group
from tests.matrix.tables import Column, Columns, datatypes, training

CATEGORICAL = frozenset({"lightgbm", "xgboost", "histgradient"})
"""Models that take text as pandas' categories."""


@lru_cache(maxsize=2)
def object_of(group: Group) -> Any:
    """Make the user's own object; the same one while the group is worked on. Of "onnx" it is the file's bytes."""
    if group.model == "torch":
        return networks.module(group)
    if group.model == "onnx":
        return networks.graph(group)
    table = training(group)
    made = _estimator(group)
    return made.fit(matrix(group, table.columns), table.labels if group.knows_classes else table.codes)


def save(group: Group, folder: Path) -> str:
    """Write what ``model.source`` needs into the group's folder, and return ``model.source``."""
    if group.model == "onnx":
        (folder / "model.onnx").write_bytes(object_of(group))
        return "model.onnx"
    return f"{group.slug}:build"


def matrix(group: Group, columns: Columns) -> Any:
    """Put columns into what the estimator is called with: a DataFrame where it was fitted on one, else an array."""
    if not group.on_frame:
        return np.column_stack(list(columns.values()))
    import pandas

    return pandas.DataFrame({name: _series(group, name, values) for name, values in columns.items()})


def _series(group: Group, name: str, values: Column) -> Any:
    import pandas

    if values.dtype.kind != "O":
        return values
    if group.model in CATEGORICAL:
        known = sorted(set(training(group).columns[name].tolist()))
        return pandas.Categorical(values, categories=known)
    return pandas.Series([value or np.nan for value in values.tolist()], dtype=object)


def _estimator(group: Group) -> Any:
    from sklearn.pipeline import make_pipeline

    classifies = bool(group.classes)
    end = _last(group, classifies)
    if group.model == "pipeline" or (group.values == "text" and group.model in ("tree", "forest", "linear")):
        return make_pipeline(_columns(group), end)
    if group.model == "linear":
        return make_pipeline(*_numbers(group), end) if group.values != "float32" else end
    return end


def _last(group: Group, classifies: bool) -> Any:
    """Return the estimator itself, or the last step of a pipeline."""
    from sklearn import ensemble, linear_model, tree

    text = group.values == "text"
    if group.model == "lightgbm":
        import lightgbm

        of = lightgbm.LGBMClassifier if classifies else lightgbm.LGBMRegressor
        return of(n_estimators=12, num_leaves=15, min_child_samples=8, n_jobs=1, verbose=-1, random_state=0)
    if group.model == "xgboost":
        import xgboost

        of = xgboost.XGBClassifier if classifies else xgboost.XGBRegressor
        return of(n_estimators=12, max_depth=4, n_jobs=1, random_state=0, enable_categorical=text)
    if group.model == "histgradient":
        of = ensemble.HistGradientBoostingClassifier if classifies else ensemble.HistGradientBoostingRegressor
        categorical = "from_dtype" if text else None
        return of(
            max_iter=12, max_leaf_nodes=15, early_stopping=False, random_state=0, categorical_features=categorical
        )
    if group.model == "tree":
        of = tree.DecisionTreeClassifier if classifies else tree.DecisionTreeRegressor
        return of(max_depth=6, random_state=0)
    if group.model == "forest":
        of = ensemble.RandomForestClassifier if classifies else ensemble.RandomForestRegressor
        return of(n_estimators=10, max_depth=6, random_state=0)
    return linear_model.LogisticRegression(C=3.0, max_iter=500) if classifies else linear_model.Ridge()


def _numbers(group: Group) -> list[Any]:
    """Return the steps that numbers go through."""
    from sklearn.impute import SimpleImputer
    from sklearn.preprocessing import StandardScaler

    return [*([SimpleImputer(strategy="median")] if group.values == "missing" else []), StandardScaler()]


def _columns(group: Group) -> Any:
    """Return a ColumnTransformer over numbers and text.

    One text column is encoded so that unknown words are ignored; of trees so that they are an error.
    """
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder

    texts = [name for name, datatype in datatypes(group).items() if datatype == "BYTES"]
    numbers = [name for name in datatypes(group) if name not in texts]
    if group.model in ("tree", "forest"):
        words = OrdinalEncoder()
        return ColumnTransformer([("words", words, texts)], remainder="passthrough")
    words = OneHotEncoder(handle_unknown="ignore", sparse_output=False)
    if group.model == "pipeline":
        words = make_pipeline(SimpleImputer(strategy="constant", fill_value="none"), words)
    steps = [("numbers", make_pipeline(*_numbers(group)), numbers)]
    return ColumnTransformer([*steps, ("words", words, texts)] if texts else steps)


def classes(group: Group) -> list[Any]:
    """Return what the model's scores are of, in their order: of an estimator what it says itself."""
    found = getattr(object_of(group), "classes_", None) if group.model in ESTIMATORS and group.knows_classes else None
    return list(group.classes) if found is None else list(found)
