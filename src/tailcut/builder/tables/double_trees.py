"""An ``Ensemble`` in double: thresholds, leaves and sums as the library has them.

Source: ONNX operators, ai.onnx.ml TreeEnsemble (version 5). A leaf there adds to one target only, so that a tree whose
leaves add to several (a forest's classes) is written once per target.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tailcut.builder.ensembles.base import LEAF, Ensemble, Tree
from tailcut.builder.tables.nodes import DOMAIN, DOUBLE, Graph

# Modes of nodes, of TreeEnsemble.
_LEQ, _LT, _MEMBER = 0, 1, 6
_SUM, _NONE = 1, 0

_NODE = (
    "nodes_featureids",
    "nodes_modes",
    "nodes_splits",
    "nodes_missing_value_tracks_true",
    "nodes_truenodeids",
    "nodes_trueleafs",
    "nodes_falsenodeids",
    "nodes_falseleafs",
)
_MEMBERS = "membership_values"
_OTHERS = ("tree_roots", "leaf_targetids", "leaf_weights", _MEMBERS)
_TENSORS: dict[str, Any] = {
    "nodes_modes": np.uint8,
    "nodes_splits": np.float64,
    "leaf_weights": np.float64,
    _MEMBERS: np.float64,
}
"""Attributes that are tensors, with their dtypes; the others are lists of whole numbers."""

_Table = dict[str, list[Any]]
"""Columns of the operator's attributes, by name."""


def add(graph: Graph, ensemble: Ensemble, matrix: str) -> str:
    """Add trees and sum, scaled, without the link; returns (rows, targets) double."""
    from onnx import numpy_helper

    table: _Table = {name: [] for name in (*_NODE, *_OTHERS)}
    for tree in ensemble.trees:
        for place in range(len(tree.targets)):
            _add(table, tree, place, _LT if ensemble.less == "<" else _LEQ)
    attributes = {
        name: numpy_helper.from_array(np.array(values, _TENSORS[name])) if name in _TENSORS else values
        for name, values in table.items()
        if values or name != _MEMBERS
    }
    attributes |= {"n_targets": ensemble.targets, "aggregate_function": _SUM, "post_transform": _NONE}
    found = graph.add("TreeEnsemble", [matrix], domain=DOMAIN, **attributes)
    if ensemble.base.any():
        found = graph.add("Add", [found, graph.constant(ensemble.base, DOUBLE)])
    if ensemble.scale != 1.0:
        found = graph.add("Mul", [found, graph.constant(ensemble.scale, DOUBLE)])
    return found


def _add(table: _Table, tree: Tree, place: int, mode: int) -> None:
    start = len(table["nodes_modes"])
    table["tree_roots"].append(start)
    splits = [int(node) for node in tree.splits]
    if not splits:
        leaf = _leaf(table, tree, 0, place)
        # A root that is a leaf: a split both of whose sides are that leaf.
        _node(table, 0, mode, 0.0, False, (leaf, 1), (leaf, 1))
        return
    where = {node: start + number for number, node in enumerate(splits)}

    def child(node: int) -> tuple[int, int]:
        return (_leaf(table, tree, node, place), 1) if tree.left[node] == LEAF else (where[node], 0)

    for node in splits:
        inside = tree.categories.get(node)
        threshold = 0.0 if inside is not None else float(tree.threshold[node])
        missing = inside is None and bool(tree.missing_left[node])
        kind = mode if inside is None else _MEMBER
        left, right = child(int(tree.left[node])), child(int(tree.right[node]))
        _node(table, int(tree.feature[node]), kind, threshold, missing, left, right)
        if inside is not None:
            table[_MEMBERS] += [*(float(value) for value in inside), float("nan")]


def _leaf(table: _Table, tree: Tree, node: int, place: int) -> int:
    table["leaf_targetids"].append(tree.targets[place])
    table["leaf_weights"].append(float(tree.value[node, place]))
    return len(table["leaf_weights"]) - 1


def _node(
    table: _Table, feature: int, mode: int, split: float, missing: bool, true: tuple[int, int], false: tuple[int, int]
) -> None:
    """Add a node; of each side its number, and whether that is a leaf's."""
    for name, value in zip(_NODE, (feature, mode, split, int(missing), *true, *false), strict=True):
        table[name].append(value)
