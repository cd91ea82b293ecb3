"""The tables that features are read from at serving time: the same SQL for PostgreSQL and SQLite."""

from __future__ import annotations

import csv
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

CREATE = """
CREATE TABLE flights (
    flight_id INTEGER PRIMARY KEY,
    carrier TEXT NOT NULL,
    number INTEGER NOT NULL,
    origin TEXT NOT NULL,
    dest TEXT NOT NULL,
    tailnum TEXT NOT NULL,
    sched_dep BIGINT NOT NULL,
    block_min INTEGER NOT NULL,
    local_min INTEGER NOT NULL,
    weekday INTEGER NOT NULL,
    distance INTEGER NOT NULL,
    dep_ts BIGINT,
    arr_ts BIGINT,
    dep_delay INTEGER,
    arr_delay INTEGER
);
CREATE TABLE planes (
    tailnum TEXT PRIMARY KEY, built INTEGER, manufacturer TEXT, model TEXT, engines INTEGER, seats INTEGER
);
CREATE TABLE airports (
    airport TEXT PRIMARY KEY, name TEXT, lat DOUBLE PRECISION, lon DOUBLE PRECISION, alt INTEGER, tzone TEXT
);
CREATE TABLE airlines (carrier TEXT PRIMARY KEY, name TEXT);
CREATE TABLE weather (
    origin TEXT NOT NULL,
    obs_ts BIGINT NOT NULL,
    temp DOUBLE PRECISION,
    dewp DOUBLE PRECISION,
    humid DOUBLE PRECISION,
    wind_dir DOUBLE PRECISION,
    wind_speed DOUBLE PRECISION,
    wind_gust DOUBLE PRECISION,
    precip DOUBLE PRECISION,
    pressure DOUBLE PRECISION,
    visib DOUBLE PRECISION,
    PRIMARY KEY (origin, obs_ts)
)
"""
"""Times are whole seconds since the epoch. What happened (dep_ts and below) is known from dep_ts or arr_ts on."""

INDEX = """
CREATE INDEX flights_by_sched ON flights (sched_dep);
CREATE INDEX flights_by_origin_sched ON flights (origin, sched_dep, dep_ts);
CREATE INDEX flights_by_carrier_sched ON flights (carrier, sched_dep, dep_ts);
CREATE INDEX flights_by_carrier_origin_sched ON flights (carrier, origin, sched_dep, dep_ts);
CREATE INDEX flights_by_dest_sched ON flights (dest, sched_dep, dep_ts);
CREATE INDEX flights_by_origin_dep ON flights (origin, dep_ts, dep_delay);
CREATE INDEX flights_by_carrier_origin_dep ON flights (carrier, origin, dep_ts, dep_delay);
CREATE INDEX flights_by_dest_arr ON flights (dest, arr_ts, arr_delay, dep_delay);
CREATE INDEX flights_by_route_arr ON flights (origin, dest, arr_ts, arr_delay, dep_delay);
CREATE INDEX flights_by_service_arr ON flights (carrier, number, origin, dest, arr_ts, arr_delay);
CREATE INDEX flights_by_aircraft_dep ON flights (tailnum, dep_ts, flight_id)
"""
"""One per access path, each with the columns that its query reads, so that no query touches the table's rows."""


def statements(script: str) -> list[str]:
    """Split a script into its statements."""
    return [statement.strip() for statement in script.split(";")]


def write_csv(data: dict[str, pd.DataFrame], folder: Path) -> None:
    """Write each table as a CSV file with a header; what is not known is empty."""
    folder.mkdir(exist_ok=True)
    for name, frame in data.items():
        whole = frame.convert_dtypes() if name == "planes" else frame
        whole.to_csv(folder / f"{name}.csv", index=False)


def write_sqlite(data: dict[str, pd.DataFrame], path: Path) -> None:
    """Write the tables as one SQLite file; it appears only when it is whole."""
    partial = path.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(partial)) as connection:
        for statement in statements(CREATE):
            connection.execute(statement)
        for name, frame in data.items():
            marks = ", ".join("?" * len(frame.columns))
            rows = frame.astype(object).where(frame.notna(), None).itertuples(index=False, name=None)
            connection.executemany(f"INSERT INTO {name} ({', '.join(frame.columns)}) VALUES ({marks})", rows)
        for statement in statements(INDEX):
            connection.execute(statement)
        connection.execute("ANALYZE")
        connection.commit()
    partial.replace(path)


def columns_of(path: Path) -> list[str]:
    """Return the columns of a CSV file that ``write_csv`` wrote."""
    with path.open(newline="") as file:
        return next(csv.reader(file))
