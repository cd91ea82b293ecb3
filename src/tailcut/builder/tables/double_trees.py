"""An ``Ensemble`` in double: thresholds, leaves and sums as the library has them.

Source: ONNX operators, ai.onnx.ml TreeEnsemble (version 5). A leaf there adds to one target only, so that a tree whose
leaves add to several (a forest's classes) is written once per target.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tailcut.builder.ensembles.base import LEAF, Ensemble, Tree
from tailcut.builder.tables.nodes import DOMAIN, DOUBLE, Graph

# Modes of nodes, of TreeEnsemble.
_LEQ, _LT, _MEMBER = 0, 1, 6
_SUM, _NONE = 1, 0


@dataclass
class _Table:
    """Columns of the operator's attributes."""

    roots: list[int] = field(default_factory=list)
    features: list[int] = field(default_factory=list)
    modes: list[int] = field(default_factory=list)
    splits: list[float] = field(default_factory=list)
    missing: list[int] = field(default_factory=list)
    true_ids: list[int] = field(default_factory=list)
    true_leafs: list[int] = field(default_factory=list)
    false_ids: list[int] = field(default_factory=list)
    false_leafs: list[int] = field(default_factory=list)
    members: list[float] = field(default_factory=list)
    targets: list[int] = field(default_factory=list)
    weights: list[float] = field(default_factory=list)


def add(graph: Graph, ensemble: Ensemble, matrix: str) -> str:
    """Add trees and sum, scaled, without the link; returns (rows, targets) double."""
    table = _Table()
    for tree in ensemble.trees:
        for place in range(len(tree.targets)):
            _add(table, tree, place, _LT if ensemble.less == "<" else _LEQ)
    found = graph.add("TreeEnsemble", [matrix], domain=DOMAIN, **_attributes(table, ensemble.targets))
    if ensemble.base.any():
        found = graph.add("Add", [found, graph.constant(ensemble.base, DOUBLE)])
    if ensemble.scale != 1.0:
        found = graph.add("Mul", [found, graph.constant(ensemble.scale, DOUBLE)])
    return found


def _add(table: _Table, tree: Tree, place: int, mode: int) -> None:
    splits = [int(node) for node in tree.splits]
    if not splits:
        leaf = _leaf(table, tree, 0, place)
        # A root that is a leaf: a split both of whose sides are that leaf.
        table.roots.append(len(table.modes))
        _node(table, 0, mode, 0.0, False, (leaf, 1), (leaf, 1))
        return
    start = len(table.modes)
    table.roots.append(start)
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
            table.members += [*(float(value) for value in inside), float("nan")]


def _leaf(table: _Table, tree: Tree, node: int, place: int) -> int:
    table.targets.append(tree.targets[place])
    table.weights.append(float(tree.value[node, place]))
    return len(table.weights) - 1


def _node(
    table: _Table, feature: int, mode: int, split: float, missing: bool, true: tuple[int, int], false: tuple[int, int]
) -> None:
    table.features.append(feature)
    table.modes.append(mode)
    table.splits.append(split)
    table.missing.append(int(missing))
    table.true_ids.append(true[0])
    table.true_leafs.append(true[1])
    table.false_ids.append(false[0])
    table.false_leafs.append(false[1])


def _attributes(table: _Table, targets: int) -> dict[str, Any]:
    from onnx import numpy_helper

    found = {
        "tree_roots": table.roots,
        "nodes_featureids": table.features,
        "nodes_modes": numpy_helper.from_array(np.array(table.modes, dtype=np.uint8)),
        "nodes_splits": numpy_helper.from_array(np.array(table.splits, dtype=np.float64)),
        "nodes_missing_value_tracks_true": table.missing,
        "nodes_truenodeids": table.true_ids,
        "nodes_trueleafs": table.true_leafs,
        "nodes_falsenodeids": table.false_ids,
        "nodes_falseleafs": table.false_leafs,
        "leaf_targetids": table.targets,
        "leaf_weights": numpy_helper.from_array(np.array(table.weights, dtype=np.float64)),
        "n_targets": targets,
        "aggregate_function": _SUM,
        "post_transform": _NONE,
    }
    if table.members:
        found["membership_values"] = numpy_helper.from_array(np.array(table.members, dtype=np.float64))
    return found
