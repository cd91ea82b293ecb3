"""Sources "lightgbm" and "xgboost": a Booster or an estimator, kept in its library's format, which holds no code."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder import ensembles
from tailcut.builder.recipes.base import Result
from tailcut.builder.sources import _tables
from tailcut.builder.sources.base import SourceKind, SourceWork
from tailcut.common.tensors import NUMPY_OF
from tailcut.errors import BuildError
from tailcut.manifest import TensorSpec
from tailcut.registry.evidence import RecipeEvidence

_EXACT = 2**24
"""Whole numbers up to this one are exact in float32."""


class BoosterSource(SourceKind):
    """A callable that gives a Booster or a fitted estimator of one library."""

    def __init__(self, library: str, suffix: str) -> None:
        self.kind = self.variant = self.runtime = library
        self.suffix = suffix

    def matches(self, model: Any, path: Path | None) -> bool:
        """By its class."""
        return ensembles.library_of(model) == self.kind

    def trees(self, model: Any) -> bool:
        """Always: a linear booster is refused."""
        return True

    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Write the model: the trees that it predicts with (early stopping's best iteration) and no others.

        Raises:
            BuildError: not fitted, categories that are numbers (see ``check_categories``), values other than NaN that
                count as missing, or other tensors than the manifest's.
        """
        _tables.check_fitted(work.model)
        _tables.check_categories(work.model)
        library = ensembles.library(self.kind)
        booster = library.booster_of(work.model)
        if self.kind == "lightgbm":
            _refuse_rounded(booster, work.manifest.deployment.model.inputs)
        size = library.save(booster, artifact)
        classes = _tables.classes(work.model)
        # Of two classes a booster itself may give the probability of one.
        settings = {"classes": True} if classes or library.is_binary(booster) else {}
        return Result(size, settings, evidence=RecipeEvidence(classes=classes))


def _refuse_rounded(booster: Any, tensors: Sequence[TensorSpec]) -> None:
    """Refuse whole numbers that LightGBM would round: it makes float32 of an array of integers.

    A DataFrame of them, or an array of floats, becomes double, as in the variants. Which of the two was meant cannot
    be known from the model, and rows of the holdout may show no difference.
    """
    from tailcut.models.runtimes.lightgbm import fitted_names

    if fitted_names(booster, tensors) is not None or any(NUMPY_OF[each.datatype].kind not in "iu" for each in tensors):
        return
    for each in tensors:
        dtype: Any = NUMPY_OF[each.datatype]
        limits = np.iinfo(dtype)
        low, high = (limits.min if each.min is None else each.min), (limits.max if each.max is None else each.max)
        if low < -_EXACT or high > _EXACT:
            raise BuildError(
                f"input {each.name!r} is {each.datatype} and may hold numbers beyond {_EXACT}, which LightGBM rounds "
                "to float32 where it is given an array of integers",
                hint=f"fit the model on a DataFrame; or on floats, and declare the input FP64; or set min and max of "
                f"the input within -{_EXACT} and {_EXACT}",
            )
