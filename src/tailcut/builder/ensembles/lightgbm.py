"""LightGBM boosters as an ``Ensemble``.

Source: LightGBM, include/LightGBM/tree.h (NumericalDecision, CategoricalDecision).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.ensembles import is_booster
from tailcut.builder.ensembles.base import LEAF, Ensemble, Link, Tree
from tailcut.common.tensors import Doubles
from tailcut.errors import BuildError

_LINKS: dict[str, Link] = {
    "binary": "sigmoid",
    "cross_entropy": "sigmoid",
    "multiclass": "softmax",
    "multiclassova": "sigmoid",
    "poisson": "exp",
    "gamma": "exp",
    "tweedie": "exp",
    **dict.fromkeys(
        ("regression", "regression_l1", "huber", "fair", "quantile", "mape", "lambdarank", "rank_xendcg", ""),
        "identity",
    ),
}


def booster_of(model: Any) -> Any:
    """Return the Booster of an estimator, or the Booster itself, with the trees that it predicts with only."""
    import lightgbm

    # The text form keeps the best iteration's trees, where early stopping found one, and frees the training data.
    return lightgbm.Booster(model_str=_booster(model).model_to_string())


def save(booster: Any, path: Path) -> dict[str, int]:
    """Write LightGBM's own text; returns the size of the model, for the evidence."""
    booster.save_model(str(path))
    return {"trees": booster.num_trees()}


def categories(model: Any) -> list[tuple[str, Sequence[Any]]]:
    """Return the categories of each pandas column of categories that the model was fitted on.

    LightGBM keeps the lists in the order of the columns, but not which columns they are: their names are empty.
    """
    return [("", list(values)) for values in _booster(model).pandas_categorical or ()]


def _booster(model: Any) -> Any:
    return model if is_booster(model) else model.booster_


def is_binary(booster: Any) -> bool:
    """Tell whether a booster answers with the probability of the second of two classes."""
    return str(booster.dump_model(num_iteration=1).get("objective", "")).split()[:1] == ["binary"]


def read(model: Any) -> Ensemble:
    """Read a Booster or an LGBM* estimator.

    Raises:
        BuildError: linear leaves, an objective whose link is not known, or zeros that count as missing.
    """
    booster = booster_of(model)
    if "is_linear=1" in booster.model_to_string():
        raise BuildError(
            "the LightGBM model has linear trees (linear_tree=true), for which ONNX has no operator: onnxruntime would "
            "answer with the leaves' constants",
            hint="serve the 'lightgbm' variant, or train with linear_tree=false",
        )
    dump = booster.dump_model()
    objective, *settings = str(dump.get("objective", "")).split()
    if objective not in _LINKS or "sqrt" in settings:
        raise BuildError(
            f"LightGBM objective {' '.join((objective, *settings))!r} has a link that is not known",
            hint="serve the 'lightgbm' variant, or train with another objective",
        )
    options = dict(text.split(":", 1) for text in settings if ":" in text)
    targets = int(dump["num_tree_per_iteration"])
    infos = dump["tree_info"]
    iterations = max(len(infos) // targets, 1)
    scale = float(options.get("sigmoid", 1.0)) if objective in {"binary", "multiclassova"} else 1.0
    share = 1.0 / iterations if dump.get("average_output") else 1.0
    return Ensemble(
        trees=tuple(_tree(info["tree_structure"], number % targets, share) for number, info in enumerate(infos)),
        features=int(dump["max_feature_idx"]) + 1,
        targets=targets,
        base=np.zeros(targets),
        less="<=",
        link=_LINKS[objective],
        scale=scale,
    )


def _tree(root: Mapping[str, Any], target: int, share: float) -> Tree:
    nodes: list[Mapping[str, Any]] = []
    left: list[int] = []
    right: list[int] = []

    def add(node: Mapping[str, Any]) -> int:
        place = len(nodes)
        nodes.append(node)
        left.append(LEAF)
        right.append(LEAF)
        if "left_child" in node:
            left[place] = add(node["left_child"])
            right[place] = add(node["right_child"])
        return place

    add(root)
    numeric = [node.get("decision_type") == "<=" for node in nodes]
    thresholds = [node["threshold"] if is_number else 0.0 for node, is_number in zip(nodes, numeric, strict=True)]
    return Tree(
        feature=np.array([node.get("split_feature", 0) for node in nodes]),
        threshold=_compared(np.array(thresholds, dtype=np.float64)),
        left=np.array(left),
        right=np.array(right),
        missing_left=np.array([is_number and _nan_left(node) for node, is_number in zip(nodes, numeric, strict=True)]),
        value=np.array([[node.get("leaf_value", 0.0) * share] for node in nodes]),
        targets=(target,),
        categories={
            place: tuple(int(text) for text in str(node["threshold"]).split("||"))
            for place, node in enumerate(nodes)
            if node.get("decision_type") == "=="
        },
    )


_LARGEST = 1e300
"""What a dump says of thresholds beyond it, infinity above all (Common::AvoidInf, include/LightGBM/utils/common.h)."""


_ZERO = float(np.float32(1e-35))
"""Values up to here count as zero in every prediction (kZeroThreshold, include/LightGBM/meta.h)."""


def _compared(thresholds: Doubles) -> Doubles:
    """Return the thresholds of a dump as LightGBM compares with them.

    Infinity, which parts NaN from all numbers, is given back; those between -_ZERO and _ZERO are moved to where zero's
    whole neighbourhood goes the way that zero goes.
    """
    whole = np.where(np.abs(thresholds) >= _LARGEST, np.copysign(np.inf, thresholds), thresholds)
    moved = np.where(whole < 0, np.nextafter(-_ZERO, -np.inf), _ZERO)
    return np.where(np.abs(whole) <= _ZERO, moved, whole)


def _nan_left(node: Mapping[str, Any]) -> bool:
    """Where NaN goes: the default direction where it counts as missing, else where 0 goes."""
    missing, default, zero_left = node["missing_type"], bool(node["default_left"]), float(node["threshold"]) >= 0.0
    if missing == "Zero" and default != zero_left:
        raise BuildError(
            "the LightGBM model counts zeros as missing (zero_as_missing=true), which ONNX's trees cannot",
            hint="serve the 'lightgbm' variant, or train with zero_as_missing=false and NaN where a value is missing",
        )
    return zero_left if missing == "None" else default
