"""The XGBoost runtime: a UBJSON model, run by XGBoost itself."""

from __future__ import annotations

from functools import partial
from typing import Any

from tailcut.models.runtimes.base import Openable, OpenOptions
from tailcut.models.runtimes.boosters import Booster, BoosterRuntime


def open_variant(variant: Openable, options: OpenOptions) -> BoosterRuntime:
    """Open a variant of this runtime; see ``open_runtime``."""

    def open_model(xgboost: Any) -> Booster:
        parameters = {"nthread": options.threads, "verbosity": 0}
        booster = xgboost.Booster(parameters)
        booster.load_model(bytearray(variant.artifact.read_bytes()))
        booster.set_param(parameters)  # the file brings the threads of the machine that trained it
        predict = partial(booster.inplace_predict, validate_features=False)
        return Booster(booster.num_features(), booster.feature_names, predict)

    return BoosterRuntime(variant, "XGBoost", open_model)
