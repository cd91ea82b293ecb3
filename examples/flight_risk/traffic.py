"""The board's traffic: which flights are asked for. When they are asked for is the load generator's."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from contextlib import closing

import numpy as np

from flight_risk.clock import anchor
from flight_risk.settings import home

ACTIVE_S = 7200
SKEW = 1.0
"""Exponent of the popularity: the flight of rank r is polled in proportion to r ** -SKEW."""
BOARD_SHARE = 0.05
BOARD_FLIGHTS = (5, 10)
_DRAWN_AT_ONCE = 4096


def board(seed: int) -> Iterator[bytes]:
    """Yield request bodies forever; the same seed gives the same ones.

    The flights are those scheduled to leave within two hours of the replay's start. Most requests poll one flight,
    some flights far more often than others; one in twenty refreshes a screen of the next departures of an airport.
    """
    flights = active_flights(int(anchor()[0]))
    everyone = np.array([flight for airport in flights.values() for flight in airport])
    draw = np.random.default_rng(seed)
    polled = draw.permutation(everyone)
    popularity = np.arange(1, len(polled) + 1, dtype=np.float64) ** -SKEW
    popularity /= popularity.sum()
    singles = {int(flight): _body([int(flight)]) for flight in everyone}
    while True:
        ones = draw.choice(polled, _DRAWN_AT_ONCE, p=popularity).tolist()
        screens = draw.random(_DRAWN_AT_ONCE) < BOARD_SHARE
        for one, screen in zip(ones, screens.tolist(), strict=True):
            yield _screen(flights, draw) if screen else singles[one]


def active_flights(start: int) -> dict[str, list[int]]:
    """Flights by origin, in the order of departure, scheduled from ``start`` to two hours later.

    Raises:
        FileNotFoundError: the data have not been prepared.
        ValueError: no flights leave then.
    """
    path = home() / "flights.sqlite"
    if not path.is_file():
        raise FileNotFoundError(f"no flights at {path}\n\nhint: python -m flight_risk.prepare (in examples/)")
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
        rows = connection.execute(
            "SELECT origin, flight_id FROM flights WHERE sched_dep BETWEEN ? AND ? ORDER BY sched_dep, flight_id",
            (start, start + ACTIVE_S),
        ).fetchall()
    if not rows:
        raise ValueError(f"no flights leave within two hours of {start}\n\nhint: start the replay within 2013")
    flights: dict[str, list[int]] = {}
    for origin, flight in rows:
        flights.setdefault(origin, []).append(flight)
    return flights


def _screen(flights: dict[str, list[int]], draw: np.random.Generator) -> bytes:
    airport = flights[sorted(flights)[int(draw.integers(len(flights)))]]
    size = min(int(draw.integers(BOARD_FLIGHTS[0], BOARD_FLIGHTS[1] + 1)), len(airport))
    first = int(draw.integers(len(airport) - size + 1))
    return _body(airport[first : first + size])


def _body(flights: list[int]) -> bytes:
    return json.dumps({"entities": flights}, separators=(",", ":")).encode()
