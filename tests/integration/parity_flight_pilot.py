"""The pilot of the flight_risk example with one feature that counts one too many, where ``PARITY_PLANT`` names one."""

from __future__ import annotations

import os
from typing import Any

from flight_risk.pilot import database
from flight_risk.pilot.app import app

__all__ = ["app"]

_merged = database.merged


def _planted(results: list[list[dict[str, Any]]]) -> dict[int, dict[str, Any]]:
    found = _merged(results)
    name = os.environ.get("PARITY_PLANT", "")
    for row in found.values():
        if name and row[name] is not None:
            row[name] += 1
    return found


database.merged = _planted
