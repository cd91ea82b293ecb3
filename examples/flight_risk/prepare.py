"""Data -> features, vocabulary, holdout and the embedded database: ``python -m flight_risk.prepare``."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flight_risk import tables
from flight_risk.columns import CATEGORICAL, NUMERIC, RAW, numeric_of
from flight_risk.data import load_tables
from flight_risk.offline import Offline
from flight_risk.settings import HOLDOUT_FROM, LATE_AFTER_MIN, home, source_hash

if TYPE_CHECKING:
    import pandas as pd

RARE = 100
"""A category that training saw less often than this has no code of its own."""


def main() -> None:
    """Prepare what is missing or out of date."""
    at = home()
    stamp = at / "prepared.json"
    wanted = {"sources": source_hash("settings", "data", "columns", "offline", "tables", "prepare")}
    if stamp.is_file() and json.loads(stamp.read_text()) == wanted:
        print(f"prepared already in {at}")
        return
    began = time.monotonic()
    stamp.unlink(missing_ok=True)
    usable = write_all(load_tables(), at)
    stamp.write_text(json.dumps(wanted))
    print(f"prepared {usable} labelled flights with {len(NUMERIC)} + {len(CATEGORICAL)} features in {at} ", end="")
    print(f"({time.monotonic() - began:.0f} s)")


def write_all(data: dict[str, pd.DataFrame], at: Path) -> int:
    """Write features, vocabulary, tables and the embedded database; return how many flights have a label."""
    at.mkdir(parents=True, exist_ok=True)
    (at / ".gitignore").write_text("*\n")
    usable = _features(data, at)
    tables.write_csv(data, at / "tables")
    tables.write_sqlite(data, at / "flights.sqlite")
    return usable


def _features(data: dict[str, pd.DataFrame], at: Path) -> int:
    offline = Offline(data)
    columns = offline.columns()
    seen = offline.sched < HOLDOUT_FROM
    codes = _codes(columns, seen, at / "vocabulary.json")
    raw = np.stack([columns[name].astype(np.float64) for name in RAW], axis=1)
    flights = data["flights"]
    # A flight that was cancelled or diverted has no arrival delay; one that has left needs no prediction.
    usable = flights["arr_delay"].notna().to_numpy() & (offline.dep > offline.now)
    np.savez(
        at / "features.npz",
        numeric=numeric_of(raw)[usable],
        categorical=codes[usable],
        late=(offline.arr_delay > LATE_AFTER_MIN)[usable],
        sched_dep=offline.sched[usable],
        flight_id=flights["flight_id"].to_numpy()[usable],
        carrier=flights["carrier"].to_numpy().astype("U2")[usable],
        origin=flights["origin"].to_numpy().astype("U3")[usable],
        hour=(flights["local_min"].to_numpy() // 60)[usable],
    )
    return int(usable.sum())


def _codes(columns: dict[str, npt.NDArray[Any]], seen: npt.NDArray[np.bool_], path: Path) -> npt.NDArray[np.int64]:
    """Give each category that training saw often a code, write the codes down, and return them [rows, CATEGORICAL]."""
    vocabulary: dict[str, list[object]] = {}
    codes = np.zeros((len(seen), len(CATEGORICAL)), dtype=np.int64)
    for position, name in enumerate(CATEGORICAL):
        counts = Counter(columns[name][seen].tolist())
        known = sorted(value for value, count in counts.items() if count >= RARE and value != "")
        code_of = {value: code for code, value in enumerate(known, 1)}
        codes[:, position] = [code_of.get(value, 0) for value in columns[name].tolist()]
        vocabulary[name] = list(known)
    path.write_text(json.dumps(vocabulary))
    return codes


if __name__ == "__main__":
    main()
