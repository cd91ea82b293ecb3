"""The model: boosted trees in LightGBM's own text form, which holds numbers and no code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from flight_risk_trees.settings import home

if TYPE_CHECKING:
    import lightgbm


def path() -> Path:
    """Where the trained trees are."""
    return home() / "trees.txt"


def load() -> lightgbm.Booster:
    """Read the trained trees.

    Raises:
        FileNotFoundError: they have not been trained.
    """
    import lightgbm

    if not path().is_file():
        raise FileNotFoundError(f"no trees at {path()}\n\nhint: python -m flight_risk_trees.prepare (in examples/)")
    return lightgbm.Booster(model_file=str(path()))
