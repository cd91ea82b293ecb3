"""Where features are kept: embedded (SQLite, caches in memory), or real (PostgreSQL and Redis).

The real one is taken from FLIGHT_RISK_DATABASE and FLIGHT_RISK_REDIS where they are set, else started privately.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Literal

from flight_risk import tables
from flight_risk.clock import REPLAY, replay_from_now
from flight_risk.servers import ServerError, find_postgres, find_redis, find_user, private_servers
from flight_risk.settings import home

Kind = Literal["auto", "embedded", "real"]
KINDS = ("auto", "embedded", "real")
DATABASE, REDIS, CHOICE = "FLIGHT_RISK_DATABASE", "FLIGHT_RISK_REDIS", "FLIGHT_RISK_STACK"
CACHE = "FLIGHT_RISK_CACHE"


@contextmanager
def stack(manifest: object = None, kind: str = "auto") -> Iterator[dict[str, str]]:
    """Start what features are read from; yield the environment that says where it is.

    Args:
        manifest: not needed; the ladder hands it to every setup.
        kind: "embedded", "real", or "auto": real where it can be had. FLIGHT_RISK_STACK wins over "auto".

    Raises:
        SystemExit: the data are not prepared, the kind is unknown, or the real stack cannot be had.
    """
    chosen = os.environ.get(CHOICE) or kind if kind == "auto" else kind
    if chosen not in KINDS:
        raise SystemExit(f"error: the stack {chosen!r} is unknown\n\nhint: {CHOICE} is one of {', '.join(KINDS)}")
    if not (home() / "prepared.json").is_file():
        raise SystemExit(f"error: nothing is prepared in {home()}\n\nhint: python -m flight_risk.prepare")
    given = os.environ.get(DATABASE, "").startswith("postgresql://")
    lacking = "" if given else lacking_for_real()
    if chosen == "real" and lacking:
        raise SystemExit(f"error: no real stack: {lacking}\n\nhint: install it, or set {CHOICE}=embedded")
    with _terminable():
        if chosen == "embedded" or (chosen == "auto" and lacking):
            _say(f"embedded: SQLite, caches in memory ({lacking or 'asked for'})")
            yield _environment("embedded", f"sqlite:///{home().resolve() / 'flights.sqlite'}", "")
        elif given:
            _say(f"real: as {DATABASE} and {REDIS} say")
            _fill(os.environ[DATABASE])
            yield _environment("real", os.environ[DATABASE], os.environ.get(REDIS, ""))
        else:
            yield from _private()


def lacking_for_real() -> str:
    """Say what a private real stack lacks on this machine; empty where it lacks nothing."""
    missing = [name for name, found in (("PostgreSQL", find_postgres()), ("redis-server", find_redis())) if not found]
    if missing:
        return f"{' and '.join(missing)} not found"
    try:
        find_user()
    except ServerError as error:
        return str(error)
    return ""


def _private() -> Iterator[dict[str, str]]:
    began = time.monotonic()
    try:
        with private_servers() as (database, redis):
            rows = _fill(database)
            took = time.monotonic() - began
            _say(f"real: private PostgreSQL ({rows} rows) and Redis, ready in {took:.1f} s")
            yield _environment("real", database, redis)
    except ServerError as error:
        raise SystemExit(f"error: the real stack did not start: {error}\n\nhint: set {CHOICE}=embedded") from error


def _environment(kind: str, database: str, redis: str) -> dict[str, str]:
    return {
        CHOICE: kind,
        DATABASE: database,
        REDIS: redis,
        CACHE: "redis" if redis else "memory",
        REPLAY: replay_from_now(),
        "FLIGHT_RISK_HOME": str(home().resolve()),
    }


def _fill(url: str) -> int:
    """Load the tables where they are not there; return how many rows were loaded."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        if connection.execute("SELECT to_regclass('flights')").fetchone() != (None,):
            return 0
        # All or nothing, so that an interrupted load is not taken for a whole one.
        with connection.transaction():
            for statement in tables.statements(tables.CREATE):
                connection.execute(statement.encode())
            rows = sum(_copy(connection, path) for path in sorted((home() / "tables").glob("*.csv")))
            for statement in tables.statements(tables.INDEX):
                connection.execute(statement.encode())
        # Sets the visibility map too, without which no index-only scan is one.
        connection.execute("VACUUM ANALYZE")
        return rows


def _copy(connection: Any, path: Path) -> int:
    columns = ", ".join(tables.columns_of(path))
    # An empty field is NULL, but an empty tail number is what an unassigned aircraft has.
    options = "FORMAT csv, HEADER" + (", FORCE_NOT_NULL (tailnum)" if path.stem == "flights" else "")
    cursor = connection.cursor()
    with cursor.copy(f"COPY {path.stem} ({columns}) FROM STDIN ({options})") as copy, path.open("rb") as file:
        while block := file.read(1 << 20):
            copy.write(block)
    return int(cursor.rowcount)


@contextmanager
def _terminable() -> Iterator[None]:
    """Turn SIGTERM into an exit that passes through this block, so that servers are stopped and folders removed."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _say(text: str) -> None:
    print(f"stack: {text}", file=sys.stderr)
