"""All features of all flights, as they stood 30 minutes before each one's scheduled departure.

What the SQL of ``tailcut.toml`` answers for one flight at one moment is computed here for all flights at once; a test
holds the two together. Every window ends at the moment of prediction, and a departure or landing counts from the
moment it happened, so nothing is used that was not known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from flight_risk.settings import LEAD_S

if TYPE_CHECKING:
    import pandas as pd

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

HOUR_S = 3600
DAY_S = 86400
NEVER = 1 << 32
"""Later than any time in the data; a key's times fit below it, so key * SPACE + time sorts by both."""
SPACE = 1 << 33


def _times(column: pd.Series[int]) -> Ints:
    return np.asarray(column.fillna(NEVER), dtype=np.int64)


def _mean(total: Floats, count: Ints) -> Floats:
    mean: Floats = np.divide(total, count, out=np.full(len(count), np.nan), where=count > 0)
    return mean


class Log:
    """Flights sorted by key and time of an event, to be asked for windows of it."""

    def __init__(self, key: Ints, times: Ints) -> None:
        self.order = np.argsort(key * SPACE + times, kind="stable")
        self._sorted = (key * SPACE + times)[self.order]

    def window(self, key: Ints, after: Ints, until: Ints) -> tuple[Ints, Ints]:
        """Bounds in ``order`` of each key's events with after < time <= until."""
        low = np.searchsorted(self._sorted, key * SPACE + after, side="right")
        return low, np.searchsorted(self._sorted, key * SPACE + until, side="right")

    def sums(self, low: Ints, high: Ints, values: Floats) -> Floats:
        """Sum ``values`` over each window. The sums are of whole numbers, hence exact."""
        running = np.concatenate([[0.0], np.cumsum(values[self.order])])
        total: Floats = running[high] - running[low]
        return total


class Offline:
    """Point-in-time features of the flights in the tables, as arrays with one value per flight."""

    def __init__(self, tables: dict[str, pd.DataFrame]) -> None:
        flights = tables["flights"]
        self.tables = tables
        self.flights = flights
        self.sched = flights["sched_dep"].to_numpy(dtype=np.int64)
        self.now = self.sched - LEAD_S
        self.dep, self.arr = _times(flights["dep_ts"]), _times(flights["arr_ts"])
        self.dep_delay = flights["dep_delay"].fillna(0).to_numpy(dtype=np.float64)
        self.arr_delay = flights["arr_delay"].fillna(0).to_numpy(dtype=np.float64)

    def _key(self, *columns: str) -> Ints:
        return np.asarray(self.flights.groupby(list(columns), sort=True).ngroup(), dtype=np.int64)

    def _late_departures(self, key: Ints, window_s: int) -> Floats:
        """Share of the departures within the window that were more than 15 minutes late."""
        log = Log(key, self.dep)
        low, high = log.window(key, self.now - window_s, self.now)
        return _mean(log.sums(low, high, (self.dep_delay > 15).astype(np.float64)), high - low)

    def _landed(self, key: Ints, window_s: int, values: Floats) -> Floats:
        """Mean of ``values`` over the landings within the window."""
        log = Log(key, self.arr)
        low, high = log.window(key, self.now - window_s, self.now)
        return _mean(log.sums(low, high, values), high - low)

    def _scheduled(self, key: Ints, window_s: int) -> tuple[Floats, Floats]:
        """Of the departures scheduled within the window: how many still wait, and the mean delay so far in minutes."""
        log = Log(key, self.sched)
        low, high = log.window(key, self.now - window_s, self.now)
        count = high - low
        waiting, so_far = np.zeros(len(key)), np.zeros(len(key))
        dep, sched = self.dep[log.order], self.sched[log.order]
        for start in range(0, len(key), 20_000):
            part = slice(start, start + 20_000)
            size = count[part]
            first = np.cumsum(size) - size
            asker = np.repeat(np.arange(len(size)), size)
            other = np.arange(size.sum()) + np.repeat(low[part] - first, size)
            now = self.now[part][asker]
            minutes = (np.minimum(dep[other], now) - sched[other]) / 60
            waiting[part] = np.bincount(asker, dep[other] > now, len(size))
            so_far[part] = np.bincount(asker, minutes, len(size))
        return waiting, _mean(so_far, count)

    def _aircraft(self) -> dict[str, Floats]:
        """The aircraft's last departure from New York within three days: all that is known of it by now."""
        tails = self._key("tailnum")
        log = Log(tails, self.dep)
        low, high = log.window(tails, self.now - 3 * DAY_S, self.now)
        known = (high > low) & (self.flights["tailnum"] != "").to_numpy()
        last = log.order[np.maximum(high - 1, 0)]
        landed = known & (self.arr[last] <= self.now)
        block_min = self.flights["block_min"].to_numpy(dtype=np.float64)
        return {
            "last_dep_ts": np.where(known, self.dep[last], np.nan),
            "last_sched_dep": np.where(known, self.sched[last], np.nan),
            "last_block_min": np.where(known, block_min[last], np.nan),
            "last_arr_delay": np.where(landed, self.arr_delay[last], np.nan),
        }

    def _weather(self) -> dict[str, Floats]:
        """The latest observation at the origin, not older than six hours."""
        weather = self.tables["weather"]
        codes = {name: code for code, name in enumerate(sorted(weather["origin"].unique()))}
        log = Log(weather["origin"].map(codes).to_numpy(dtype=np.int64), weather["obs_ts"].to_numpy(dtype=np.int64))
        key = self.flights["origin"].map(codes).to_numpy(dtype=np.int64)
        low, high = log.window(key, self.now - 6 * HOUR_S, self.now)
        row = log.order[np.maximum(high - 1, 0)]
        return {
            name: np.where(high > low, weather[name].to_numpy(dtype=np.float64)[row], np.nan)
            for name in ("temp", "wind_dir", "wind_speed", "precip", "visib")
        }

    def _origin(self) -> dict[str, Floats]:
        origin = self._key("origin")
        waiting, so_far = self._scheduled(origin, 2 * HOUR_S)
        low, high = Log(origin, self.sched).window(origin, self.now, self.now + HOUR_S)
        return {
            "origin_waiting": waiting,
            "origin_so_far": so_far,
            "origin_late": self._late_departures(origin, HOUR_S),
            "origin_next": (high - low).astype(np.float64),
        }

    def _carrier(self) -> dict[str, Floats]:
        at_origin = self._key("carrier", "origin")
        return {
            "carrier_origin_so_far": self._scheduled(at_origin, 3 * HOUR_S)[1],
            "carrier_origin_late": self._late_departures(at_origin, 3 * HOUR_S),
            "carrier_so_far": self._scheduled(self._key("carrier"), 2 * HOUR_S)[1],
        }

    def _journey(self) -> dict[str, Floats]:
        dest = self._key("dest")
        gain = self.arr_delay - self.dep_delay
        service = self._key("carrier", "number", "origin", "dest")
        return {
            "dest_waiting": self._scheduled(dest, 4 * HOUR_S)[0],
            "dest_gain_6h": self._landed(dest, 6 * HOUR_S, gain),
            "dest_gain_24h": self._landed(dest, DAY_S, gain),
            "route_gain_24h": self._landed(self._key("origin", "dest"), DAY_S, gain),
            "service_delay_30d": self._landed(service, 30 * DAY_S, self.arr_delay),
        }

    def columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return every column of ``columns.RAW`` and ``columns.CATEGORICAL``."""
        planes = self.tables["planes"].set_index("tailnum")
        tailnum = self.flights["tailnum"]
        static = {name: self.flights[name].to_numpy() for name in ("carrier", "origin", "dest", "weekday")}
        static |= {name: self.flights[name].to_numpy() for name in ("local_min", "block_min", "sched_dep")}
        static["built"] = tailnum.map(planes["built"]).to_numpy(dtype=np.float64)
        static["maker"] = tailnum.map(planes["manufacturer"]).fillna("").to_numpy()
        return {
            **static,
            **self._weather(),
            **self._origin(),
            **self._carrier(),
            **self._journey(),
            **self._aircraft(),
        }
