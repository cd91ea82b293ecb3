"""The user's side of a small deployment: features of a customer, and the hooks around a linear model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

CITIES = ("Lima", "Oslo", "Rome")
NOTES = ("Late Payment", "late payment", "On Time", "on time")
KNOWN = 90
"""Customers from this number on are not known."""

Row = dict[str, Any]


def customer(number: int) -> Row | None:
    """What is known of a customer."""
    if number >= KNOWN:
        return None
    return {
        "age": 20 + 7 * number % 47,
        "income": 1000.0 * (1 + number % 13) + 3.7 * number,
        "months": 1 + 5 * number % 24,
        "debt": None if number % 5 == 0 else 10.0 * (number % 11 + 1),
        "city": CITIES[number % 3],
        "note": NOTES[number % 4],
    }


def features(keys: list[tuple[int]], context: object) -> list[Row | None]:
    """The feature group's source."""
    return [customer(key[0]) for key in keys]


def aged_features(keys: list[tuple[int]], context: object) -> list[Row | None]:
    """The same with an age that is one too high."""
    found = features(keys, context)
    return [None if row is None else {**row, "age": row["age"] + 1} for row in found]


def preprocess(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The model's one input, ``x`` FP32 [rows, 6]."""
    return {"x": np.array([numbers_of(row) for row in rows], dtype=np.float32)}


def lowered_preprocess(rows: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """The same with notes in lower case."""
    return preprocess([{**row, "note": row["note"].lower()} for row in rows])


def numbers_of(row: Mapping[str, Any]) -> list[float]:
    """The six numbers that the model sees of a customer."""
    debt = -50.0 if row["debt"] is None else row["debt"]
    city = CITIES.index(row["city"]) if row["city"] in CITIES else -1
    note = NOTES.index(row["note"]) if row["note"] in NOTES else 7
    return [row["age"] / 40, row["income"] / 5000, row["months"] / 12, debt / 50, city / 2, note / 3]


def traffic(seed: int) -> Iterator[dict[str, list[int]]]:
    """Yield bodies that the pilot and the deployment both take, one with a customer that is not known."""
    for place in count(seed):
        yield {"entities": [place % KNOWN if place != 5 else KNOWN + 9]}


def postprocess(outputs: Mapping[str, np.ndarray]) -> list[dict[str, Any]]:
    """A score and the label that follows from it."""
    return [{"score": value, "label": "high" if value >= 0.5 else "low"} for value in outputs["y"].tolist()]
