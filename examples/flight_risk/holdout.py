"""The judge of every variant: labelled flights of October to December, which no training step saw."""

from __future__ import annotations

import numpy as np

from flight_risk.settings import HOLDOUT_FROM, home
from tailcut.build import Holdout


def holdout() -> Holdout:
    """Return the model's inputs, whether each flight was late, and slices by carrier, origin and hour.

    Raises:
        FileNotFoundError: the data have not been prepared.
    """
    path = home() / "features.npz"
    if not path.is_file():
        raise FileNotFoundError(f"no features at {path}\n\nhint: python -m flight_risk.prepare (in examples/)")
    with np.load(path) as file:
        rows = file["sched_dep"] >= HOLDOUT_FROM
        return Holdout(
            inputs={name: file[name][rows] for name in ("numeric", "categorical")},
            labels=file["late"][rows].astype(np.int64),
            slices={name: file[name][rows] for name in ("carrier", "origin", "hour")},
        )
