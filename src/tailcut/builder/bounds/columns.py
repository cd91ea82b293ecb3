"""Bounds of models of tables (estimators, pipelines, boosters): found by trying each column of each input."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tailcut.builder.bounds import categories, ranges
from tailcut.builder.bounds.trials import MOST_COLUMNS, Trials
from tailcut.common.bounds import Bound

_FEW_COLUMNS = 3
"""Columns that are tried of an estimator without steps: it looks at the table as a whole."""


def bounds_of(model: Any, trials: Trials) -> Iterator[Bound]:
    """Yield the values that the model's encoders know, and the limits of its numbers.

    Args:
        model: the user's object, for the categories of the encoders inside it.
        trials: of that object.
    """
    lists = categories.known(model)
    # Code of the user's may bring other values to an encoder than those that come in: "A" as "a".
    unchanged = not categories.has_own_code(model)
    for tensor in trials.inputs:
        closed = categories.closed(trials, tensor, lists)
        if unchanged:
            yield from categories.bounds_of(trials, tensor, closed, lists)
        others = [place for place in range(trials.columns(tensor)) if place not in closed]
        yield from ranges.bounds_of(trials, tensor, others, MOST_COLUMNS if _has_steps(model) else _FEW_COLUMNS)


def _has_steps(model: Any) -> bool:
    """Tell whether columns may go different ways in an object, as in a pipeline or in code of the user's."""
    return hasattr(model, "steps") or categories.has_own_code(model)
