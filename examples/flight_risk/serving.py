"""The serving hooks: feature rows -> the model's inputs, the model's output -> answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flight_risk.columns import CATEGORICAL, RAW, numeric_of, vocabulary
from flight_risk.settings import home

THRESHOLD = 0.5
"""From this risk on a flight is called late."""


@cache
def vocabulary_path() -> Path:
    """Where the codes are; FLIGHT_RISK_HOME is read once, not on every request."""
    return home() / "vocabulary.json"


_raw_of = itemgetter(*RAW)
_categories_of = itemgetter(*CATEGORICAL)


def preprocess(rows: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """Make the model's inputs: ``numeric`` float32 [rows, 25] and ``categorical`` int64 [rows, 5].

    None is a value that is not known (NumPy makes it NaN), as is NaN itself.
    """
    raw = np.array([_raw_of(row) for row in rows], dtype=np.float64)
    known = vocabulary(vocabulary_path())
    codes = [[code_of.get(value, 0) for code_of, value in zip(known, _categories_of(row), strict=True)] for row in rows]
    return {"numeric": numeric_of(raw), "categorical": np.array(codes, dtype=np.int64)}


def postprocess(outputs: Mapping[str, npt.NDArray[Any]]) -> list[dict[str, Any]]:
    """Answer each flight: its risk of arriving more than 15 minutes late, and whether that is more likely than not."""
    return [{"risk": risk, "late": risk >= THRESHOLD} for risk in outputs["risk"].tolist()]
