"""The expected answers: the user's own object, called as its users call it. Nothing here comes from tailcut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.matrix.axes import ESTIMATORS, Group
from tests.matrix.objects import classes, matrix, object_of
from tests.matrix.tables import Column, Columns

Floats = NDArray[np.float64]

ABSOLUTE, RELATIVE = 2e-6, 2e-5
"""Of FP32 outputs: the last digits of float32 kernels that add in another order."""

ABSOLUTE_WIDE, RELATIVE_WIDE = 1e-12, 1e-9
"""Of FP64 outputs of models that answer in double; XGBoost adds up its leaves in float32."""


def rows_of(columns: Columns, places: Any) -> Columns:
    """Return the rows at ``places``."""
    return {name: values[places] for name, values in columns.items()}


def count(columns: Columns) -> int:
    """Return the number of rows."""
    return len(next(iter(columns.values())))


def answer(group: Group, columns: Columns) -> Floats:
    """Call the object: (rows,), or (rows, classes) of three classes and more.

    Raises:
        Exception: whatever the object raises.
    """
    if group.model == "torch":
        return _of_torch(group, columns)
    if group.model == "onnx":
        fed = tensors(group, columns)
        return np.asarray(_session(group).run(["p"], fed)[0], np.float64)
    owned = object_of(group)
    given = matrix(group, columns)
    if not group.classes:
        return np.asarray(owned.predict(given), np.float64).reshape(count(columns))
    found = np.asarray(owned.predict_proba(given), np.float64)
    # Of two classes the output is the probability of the second: the larger label, "yes", True.
    return found[:, 1] if found.shape[1] == 2 else found


def tensors(group: Group, columns: Columns) -> dict[str, Column]:
    """Return the model's input tensors: one of all columns, or one a column."""
    return {"x": np.column_stack(list(columns.values()))} if group.one_tensor else columns


def _of_torch(group: Group, columns: Columns) -> Floats:
    import torch

    fed = [torch.from_numpy(np.ascontiguousarray(each)) for each in tensors(group, columns).values()]
    with torch.inference_mode():
        return np.asarray(object_of(group)(*fed).numpy(), np.float64)


@lru_cache(maxsize=2)
def _session(group: Group) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(object_of(group), providers=["CPUExecutionProvider"])


@dataclass(frozen=True)
class Expected:
    """Answers of the rows that the object answers, and the places of those that it refuses."""

    places: NDArray[np.int64]
    answers: Floats
    raising: dict[int, str]


def expected(group: Group, columns: Columns) -> Expected:
    """Ask the object for every row; row by row where it refuses some."""
    rows = count(columns)
    try:
        found = Expected(np.arange(rows), answer(group, columns), {})
    except Exception:  # which rows, and what each of them raises, shows below
        found = _one_by_one(group, columns)
    return _sayable(group, found)


def _sayable(group: Group, found: Expected) -> Expected:
    """Move answers that the output's datatype does not hold to those that are refused."""
    largest = np.finfo(np.float32 if group.output == "FP32" else np.float64).max
    fits = (np.abs(found.answers) <= largest).reshape(len(found.answers), -1).all(axis=1)
    others = {
        int(place): f"nothing, and answers {given.tolist()}, which {group.output} does not hold"
        for place, given in zip(found.places[~fits], found.answers[~fits], strict=True)
    }
    return Expected(found.places[fits], found.answers[fits], found.raising | others)


def _one_by_one(group: Group, columns: Columns) -> Expected:
    given: list[Floats] = []
    places: list[int] = []
    raising: dict[int, str] = {}
    for place in range(count(columns)):
        try:
            given.append(answer(group, rows_of(columns, slice(place, place + 1))))
            places.append(place)
        except Exception as error:
            raising[place] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
    answers = np.concatenate(given) if given else np.zeros(0)
    return Expected(np.array(places, np.int64), answers, raising)


def differs(group: Group, given: Any, wanted: Floats) -> str:
    """Say which answers are wrong, and by how much; empty where all are right within rounding."""
    found = np.asarray(given, np.float64)
    if found.shape != wanted.shape:
        return f"shape {list(found.shape)}, expected {list(wanted.shape)}"
    is_wide = group.output == "FP64" and group.model != "xgboost"
    absolute, relative = (ABSOLUTE_WIDE, RELATIVE_WIDE) if is_wide else (ABSOLUTE, RELATIVE)
    limit = absolute + relative * np.abs(wanted)
    error = np.abs(found - wanted)
    wrong = ~((error <= limit) | (found == wanted))
    if wanted.ndim == 2:
        wrong |= _other_class(found, wanted, limit)[:, None]
    if not wrong.any():
        return ""
    bad = np.flatnonzero(wrong.reshape(len(wrong), -1).any(axis=1))
    first = int(bad[0])
    worst = float(np.nanmax(np.where(wrong, error, 0.0)))
    return (
        f"{bad.size} of {len(wanted)} rows, by up to {worst:.3g}; "
        f"row {first}: {found[first].tolist()}, expected {wanted[first].tolist()}"
    )


def _other_class(found: Floats, wanted: Floats, limit: Floats) -> NDArray[np.bool_]:
    """Rows with another best class, where the object's own two best scores are not closer than rounding."""
    best = np.sort(wanted, axis=1)
    apart: NDArray[np.bool_] = best[:, -1] - best[:, -2] > 2 * limit.max(axis=1)
    return apart & (found.argmax(axis=1) != wanted.argmax(axis=1))


def ties(group: Group, columns: Columns) -> float:
    """Return the share of rows whose two best scores are equal within rounding."""
    scores = answer(group, columns)
    if not group.classes:
        return 0.0
    best = np.sort(scores if scores.ndim == 2 else np.stack([scores, 1.0 - scores], axis=1), axis=1)
    return float(np.mean(best[:, -1] - best[:, -2] <= 2 * (ABSOLUTE + RELATIVE)))


def metrics(group: Group, columns: Columns, labels: Column) -> dict[str, float]:
    """Judge the object on labelled rows, by scikit-learn: accuracy, of two classes auc too, or mae."""
    from sklearn.metrics import roc_auc_score

    scores = answer(group, columns)
    if not group.classes:
        return {"mae": float(np.abs(scores - labels).mean())}
    names = np.array(classes(group))
    if group.width > 1:
        return {"accuracy": float((names[scores.argmax(axis=1)] == labels).mean())}
    if group.model in ESTIMATORS and group.knows_classes:
        said = object_of(group).predict(matrix(group, columns))
    else:
        said = names[(scores > 0.5).astype(int)]
    return {"accuracy": float((said == labels).mean()), "auc": float(roc_auc_score(labels == names[1], scores))}
