"""The pilot's service: ``uvicorn flight_risk.pilot.app:app`` with FLIGHT_RISK_DATABASE set."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import torch
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field, StrictInt

from flight_risk import clock
from flight_risk.model import load
from flight_risk.pilot.database import Database, connect
from flight_risk.serving import postprocess, preprocess


class Question(BaseModel):
    """Which flights to predict."""

    entities: Annotated[list[StrictInt], Field(min_length=1, max_length=1000)]


class Prediction(BaseModel):
    """The risk of arriving more than 15 minutes late, and whether that is more likely than not."""

    risk: float
    late: bool


class Answer(BaseModel):
    """One prediction per flight, in order."""

    predictions: list[Prediction]


class Service:
    """The model and the database, opened once."""

    def __init__(self, database: Database) -> None:
        # The model is small: more threads only hand it from core to core.
        torch.set_num_threads(1)
        self.database = database
        self._model = load()
        self._one_at_a_time = threading.Lock()

    def predict(self, flights: list[int], now: int) -> list[Prediction]:
        """Predict each flight.

        Raises:
            KeyError: a flight that the board does not know.
        """
        rows = self.database.features(flights, now)
        inputs = preprocess([rows[flight] for flight in flights])
        tensors = [torch.from_numpy(inputs[name]) for name in ("numeric", "categorical")]
        with self._one_at_a_time, torch.inference_mode():
            risk = self._model(*tensors)
        return [Prediction(**answer) for answer in postprocess({"risk": risk.numpy()})]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Open what requests need, close it in the end."""
    database = os.environ.get("FLIGHT_RISK_DATABASE")
    if not database:
        raise RuntimeError("FLIGHT_RISK_DATABASE is not set\n\nhint: sqlite:///<artefacts>/flights.sqlite, absolute")
    service = Service(connect(database))
    app.state.service = service
    try:
        yield
    finally:
        service.database.close()


app = FastAPI(title="Flight risk", lifespan=lifespan)


@app.post("/predict")
def predict(question: Question, request: Request) -> Answer:
    """Answer in FastAPI's thread pool: the database driver blocks."""
    service: Service = request.app.state.service
    try:
        return Answer(predictions=service.predict(question.entities, int(clock.now())))
    except KeyError as error:
        raise HTTPException(status_code=404, detail=f"unknown flight {error.args[0]}") from error
