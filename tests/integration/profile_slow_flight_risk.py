"""The pilot of examples/flight_risk itself, with a known delay in each stage."""

from __future__ import annotations

import time
from typing import Any

import parts
from naps import planted
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


def on_sqlite(self: database.Sqlite) -> None:
    connection = self._connection()
    connection.create_function("pg_sleep", 1, time.sleep)
    connection.execute("SELECT pg_sleep(0.005)").fetchall()


def on_postgres(self: database.Postgres) -> None:
    with self._pool.connection() as connection:
        connection.execute("SELECT pg_sleep(0.005)").fetchall()


def with_a_slow_query(features: Any, query: Any) -> Any:
    def slow_features(self: Any, flights: list[int], now: int) -> dict[int, database.Row]:
        if parts.slow.get() != "query":
            return features(self, flights, now)
        with planted("sql"):
            query(self)
            return features(self, flights, now)

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
