"""The pilot of examples/flight_risk itself, with a known delay in each stage."""

from __future__ import annotations

import time
from typing import Any

import parts
from naps import ready_ns, took
from pydantic import field_serializer, field_validator

from flight_risk import clock
from flight_risk.pilot import app as pilot
from flight_risk.pilot import database


class Question(pilot.Question):
    @field_validator("entities")
    @classmethod
    def check(cls, entities: list[int]) -> list[int]:
        parts.nap("validation", "decode", 0.006)
        return entities


class Answer(pilot.Answer):
    @field_serializer("predictions", mode="wrap")
    def show(self, predictions: Any, handler: Any) -> Any:
        parts.nap("encoder", "encode", 0.008)
        return handler(predictions)


def slow_query(connection: Any) -> int:
    """Have the database sleep: for how many nanoseconds, without those in which this thread had no core."""
    begun, ready = time.perf_counter_ns(), ready_ns()
    connection.execute("SELECT pg_sleep(0.005)").fetchall()
    return time.perf_counter_ns() - begun - (ready_ns() - ready)


def on_sqlite(self: database.Sqlite) -> int:
    connection = self._connection()
    connection.create_function("pg_sleep", 1, time.sleep)
    return slow_query(connection)


def on_postgres(self: database.Postgres) -> int:
    with self._pool.connection() as connection:
        return slow_query(connection)


def with_a_slow_query(features: Any, query: Any) -> Any:
    """Between the slow query alone and all of it: the pilot's own query is SQL too, the rows made from it are not."""

    def slow_features(self: Any, flights: list[int], now: int) -> dict[int, database.Row]:
        if parts.slow.get() != "query":
            return features(self, flights, now)
        begun = time.perf_counter_ns()
        slept_ns = query(self)
        found = features(self, flights, now)
        spent_ns = time.perf_counter_ns() - begun
        took("sql", spent_ns, spent_ns - slept_ns)
        return found

    return slow_features


database.Sqlite.features = with_a_slow_query(database.Sqlite.features, on_sqlite)
database.Postgres.features = with_a_slow_query(database.Postgres.features, on_postgres)
now, load, preprocess, postprocess = clock.now, pilot.load, pilot.preprocess, pilot.postprocess


def slow_now() -> float:
    parts.in_thread()
    return now()


def slow_preprocess(rows: Any) -> Any:
    parts.nap("preprocessing", "code", 0.02)
    inputs = preprocess(rows)
    parts.hold(pilot.app.state.service._one_at_a_time)
    return inputs


def slow_postprocess(outputs: Any) -> Any:
    parts.had()
    return postprocess(outputs)


clock.now = slow_now
pilot.load = lambda: parts.slowed(load())
pilot.preprocess, pilot.postprocess = slow_preprocess, slow_postprocess
app = pilot.app
parts.plant(app, "/predict", pilot.predict, question=Question, many=300_000, **{"return": Answer})
