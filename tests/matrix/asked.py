"""Rows that a group is asked about: like those it was fitted on, exactly at its thresholds, and at the edges."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from tests.matrix.answers import count, rows_of
from tests.matrix.axes import Group
from tests.matrix.objects import object_of
from tests.matrix.tables import EXACT, Column, Columns, datatypes, draw, may_be_missing

LIKE_TRAINING = 40
THRESHOLDS = 12
ONE_ROW = 5

_FLOATS = {
    "FP32": (0.0, -0.0, 1e30, -1e30, 1e-30, 16777217.0, 0.1),
    "FP64": (0.0, -0.0, 1e30, -1e30, 1e-30, 16777217.0, 0.1, 1.000000001, 1e300),
}
_WHOLE = (0, -1, 2**24 + 1, 2**31, 400_000_001, EXACT + 1, -EXACT - 1, 2**62 + 1)
_TEXTS = ("Zürich", "never seen", "ZÜRICH", " x")


def rows(group: Group) -> Columns:
    """Return the rows."""
    rng = np.random.default_rng([group.place, 2])
    drawn = draw(group, LIKE_TRAINING, rng)
    changes = [*_thresholds(group, rng), *_edges(group)]
    base = draw(group, len(changes), rng)
    for place, (name, value) in enumerate(changes):
        base[name][place] = value
    return {name: np.concatenate([drawn[name], base[name]]) for name in drawn}


def single_rows(columns: Columns) -> list[Columns]:
    """Return a few rows of all kinds, each alone."""
    places = np.linspace(0, count(columns) - 1, ONE_ROW).astype(int)
    return [rows_of(columns, slice(place, place + 1)) for place in places]


def _edges(group: Group) -> Iterator[tuple[str, Any]]:
    """Yield values at the edges of the datatypes, a column at a time."""
    missing = may_be_missing(group)
    for name, datatype in datatypes(group).items():
        if datatype == "BYTES":
            yield from ((name, text) for text in (*_TEXTS, *([""] if name in missing else [])))
            continue
        values = _WHOLE if datatype == "INT64" else _FLOATS[datatype]
        yield from ((name, value) for value in values)
        if name in missing:
            yield from ((name, value) for value in (np.nan, np.inf, -np.inf))


def _thresholds(group: Group, rng: np.random.Generator) -> list[tuple[str, Any]]:
    """Choose splits of the trees: on the threshold, and the next value on either side."""
    found = sorted(set(_splits(group)))
    chosen = rng.permutation(len(found))[:THRESHOLDS]
    return [(found[place][0], value) for place in chosen for value in _around(group, *found[place])]


def _around(group: Group, name: str, threshold: float) -> tuple[Any, ...]:
    datatype = datatypes(group)[name]
    if datatype == "INT64":
        return (int(np.floor(threshold)), int(np.ceil(threshold)), int(np.floor(threshold)) + 1)
    dtype = np.float32 if datatype == "FP32" else np.float64
    at = dtype(threshold)
    return (np.nextafter(at, dtype(-np.inf)), at, np.nextafter(at, dtype(np.inf)))


def _splits(group: Group) -> Iterator[tuple[str, float]]:
    """Yield the splits of an estimator whose trees see the columns as they are."""
    if group.values == "text":
        return
    names = list(datatypes(group))
    found: Iterator[tuple[int, float]] = iter(())
    if group.model == "lightgbm":
        table = object_of(group).booster_.trees_to_dataframe().dropna(subset=["threshold"])
        known = object_of(group).booster_.feature_name()
        found = zip(map(known.index, table["split_feature"]), table["threshold"].astype(float), strict=True)
    elif group.model == "xgboost":
        table = object_of(group).get_booster().trees_to_dataframe().dropna(subset=["Split"])
        columns = [names.index(name) if name in names else int(name[1:]) for name in table["Feature"]]
        found = zip(columns, table["Split"].astype(float), strict=True)
    elif group.model in ("tree", "forest"):
        owned = object_of(group)
        trees = [each.tree_ for each in getattr(owned, "estimators_", [owned])]
        pairs = [pair for tree in trees for pair in zip(tree.feature.tolist(), tree.threshold.tolist(), strict=True)]
        found = iter([pair for pair in pairs if pair[0] >= 0])
    elif group.model == "histgradient":
        nodes = [each.nodes for round_ in object_of(group)._predictors for each in round_]
        found = ((int(n["feature_idx"]), float(n["num_threshold"])) for part in nodes for n in part if not n["is_leaf"])
    yield from ((names[column], threshold) for column, threshold in found if np.isfinite(threshold))


def finite(columns: Columns) -> Column:
    """Tell which rows JSON can say: NaN is null, infinity is nothing. (rows,)"""
    infinite = [np.isinf(values) for values in columns.values() if values.dtype.kind == "f"]
    return ~np.any(infinite, axis=0) if infinite else np.ones(count(columns), bool)
