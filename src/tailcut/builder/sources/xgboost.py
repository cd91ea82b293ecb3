"""Source "xgboost": a Booster or an XGB* estimator, kept as XGBoost's own UBJSON; reading it runs no code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tailcut.builder.recipes.base import Result
from tailcut.builder.sources import _tables
from tailcut.builder.sources._categories import check_categories
from tailcut.builder.sources.base import SourceWork


class XGBoostSource:
    """A callable that gives an xgboost.Booster or a fitted XGB* estimator."""

    kind = "xgboost"
    variant = "xgboost"
    runtime = "xgboost"
    suffix = ".ubj"

    def matches(self, model: Any, path: Path | None) -> bool:
        """By its class; whoever has one has imported xgboost."""
        xgboost = sys.modules.get("xgboost")
        if xgboost is None:
            return False
        # Without scikit-learn xgboost has no estimators.
        return isinstance(model, (xgboost.Booster, getattr(xgboost, "XGBModel", xgboost.Booster)))

    def trees(self, model: Any) -> bool:
        """Always: a linear booster is refused."""
        return True

    def make(self, work: SourceWork, artifact: Path) -> Result:
        """Write the model: the trees that it predicts with (early stopping's best iteration) and no others.

        Raises:
            BuildError: not fitted, categories that are numbers (see ``check_categories``), values other than NaN that
                count as missing, or other tensors than the manifest's.
        """
        from tailcut.builder.ensembles import xgboost as trees

        _tables.check_fitted(work.model)
        check_categories(work.model)
        booster = trees.booster_of(work.model)
        artifact.write_bytes(booster.save_raw("ubj"))
        size = {"rounds": booster.num_boosted_rounds()}
        return _tables.booster_result(work, self.runtime, artifact, size, binary=trees.is_binary(booster))
