"""What the sources for tables share: the source variant must take and give the manifest's tensors."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tailcut.builder.recipes.base import Result
from tailcut.builder.sources.base import SourceWork
from tailcut.common.scalars import Scalar, scalar_of
from tailcut.errors import ArtifactError, BuildError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import open_runtime
from tailcut.models.runtimes.base import OpenSpec
from tailcut.models.runtimes.live import source_of
from tailcut.registry.evidence import RecipeEvidence

_ROWS = 3


def check(work: SourceWork, runtime: str, artifact: Path, settings: Mapping[str, Any] | None = None) -> dict[str, int]:
    """Open the source variant as serving will, and run a few rows.

    Args:
        settings: of the runtime.

    Returns:
        columns of its output: 1 where it is (rows,).

    Raises:
        BuildError: other inputs or another output than the manifest's.
    """
    model = work.manifest.deployment.model
    variant = OpenSpec(runtime, runtime, artifact, model.inputs, model.outputs, dict(settings or {}))
    try:
        opened = open_runtime(variant, threads=1, source=source_of(work.manifest, runtime))
    except ArtifactError as error:
        raise BuildError(error.message, hint=error.hint) from error
    output = model.outputs[0]
    found = opened.run(work.selection.take(_ROWS), [output.name])[output.name]
    opened.close()
    if not _fits(output, found.shape):
        raise BuildError(
            f"the model gives {[-1, *found.shape[1:]]}, model.outputs say {list(output.shape)} for {output.name!r}",
            hint="two classes give the probability of the second, [-1], or both, [-1, 2]; more give [-1, classes]; a "
            "regressor [-1]",
        )
    return {"output_columns": found.shape[1] if found.ndim == 2 else 1}


def booster_result(work: SourceWork, runtime: str, artifact: Path, size: dict[str, int], *, binary: bool) -> Result:
    """Check the source variant of a booster; return its evidence and settings.

    Args:
        size: of the model, for the evidence.
        binary: whether the booster itself gives the probability of one of two classes.

    Raises:
        BuildError: see ``check``.
    """
    found = classes(work.model)
    settings = {"classes": True} if found or binary else {}
    return Result({**size, **check(work, runtime, artifact, settings)}, settings, RecipeEvidence(classes=found))


def _fits(tensor: TensorSpec, shape: tuple[int, ...]) -> bool:
    return len(tensor.shape) == len(shape) and all(
        wanted in (-1, size) for wanted, size in zip(tensor.shape[1:], shape[1:], strict=True)
    )


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
