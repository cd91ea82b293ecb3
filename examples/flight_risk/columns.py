"""What the model sees: the columns that feature groups yield, and how they become its two inputs.

The same code runs in training (all rows at once) and in serving (one row), so the two cannot drift apart.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

PLAIN = (
    # flight and plane
    "local_min",
    "block_min",
    "built",
    # weather at the origin
    "temp",
    "wind_speed",
    "precip",
    "visib",
    # the origin now
    "origin_waiting",
    "origin_so_far",
    "origin_late",
    "origin_next",
    # the carrier at the origin, and at all three airports
    "carrier_origin_so_far",
    "carrier_origin_late",
    "carrier_so_far",
    # the destination, the route, this flight number
    "dest_waiting",
    "dest_gain_6h",
    "dest_gain_24h",
    "route_gain_24h",
    "service_delay_30d",
    # the aircraft
    "last_arr_delay",
)
"""Columns that are features as they are."""
HELPERS = ("wind_dir", "sched_dep", "last_dep_ts", "last_sched_dep", "last_block_min")
"""Columns that features are worked out from."""
DERIVED = ("wind_east", "wind_north", "aircraft_gap_min", "aircraft_slack_min", "aircraft_sched_slack_min")
NUMERIC = PLAIN + DERIVED
CATEGORICAL = ("carrier", "origin", "dest", "weekday", "maker")
RAW = PLAIN + HELPERS


def numeric_of(raw: Floats) -> npt.NDArray[np.float32]:
    """Work out the model's numbers.

    Args:
        raw: [rows, RAW], NaN where a value is not known.

    Returns:
        [rows, NUMERIC]; NaN stays, the model has a learned value for it.
    """
    known = len(PLAIN)
    wind_dir, sched_dep, last_dep_ts, last_sched_dep, last_block_min = raw[:, known:].T
    angle = np.radians(wind_dir)
    wind_speed = raw[:, PLAIN.index("wind_speed")]
    out = np.empty((len(raw), len(NUMERIC)), dtype=np.float32)
    out[:, :known] = raw[:, :known]
    out[:, known] = wind_speed * np.sin(angle)
    out[:, known + 1] = wind_speed * np.cos(angle)
    # The tables do not show the way back to New York; it takes about as long as the way out.
    gap_min = (sched_dep - last_dep_ts) / 60
    out[:, known + 2] = gap_min
    out[:, known + 3] = gap_min - 2 * last_block_min
    out[:, known + 4] = (sched_dep - last_sched_dep) / 60 - 2 * last_block_min
    return out


@cache
def vocabulary(path: Path) -> tuple[dict[object, int], ...]:
    """Read the codes of each categorical column; 0 is for a value that training did not know.

    Raises:
        FileNotFoundError: the data have not been prepared.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no vocabulary at {path}\n\nhint: python -m flight_risk.prepare (in examples/)")
    known = json.loads(path.read_text())
    return tuple({value: code for code, value in enumerate(known[name], 1)} for name in CATEGORICAL)
