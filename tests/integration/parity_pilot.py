"""A pilot that was written by others: nested replies, numbers as text, plain lists, other names, other statuses.

Each request may plant a fault by the header ``x-plant``.
"""

from __future__ import annotations

import itertools
import os
from typing import Annotated, Any

import numpy as np
import onnxruntime
from fastapi import FastAPI, Header, HTTPException
from parity_deployment import customer, numbers_of
from pydantic import BaseModel

app = FastAPI()
session = onnxruntime.InferenceSession(os.environ["PARITY_MODEL"])
Plant = Annotated[str, Header()]
answered = itertools.count(1)
"""Makes every unsteady answer one of its own."""


class Who(BaseModel):
    """A customer, deep in a request."""

    customer_no: int


class Batch(BaseModel):
    """Customers to score, and what else the pilot wants to know."""

    source: str = "batch"
    people: list[Who]


class Numbers(BaseModel):
    """Customers by number only."""

    ids: list[int]


def scores(numbers: list[int], plant: str) -> list[float]:
    rows = [_planted(number, plant) for number in numbers]
    x = np.array([numbers_of(row) for row in rows], dtype=np.float32)
    found: list[float] = session.run(["y"], {"x": x})[0].tolist()
    if plant == "unsteady":
        return [value + next(answered) / 100 for value in found]
    return [round(value, 2) for value in found] if plant == "rounded" else found


class Entities(BaseModel):
    """Customers as a deployment is asked for them."""

    entities: list[int]


@app.post("/predict")
def predict(body: Entities) -> dict[str, list[dict[str, Any]]]:
    """Answer as a deployment does, so that a ladder can send both the same bodies."""
    found = scores(body.entities, "")
    return {"predictions": [{"score": value, "label": "high" if value >= 0.5 else "low"} for value in found]}


@app.post("/v1/score-batch")
def batch(body: Batch, x_plant: Plant = "") -> dict[str, Any]:
    """Answer with text for numbers."""
    found = scores([one.customer_no for one in body.people], x_plant)
    labels = ("high", "low") if x_plant == "labels swapped" else ("low", "high")
    items = [{"customer": {"risk_score": f"{value:.9f}", "label": labels[value >= 0.5]}} for value in found]
    return {"model_version": 3, "result": {"items": items, "count": len(items)}}


@app.post("/v1/scores")
def plain(body: Numbers, x_plant: Plant = "") -> list[float]:
    """Answer with a plain list."""
    return scores(body.ids, x_plant)


@app.post("/v1/chances")
def chances(body: Numbers, x_plant: Plant = "") -> dict[str, list[list[float]]]:
    """Answer with the probabilities of both classes."""
    found = [[1 - value, value] for value in scores(body.ids, x_plant)]
    return {"chances": [pair[::-1] for pair in found] if x_plant == "classes swapped" else found}


def _planted(number: int, plant: str) -> dict[str, Any]:
    row = customer(number)
    if row is None:
        raise HTTPException(422, f"customer {number} does not exist")
    if plant == "crash" and number == 7:
        raise RuntimeError("planted")
    changes = {
        "age off by one": {"age": row["age"] + 1},
        "months in days": {"months": row["months"] * 30},
        "age and months swapped": {"age": row["months"], "months": row["age"]},
        "stale debt": {"debt": 40.0},
        "missing debt is 0": {"debt": row["debt"] or 0.0},
        "notes in lower case": {"note": row["note"].lower()},
    }
    return {**row, **changes.get(plant, {})}
