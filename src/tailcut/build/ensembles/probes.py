"""Rows that lie on an ensemble's thresholds, and one float32 step to either side: where a conversion shows its errors.

Rows of a holdout seldom lie on a threshold, and never on most of them; production rows do (counts, rounded prices).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tailcut.build.ensembles.base import Bools, Ensemble, Floats, Ints, Tree

MOST_SPLITS = 4000
"""Splits that are looked at; of larger ensembles a seeded sample."""

_LARGEST = np.float32(np.finfo(np.float32).max)
_SMALLEST = np.float32(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Probes:
    """Rows at thresholds.

    Attributes:
        rows: (probes, features).
        feature: (probes,) column that was set.
        tree, node: (probes,) the split.
        splits: splits of the ensemble; ``looked`` of them have probes.
    """

    rows: Floats
    feature: Ints
    tree: Ints
    node: Ints
    splits: int
    looked: int


def probes(ensemble: Ensemble, background: Floats, integral: Bools, *, nan: Bools, seed: int = 0) -> Probes:
    """Make rows that reach a split and lie just below, on and just above its threshold.

    Args:
        ensemble: the trees.
        background: (rows, features) that the other columns are taken from, moved where the way to the split needs it.
        integral: (features,) columns that hold whole numbers only.
        nan: (features,) columns that may be NaN: such splits get a NaN probe as well.
        seed: of the sample.
    """
    rng = np.random.default_rng(seed)
    every = [(number, int(node)) for number, tree in enumerate(ensemble.trees) for node in tree.splits]
    chosen = every
    if len(every) > MOST_SPLITS:
        chosen = [every[place] for place in sorted(rng.choice(len(every), MOST_SPLITS, replace=False))]
    rows, where = [], []
    parents = {number: _parents(ensemble.trees[number]) for number in {number for number, _ in chosen}}
    for number, node in chosen:
        tree = ensemble.trees[number]
        row = background[rng.integers(len(background))].copy()
        _lead(row, tree, node, parents[number], ensemble.less, integral)
        if np.isnan(row[~nan]).any():
            continue  # only NaN comes to this split, and the column may hold none
        feature = int(tree.feature[node])
        for value in _values(tree, node, bool(integral[feature]), bool(nan[feature])):
            rows.append(np.where(np.arange(len(row)) == feature, value, row))
            where.append((feature, number, node))
    table = np.array(where, dtype=np.int64).reshape(-1, 3)
    stacked = np.array(rows, dtype=np.float32).reshape(-1, ensemble.features)
    return Probes(stacked, table[:, 0], table[:, 1], table[:, 2], len(every), len(chosen))


def _values(tree: Tree, node: int, integral: bool, nan: bool) -> list[np.float32]:
    if node in tree.categories:
        inside = tree.categories[node]
        found = [np.float32(inside[0]), np.float32(inside[-1]), np.float32(max(inside) + 1)]
    else:
        threshold = tree.threshold[node]
        if integral:
            found = [np.float32(np.floor(threshold)), np.float32(np.floor(threshold) + 1)]
        else:
            found = [step(threshold, -1), threshold, step(threshold, 1)]
    found = [value for value in found if np.isfinite(value)]
    return [*found, np.float32(np.nan)] if nan else found


def step(value: np.float32, direction: int) -> np.float32:
    """Return the next float32 in ``direction``; subnormals are left out, they count as zero in every session."""
    with np.errstate(over="ignore"):
        near = np.float32(np.nextafter(value, np.float32(np.inf * direction)))
    if near != 0 and abs(near) < _SMALLEST:
        if value == 0:
            return np.float32(_SMALLEST * direction)
        return np.float32(0.0)
    return near


def _parents(tree: Tree) -> dict[int, tuple[int, bool]]:
    """Child -> (parent, whether it is the left one)."""
    found = {}
    for node in tree.splits:
        found[int(tree.left[node])] = (int(node), True)
        found[int(tree.right[node])] = (int(node), False)
    return found


def _lead(row: Floats, tree: Tree, node: int, parents: dict[int, tuple[int, bool]], less: str, integral: Bools) -> None:
    """Move a row's values, as little as possible, so that it comes to ``node``."""
    while node in parents:
        node, left = parents[node]
        feature = int(tree.feature[node])
        value, threshold = row[feature], tree.threshold[node]
        if node in tree.categories:
            inside = tree.categories[node]
            goes_left = bool(value in inside)
            to_left, to_right = np.float32(inside[0]), np.float32(max(inside) + 1)
        else:
            goes_left = bool(value < threshold if less == "<" else value <= threshold)
            goes_left = bool(tree.missing_left[node]) if np.isnan(value) else goes_left
            to_left = step(threshold, -1) if less == "<" else threshold
            to_right = threshold if less == "<" else step(threshold, 1)
            if integral[feature]:
                to_left, to_right = np.float32(np.floor(to_left)), np.float32(np.ceil(to_right))
            # A threshold of infinity parts NaN from the numbers.
            to_left = np.minimum(to_left, _LARGEST)
            to_right = to_right if to_right <= _LARGEST else np.float32(np.nan)
        if goes_left != left:
            row[feature] = to_left if left else to_right
