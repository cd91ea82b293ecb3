"""What the sources for tables share: estimators that are fitted, their last step and their classes."""

from __future__ import annotations

import sys
from typing import Any

from tailcut.common.scalars import Scalar, scalar_of
from tailcut.errors import BuildError


def check_fitted(model: Any) -> None:
    """Refuse an estimator that is not fitted; boosters always are.

    Raises:
        BuildError: it is not.
    """
    sklearn = sys.modules.get("sklearn")
    if sklearn is None:
        return
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import NotFittedError
    from sklearn.utils.validation import check_is_fitted

    if not isinstance(model, BaseEstimator):
        return
    try:
        check_is_fitted(model)
    except NotFittedError:
        raise BuildError(
            f"model.source gave a {type(model).__name__} that is not fitted",
            hint="return it after fit(...), or load the fitted one from a file",
        ) from None


def final(model: Any) -> Any:
    """Return the last step of a pipeline, else the model."""
    steps = getattr(model, "steps", None)
    return steps[-1][1] if isinstance(steps, list) and steps else model


def classes(model: Any) -> list[Scalar] | None:
    """Return a classifier's classes in the order of its answers; None where it has none.

    Raises:
        BuildError: one class only, or classes of several targets.
    """
    found = getattr(model, "classes_", None)
    if found is None:
        return None
    if isinstance(found, list):
        raise BuildError(
            f"the {type(model).__name__} has {len(found)} targets with classes each",
            hint="build one model per target",
        )
    if len(found) < 2:
        raise BuildError(
            f"the {type(model).__name__} knows only one class, {found[0]!r}: its answer is always the same",
            hint="fit it on rows of every class",
        )
    return [scalar_of(each) for each in found]
