"""Source "lightgbm": a Booster or an LGBM* estimator, kept as LightGBM's own text; reading it runs no code."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from tailcut.build.recipes.base import Result
from tailcut.build.sources import _tables
from tailcut.build.sources.base import SourceWork


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
            BuildError: not fitted, or other tensors than the manifest's.
        """
        from tailcut.build.ensembles import lightgbm as trees

        _tables.check_fitted(work.model)
        booster = trees.booster_of(work.model)
        booster.save_model(str(artifact))
        classes = _tables.classes(work.model)
        settings = {"classes": True} if classes or trees.is_binary(booster) else {}
        found = {
            "trees": booster.num_trees(),
            "classes": classes,
            **_tables.check(work, self.runtime, artifact, settings),
        }
        return Result(found, settings)
