"""Source "lightgbm": a Booster or an LGBM* estimator, kept as LightGBM's own text; reading it runs no code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.recipes.base import Result
from tailcut.builder.sources import _tables
from tailcut.builder.sources._categories import check_categories
from tailcut.builder.sources.base import SourceWork
from tailcut.common.tensors import NUMPY_OF
from tailcut.errors import BuildError
from tailcut.manifest import TensorSpec

_EXACT = 2**24
"""Whole numbers up to this one are exact in float32."""


class LightGBMSource:
    """A callable that gives a lightgbm.Booster or a fitted LGBM* estimator."""

    kind = "lightgbm"
    variant = "lightgbm"
    runtime = "lightgbm"
    suffix = ".txt"

    def matches(self, model: Any, path: Path | None) -> bool:
        """By its class; whoever has one has imported lightgbm."""
        lightgbm = sys.modules.get("lightgbm")
        return lightgbm is not None and isinstance(model, (lightgbm.Booster, lightgbm.LGBMModel))

    def trees(self, model: Any) -> bool:
        """Always."""
        return True

    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Write the text model: the trees that it predicts with (early stopping's best iteration) and no others.

        Raises:
            BuildError: not fitted, categories that are numbers (see ``check_categories``), or other tensors than the
                manifest's.
        """
        from tailcut.builder.ensembles import lightgbm as trees

        _tables.check_fitted(work.model)
        check_categories(work.model)
        booster = trees.booster_of(work.model)
        _refuse_rounded(booster, work.manifest.deployment.model.inputs)
        booster.save_model(str(artifact))
        size = {"trees": booster.num_trees()}
        return _tables.booster_result(work, self.runtime, artifact, size, binary=trees.is_binary(booster))


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
