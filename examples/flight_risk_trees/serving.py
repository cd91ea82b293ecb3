"""The serving hooks: flight_risk's, with its two inputs side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from flight_risk import serving
from flight_risk_trees.features import features_of

postprocess = serving.postprocess


def preprocess(rows: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[np.float32]]:
    """Make ``features`` float32 [rows, 30]; None is a value that is not known."""
    return {"features": features_of(serving.preprocess(rows))}
