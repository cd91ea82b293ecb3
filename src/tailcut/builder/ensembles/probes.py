"""Rows that lie on an ensemble's thresholds, and one step of the dtype to either side: where a conversion shows errors.

Rows of a holdout seldom lie on a threshold, and never on most of them; production rows do (counts, rounded prices).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tailcut.builder.ensembles.base import Bools, Doubles, Ensemble, Ints, Tree, down

MOST_SPLITS = 4000
"""Splits that are looked at; of larger ensembles a seeded sample."""


@dataclass(frozen=True)
class Probes:
    """Rows at thresholds.

    Attributes:
        rows: (probes, features); float32 values where the matrix is float32.
        feature: (probes,) column that was set.
        tree, node: (probes,) the split.
        splits: splits of the ensemble; ``looked`` of them have probes.
    """

    rows: Doubles
    feature: Ints
    tree: Ints
    node: Ints
    splits: int
    looked: int


@dataclass(frozen=True)
class _Numbers:
    """How the ensemble compares: the dtype of the matrix, and of the comparison.

    Attributes:
        matrix: dtype of the rows.
        compared: float32 where the library or the matrix rounds, else float64.
        less: of the ensemble.
        integral: (features,) columns of whole numbers.
        nan: (features,) columns that may be NaN.
    """

    matrix: Any
    compared: Any
    less: str
    integral: Bools
    nan: Bools

    def on(self, threshold: float) -> Any:
        """Return the greatest value, as it is compared, that is not above a threshold."""
        return down(threshold)[()] if self.compared is np.float32 else np.float64(threshold)

    def left(self, value: float, tree: Tree, node: int) -> bool:
        """Tell where a split sends a value."""
        if node in tree.categories:
            return bool(np.abs(value) < 2**31 and int(value) in tree.categories[node])
        if np.isnan(value):
            return bool(tree.missing_left[node])
        with np.errstate(over="ignore"):
            value = float(self.compared(value))
        threshold = float(tree.threshold[node])
        return value < threshold if self.less == "<" else value <= threshold


def probes(
    ensemble: Ensemble, background: Doubles, integral: Bools, *, nan: Bools, dtype: Any = np.float64, seed: int = 0
) -> Probes:
    """Make rows that reach a split and lie just below, on and just above its threshold.

    Args:
        ensemble: the trees.
        background: (rows, features) that the other columns are taken from, moved where the way to the split needs it.
        integral: (features,) columns that hold whole numbers only.
        nan: (features,) columns that may be NaN: such splits get a NaN probe as well.
        dtype: of the matrix that the library is given, np.float32 or np.float64.
        seed: of the sample.
    """
    rng = np.random.default_rng(seed)
    compared = np.float32 if ensemble.rounds or dtype is np.float32 else np.float64
    numbers = _Numbers(dtype, compared, ensemble.less, integral, nan)
    every = [(number, int(node)) for number, tree in enumerate(ensemble.trees) for node in tree.splits]
    chosen = every
    if len(every) > MOST_SPLITS:
        chosen = [every[place] for place in sorted(rng.choice(len(every), MOST_SPLITS, replace=False))]
    rows, where = [], []
    parents = {number: _parents(ensemble.trees[number]) for number in {number for number, _ in chosen}}
    for number, node in chosen:
        tree = ensemble.trees[number]
        row = background[rng.integers(len(background))].astype(np.float64)
        _lead(row, tree, node, parents[number], numbers)
        if np.isnan(row[~nan]).any():
            continue  # only NaN comes to this split, and the column may hold none
        feature = int(tree.feature[node])
        for value in _values(tree, node, numbers):
            rows.append(np.where(np.arange(len(row)) == feature, value, row))
            where.append((feature, number, node))
    table = np.array(where, dtype=np.int64).reshape(-1, 3)
    stacked = np.array(rows, dtype=np.float64).reshape(-1, ensemble.features)
    return Probes(stacked, table[:, 0], table[:, 1], table[:, 2], len(every), len(chosen))


def _values(tree: Tree, node: int, numbers: _Numbers) -> list[float]:
    feature = int(tree.feature[node])
    found: list[Any]
    if node in tree.categories:
        inside = tree.categories[node]
        found = [inside[0], inside[-1], max(inside) + 1, -1]
        if not numbers.integral[feature]:
            found += [inside[0] + 0.5, -0.5, 2.0**31, 1e30]
    else:
        on = numbers.on(float(tree.threshold[node]))
        if numbers.integral[feature]:
            found = [np.floor(on), np.floor(on) + 1]
        else:
            found = [step(on, -1), on, step(on, 1)]
            if numbers.matrix is not numbers.compared:
                found += _between(on, step(on, 1))
    found = [float(value) for value in found if np.isfinite(value)]
    return [*found, float("nan")] if numbers.nan[feature] else found


def _between(low: Any, high: Any) -> list[Any]:
    """Return the double half way between two float32, and its neighbours: where rounding turns."""
    if not np.isfinite(high):
        return []
    middle = (np.float64(low) + np.float64(high)) / 2
    return [np.nextafter(middle, -np.inf), middle, np.nextafter(middle, np.inf)]


def step(value: Any, direction: int) -> Any:
    """Return the next value of the same dtype in ``direction``; subnormals are left out, every session zeroes them."""
    kind = type(value)
    smallest = kind(np.finfo(kind).tiny)
    with np.errstate(over="ignore", under="ignore"):
        near = kind(np.nextafter(value, kind(np.inf * direction)))
    if near != 0 and abs(near) < smallest:
        return kind(smallest * direction) if value == 0 else kind(0.0)
    return near


def _parents(tree: Tree) -> dict[int, tuple[int, bool]]:
    """Child -> (parent, whether it is the left one)."""
    found = {}
    for node in tree.splits:
        found[int(tree.left[node])] = (int(node), True)
        found[int(tree.right[node])] = (int(node), False)
    return found


def _lead(row: Doubles, tree: Tree, node: int, parents: dict[int, tuple[int, bool]], numbers: _Numbers) -> None:
    """Move a row's values, as little as possible, so that it comes to ``node``."""
    while node in parents:
        node, left = parents[node]
        feature = int(tree.feature[node])
        if numbers.left(float(row[feature]), tree, node) != left:
            row[feature] = _side(tree, node, left, numbers)


def _side(tree: Tree, node: int, left: bool, numbers: _Numbers) -> float:
    """Return a value that a split sends left or right."""
    if node in tree.categories:
        inside = tree.categories[node]
        return float(inside[0] if left else max(inside) + 1)
    on = numbers.on(float(tree.threshold[node]))
    value = (step(on, -1) if numbers.less == "<" else on) if left else (on if numbers.less == "<" else step(on, 1))
    if numbers.integral[int(tree.feature[node])]:
        value = np.floor(value) if left else np.ceil(value)
    # A threshold of infinity parts NaN from the numbers.
    largest = np.finfo(type(on)).max
    if left:
        return float(min(value, largest))
    return float(value) if value <= largest else float("nan")
