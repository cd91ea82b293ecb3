"""The pilot's service, what one ships first: FastAPI, a DataFrame per request, the Pipeline as it was fitted.

``uvicorn flight_pipeline.pilot:app`` (in examples/); ``{"flights": [{...}]}`` -> ``{"late": [...]}``.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any

import numpy as np
import pandas as pd
from fastapi import FastAPI, Request
from pydantic import BaseModel, Field

from flight_pipeline.data import FEATURES, tables
from flight_pipeline.model import build


class Flight(BaseModel):
    """What is known of a flight before it leaves; null where it is not."""

    hour: int
    distance: float
    built: float | None
    temp: float | None
    wind_speed: float | None
    visib: float | None
    carrier: str
    origin: str
    dest: str
    manufacturer: str | None


class Question(BaseModel):
    """Which flights to predict."""

    flights: Annotated[list[Flight], Field(min_length=1, max_length=1000)]


class Answer(BaseModel):
    """Per flight, the probability of leaving more than 15 minutes late."""

    late: list[float]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Fit the pipeline once."""
    app.state.model = build()
    yield


app = FastAPI(title="Flight pipeline", lifespan=lifespan)


@app.post("/predict")
def predict(question: Question, request: Request) -> Answer:
    """Answer in FastAPI's thread pool: the model computes for as long as a request lasts."""
    # None is no missing value to an imputer that was fitted on NaN.
    rows = pd.DataFrame([flight.model_dump() for flight in question.flights])[FEATURES].fillna(np.nan)
    return Answer(late=request.app.state.model.predict_proba(rows)[:, 1].tolist())


def traffic(seed: int) -> Iterator[dict[str, list[dict[str, Any]]]]:
    """Yield request bodies for ``tailcut parity``, ``load`` and ``profile``: held-out flights, one to three each."""
    _, rows = tables()
    flights = rows[FEATURES].sample(frac=1.0, random_state=seed).to_dict("records")
    place = 0
    while place < len(flights):
        size = 1 + place % 3
        yield {"flights": [_plain(one) for one in flights[place : place + size]]}
        place += size


def _plain(flight: Mapping[Any, Any]) -> dict[str, Any]:
    return {
        str(name): None if isinstance(value, float) and math.isnan(value) else value for name, value in flight.items()
    }
