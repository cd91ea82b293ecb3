"""The LightGBM runtime: a text model, run by LightGBM itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.base import Openable, OpenOptions
from tailcut.models.runtimes.boosters import Booster, BoosterRuntime
from tailcut.models.runtimes.tables import column_names


def open_variant(variant: Openable, options: OpenOptions) -> BoosterRuntime:
    """Open a variant of this runtime; see ``open_runtime``."""

    def open_model(lightgbm: Any) -> Booster:
        booster = lightgbm.Booster(model_file=str(variant.artifact))
        predict = partial(booster.predict, num_threads=options.threads, validate_features=False)
        return Booster(booster.num_feature(), fitted_names(booster, variant.inputs), predict)

    # Of an array of integers LightGBM would make float32.
    return BoosterRuntime(variant, "LightGBM", open_model, doubles=True)


def fitted_names(booster: Any, tensors: Sequence[TensorSpec]) -> list[str] | None:
    """Return the column names that a booster was fitted on, in its order; None where it was fitted on an array.

    LightGBM keeps spaces in names as underscores: a name comes back as the manifest writes it.
    """
    kept: list[str] = booster.feature_name()
    if kept == [f"Column_{place}" for place in range(len(kept))]:
        return None
    written = {name.replace(" ", "_"): name for name in column_names(tensors) if name is not None}
    return [written.get(name, name) for name in kept]
