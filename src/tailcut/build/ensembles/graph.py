"""An ``Ensemble`` as ONNX nodes. Source: ONNX operators, ai.onnx.ml TreeEnsembleRegressor (version 3)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tailcut.build.ensembles.base import LEAF, Ensemble, Tree

OPSET = 18
ML_OPSET = 3


def nodes(ensemble: Ensemble, matrix: str, output: str) -> tuple[list[Any], list[Any]]:
    """Return nodes and initializers from the float matrix ``matrix`` to ``output``.

    The output is (rows,) of one target, else (rows, targets).
    """
    from onnx import helper, numpy_helper

    attributes = _attributes(ensemble)
    made = [
        helper.make_node("TreeEnsembleRegressor", [matrix], ["trees"], name="trees", domain="ai.onnx.ml", **attributes)
    ]
    last = "trees"
    if ensemble.link in _OPERATORS:
        made.append(helper.make_node(_OPERATORS[ensemble.link], [last], ["link"], name="link"))
        last = "link"
    constants = []
    if ensemble.targets == 1:
        constants.append(numpy_helper.from_array(np.array([-1], dtype=np.int64), "flat"))
        made.append(helper.make_node("Reshape", [last, "flat"], [output], name="reshape"))
    else:
        made.append(helper.make_node("Identity", [last], [output], name="identity"))
    return made, constants


# As operators of their own: of one target onnxruntime 1.31 leaves post_transform LOGISTIC out.
_OPERATORS = {"exp": "Exp", "sigmoid": "Sigmoid"}


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
            threshold = float(tree.threshold[node])
            _node(table, number, node, feature, split, threshold, left, right, bool(tree.missing_left[node]))
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
