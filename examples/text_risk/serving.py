"""The serving hook: the model's output -> answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

THRESHOLD = 0.5
"""From this risk on somebody calls the customer."""


def postprocess(outputs: Mapping[str, npt.NDArray[Any]]) -> list[dict[str, Any]]:
    """Answer each ticket: the risk that its customer leaves within a month, and whether to call."""
    return [{"risk": risk, "call": risk >= THRESHOLD} for risk in outputs["risk"].tolist()]
