"""XGBoost boosters as an ``Ensemble``. Source: XGBoost, doc/model.schema and src/objective/."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.ensembles import is_booster
from tailcut.builder.ensembles.base import LEAF, Ensemble, Link, Tree
from tailcut.common.tensors import Doubles
from tailcut.errors import BuildError

_LINKS: dict[str, Link] = {
    **dict.fromkeys(("binary:logistic", "reg:logistic"), "sigmoid"),
    "multi:softprob": "softmax",
    **dict.fromkeys(("count:poisson", "reg:gamma", "reg:tweedie"), "exp"),
    **dict.fromkeys(
        (
            "reg:squarederror",
            "reg:squaredlogerror",
            "reg:absoluteerror",
            "reg:pseudohubererror",
            "reg:quantileerror",
            "binary:logitraw",
            "rank:pairwise",
            "rank:ndcg",
            "rank:map",
        ),
        "identity",
    ),
}

_MARGIN: dict[Link, Callable[[Doubles], Doubles]] = {
    "sigmoid": lambda score: np.log(score / (1.0 - score)),
    "exp": np.log,
    "identity": lambda score: score,
    "softmax": lambda score: score,
}
"""From the file's base score to the sum's scale."""


def booster_of(model: Any) -> Any:
    """Return a copy of the Booster (of an estimator), with the trees that it predicts with only.

    An estimator predicts with the rounds up to its best one, where early stopping found that; a Booster with all.

    multi:softmax becomes multi:softprob: the same trees, probabilities instead of the class's number.
    """
    import xgboost

    booster: Any = model if is_booster(model) else model.get_booster()
    missing = getattr(model, "missing", None)
    if missing is not None and not np.isnan(missing):
        raise BuildError(
            f"the XGBoost estimator counts {missing} as missing; only NaN can be served",
            hint="train with missing=numpy.nan, and put NaN where a value is missing",
        )
    if booster is not model and booster.attr("best_iteration") is not None:
        booster = booster[: int(booster.attr("best_iteration")) + 1]
    copy: Any = xgboost.Booster()
    copy.load_model(bytearray(booster.save_raw("ubj")))
    learner = json.loads(copy.save_config())["learner"]
    if learner["gradient_booster"]["name"] == "gblinear":
        raise BuildError(
            "the XGBoost model is linear (booster='gblinear'), which cannot predict plain arrays",
            hint="train scikit-learn's LogisticRegression or Ridge instead, or trees (booster='gbtree')",
        )
    if learner["objective"]["name"] == "multi:softmax":
        copy.set_param({"objective": "multi:softprob"})
    return copy


def save(booster: Any, path: Path) -> dict[str, int]:
    """Write XGBoost's own UBJSON; returns the size of the model, for the evidence."""
    path.write_bytes(booster.save_raw("ubj"))
    return {"rounds": booster.num_boosted_rounds()}


def categories(model: Any) -> list[tuple[str, Sequence[Any]]]:
    """Return (name, categories) of each pandas column of numeric categories that the model was fitted on.

    XGBoost below 3.1 keeps none.
    """
    booster = model if is_booster(model) else model.get_booster()
    if "c" not in (booster.feature_types or ()):
        return []
    gradient: dict[str, Any] = json.loads(bytes(booster.save_raw("json")))["learner"]["gradient_booster"]
    kept = gradient.get("gbtree", gradient).get("model", {}).get("cats", {}).get("enc", [])
    names = booster.feature_names or [str(place) for place in range(len(kept))]
    # Text has offsets into its letters; a column of plain numbers has no values.
    return [
        (f" {name!r}", each["values"])
        for name, each in zip(names, kept, strict=True)
        if each["values"] and "offsets" not in each
    ]


def is_binary(booster: Any) -> bool:
    """Tell whether a booster answers with the probability of the second of two classes."""
    return bool(json.loads(booster.save_config())["learner"]["objective"]["name"] == "binary:logistic")


def read(model: Any) -> Ensemble:
    """Read a Booster or an XGB* estimator.

    Raises:
        BuildError: not trees, splits on categories, vector leaves, or an objective whose link is not known.
    """
    learner = json.loads(bytes(booster_of(model).save_raw("json")))["learner"]
    booster = learner["gradient_booster"]
    objective = learner["objective"]["name"]
    if objective not in _LINKS:
        raise _unknown(f"objective {objective!r} has a link that is not known")
    held = (booster["gbtree"] if booster["name"] == "dart" else booster)["model"]
    weights = booster.get("weight_drop") or [1.0] * len(held["trees"])
    settings = learner["learner_model_param"]
    targets = max(int(settings["num_class"]), int(settings["num_target"]), 1)
    link = _LINKS[objective]
    return Ensemble(
        trees=tuple(map(_tree, held["trees"], held["tree_info"], weights)),
        features=int(settings["num_feature"]),
        targets=targets,
        base=_MARGIN[link](np.broadcast_to(_numbers(settings["base_score"]), (targets,)).copy()),
        less="<",
        link=link,
        rounds=True,
    )


def _numbers(text: str) -> Doubles:
    return np.atleast_1d(np.array(json.loads(text.replace("E", "e")), dtype=np.float32)).astype(np.float64)


def _tree(held: Mapping[str, Any], target: int, weight: float) -> Tree:
    if any(held["split_type"]):
        raise _unknown("there are splits on categories")
    if int(held["tree_param"]["size_leaf_vector"]) > 1:
        raise _unknown("its leaves are vectors (multi_strategy='multi_output_tree')")
    conditions = np.array(held["split_conditions"], dtype=np.float32)
    left = np.array(held["left_children"], dtype=np.int64)
    return Tree(
        feature=np.array(held["split_indices"], dtype=np.int64),
        threshold=conditions.astype(np.float64),
        left=np.where(left < 0, LEAF, left),
        right=np.array(held["right_children"], dtype=np.int64),
        missing_left=np.array(held["default_left"], dtype=np.bool_),
        # A leaf's value stands where a split has its threshold.
        value=(np.where(left < 0, conditions, 0.0).astype(np.float64) * weight)[:, None],
        targets=(int(target),),
    )


def _unknown(what: str) -> BuildError:
    return BuildError(
        f"the XGBoost model cannot be written as ONNX trees: {what}",
        hint="serve the 'xgboost' variant, or train with numbers in place of categories and a usual objective",
    )
