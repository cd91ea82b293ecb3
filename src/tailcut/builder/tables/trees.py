"""An ``Ensemble`` as ONNX nodes, in float32 or in double.

Source: ONNX operators, ai.onnx.ml TreeEnsembleRegressor (float32 thresholds and sums) and TreeEnsemble (version 5,
double). The float32 form is taken where it is exact: on matrices of float32 whose answers are float32. For a single row
both take about as long.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tailcut.builder.ensembles.base import LEAF, Ensemble, Tree, down
from tailcut.builder.tables import double_trees
from tailcut.builder.tables.nodes import DOMAIN, DOUBLE, FLOAT, Graph


def add(graph: Graph, ensemble: Ensemble, matrix: str, *, double: bool) -> str:
    """Add the trees, their sum and the link; returns the answers' name, (rows, targets).

    Args:
        graph: to add to.
        ensemble: the trees.
        matrix: (rows, features), double or float32 as ``double`` says; rounded before where ``ensemble.rounds``.
        double: whether to compare, to add and to link in double.
    """
    matrix = _whole_categories(graph, ensemble, matrix, DOUBLE if double else FLOAT)
    if double:
        found = double_trees.add(graph, ensemble, matrix)
        if ensemble.link == "softmax":
            return graph.add("Softmax", [found], axis=1)
    else:
        graph.single = True
        found = graph.add("TreeEnsembleRegressor", [matrix], domain=DOMAIN, **_attributes(ensemble))
    # As operators of their own: of one target onnxruntime 1.31 leaves post_transform LOGISTIC out.
    if ensemble.link == "sigmoid":
        return graph.sigmoid(found, DOUBLE if double else FLOAT)
    return graph.add("Exp", [found]) if ensemble.link == "exp" else found


_CATEGORIES = float(2**31)
"""LightGBM looks a category up as a C int; what does not fit one is no category."""


def _whole_categories(graph: Graph, ensemble: Ensemble, matrix: str, dtype: Any) -> str:
    """Cut the fraction off in columns of categories, as LightGBM does (CategoricalDecision); what is no int is -1."""
    columns = {int(tree.feature[node]) for tree in ensemble.trees for node in tree.categories}
    if not columns:
        return matrix
    mask = graph.constant([[column in columns for column in range(ensemble.features)]], np.bool_)
    inside = graph.add("Less", [graph.add("Abs", [matrix]), graph.constant(_CATEGORIES, dtype)])
    whole = graph.cast(graph.cast(matrix, dtype, np.int64), np.int64, dtype)
    category = graph.add("Where", [inside, whole, graph.constant(-1.0, dtype)])
    return graph.add("Where", [mask, category, matrix])


def _attributes(ensemble: Ensemble) -> dict[str, Any]:
    table: dict[str, list[Any]] = {name: [] for name in (*_NODE, *_TARGET)}
    for number, tree in enumerate(ensemble.trees):
        _add(table, number, tree, ensemble)
    return {
        **table,
        "n_targets": ensemble.targets,
        "base_values": [float(value) for value in (ensemble.base * ensemble.scale).astype(np.float32)],
        "aggregate_function": "SUM",
        "post_transform": "SOFTMAX" if ensemble.link == "softmax" else "NONE",
    }


_NODE = (
    "nodes_treeids",
    "nodes_nodeids",
    "nodes_featureids",
    "nodes_modes",
    "nodes_values",
    "nodes_truenodeids",
    "nodes_falsenodeids",
    "nodes_missing_value_tracks_true",
)
_TARGET = ("target_treeids", "target_nodeids", "target_ids", "target_weights")


def _add(table: dict[str, list[Any]], number: int, tree: Tree, ensemble: Ensemble) -> None:
    split = "BRANCH_LT" if ensemble.less == "<" else "BRANCH_LEQ"
    # XGBoost's thresholds are float32 already.
    thresholds = down(tree.threshold)
    free = len(tree.left)
    for node in range(len(tree.left)):
        if tree.left[node] == LEAF:
            _node(table, number, node, 0, "LEAF", 0.0, 0, 0, False)
            for place, target in enumerate(tree.targets):
                weight = float(np.float32(tree.value[node, place] * ensemble.scale))
                for name, value in zip(_TARGET, (number, node, target, weight), strict=True):
                    table[name].append(value)
            continue
        feature, left, right = int(tree.feature[node]), int(tree.left[node]), int(tree.right[node])
        if node not in tree.categories:
            missing = bool(tree.missing_left[node])
            _node(table, number, node, feature, split, float(thresholds[node]), left, right, missing)
            continue
        # A set is a chain of equalities that share the left child; onnxruntime makes one membership test of it.
        values = tree.categories[node]
        chain = [node, *range(free, free + len(values) - 1)]
        free += len(values) - 1
        for place, value in zip(chain, values, strict=True):
            after = chain[chain.index(place) + 1] if place != chain[-1] else right
            _node(table, number, place, feature, "BRANCH_EQ", float(value), left, after, False)


def _node(table: dict[str, list[Any]], *values: Any) -> None:
    for name, value in zip(_NODE, values, strict=True):
        table[name].append(int(value) if isinstance(value, bool) else value)
