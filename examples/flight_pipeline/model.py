"""The model, as most people write it: a ColumnTransformer in front of a LogisticRegression."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from flight_pipeline.data import FEATURES, NUMBERS, TEXTS, tables

if TYPE_CHECKING:
    from sklearn.pipeline import Pipeline

    from tailcut.build import Holdout


@functools.cache
def build() -> Pipeline:
    """Fit the pipeline on a DataFrame (a few seconds); the same rows give the same pipeline."""
    from sklearn.compose import ColumnTransformer
    from sklearn.impute import SimpleImputer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = make_pipeline(SimpleImputer(strategy="median"), StandardScaler())
    texts = make_pipeline(
        SimpleImputer(strategy="constant", fill_value="unknown"), OneHotEncoder(handle_unknown="ignore")
    )
    prepare = ColumnTransformer([("numbers", numbers, NUMBERS), ("texts", texts, TEXTS)])
    rows, _ = tables()
    return make_pipeline(prepare, LogisticRegression(max_iter=1000)).fit(rows[FEATURES], rows["late"])


def holdout() -> Holdout:
    """Return one array per column, the labels as text, and slices by airport of departure."""
    from tailcut.build import Holdout

    _, rows = tables()
    inputs = {name: rows[name].to_numpy(dtype=object if name in TEXTS else None) for name in FEATURES}
    return Holdout(inputs=inputs, labels=rows["late"].to_numpy(), slices={"origin": rows["origin"].to_numpy()})
