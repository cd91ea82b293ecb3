"""The one input of the trees: flight_risk's numbers and category codes side by side, as float32."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from flight_risk.columns import CATEGORICAL, NUMERIC

Floats = npt.NDArray[np.float32]

COLUMNS = NUMERIC + CATEGORICAL
"""Names of the columns of ``features``."""


def features_of(inputs: Mapping[str, npt.NDArray[np.generic]]) -> Floats:
    """Put ``numeric`` [rows, 25] and ``categorical`` [rows, 5] side by side.

    NaN stays: trees learn at every split which way an unknown value goes. A code is a number here, and trees split its
    range: exporters have no operator for LightGBM's splits by sets of categories.
    """
    return np.concatenate([inputs["numeric"], inputs["categorical"].astype(np.float32)], axis=1, dtype=np.float32)
