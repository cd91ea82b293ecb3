"""The pilot's service, what one ships first: FastAPI; model, two queries and classifier one after the other.

``uvicorn text_risk.pilot:app`` (in examples/);
``{"entities": [{"text": "...", "customer": 7}]}`` -> ``{"predictions": [{"risk": 0.8, "call": true}]}``.
"""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from fastapi import FastAPI, HTTPException, Request
from pydantic import BaseModel, Field, StrictInt

from minilm.model import load
from minilm.tokens import encode
from text_risk.data import DAY_S, TODAY, WINDOW_S
from text_risk.model import fit, joined
from text_risk.prepare import DATABASE
from text_risk.serving import THRESHOLD
from text_risk.settings import home

MONTHS = "SELECT (? - joined) / ? FROM customers WHERE customer = ?"
LATE_ORDERS = "SELECT COUNT(*) FROM orders WHERE customer = ? AND due > ? AND due <= ? AND delivered > due"


class Ticket(BaseModel):
    """A message, and the number of the customer who wrote it."""

    text: str
    customer: StrictInt


class Question(BaseModel):
    """Which tickets to predict."""

    entities: Annotated[list[Ticket], Field(min_length=1, max_length=64)]


class Prediction(BaseModel):
    """The risk that the customer leaves within a month, and whether to call."""

    risk: float
    call: bool


class Answer(BaseModel):
    """One prediction per ticket, in order."""

    predictions: list[Prediction]


class Service:
    """Both models, loaded once; the database is opened by each request, as SQLite wants it in a pool of threads."""

    def __init__(self, at: Path) -> None:
        torch.set_num_threads(1)
        self._encoder = load()
        self._classifier = fit(at)
        self._database = at / DATABASE

    def predict(self, tickets: Sequence[Ticket]) -> list[Prediction]:
        """Predict each ticket.

        Raises:
            KeyError: an unknown customer.
        """
        tensors = {name: torch.from_numpy(value) for name, value in encode([each.text for each in tickets]).items()}
        with torch.inference_mode():
            embeddings = self._encoder(**tensors).numpy()
        with closing(sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)) as connection:
            columns = [self._columns(connection, each.customer) for each in tickets]
        risks = self._classifier.predict_proba(joined(embeddings, np.array(columns)))[:, 1]
        return [Prediction(risk=risk, call=risk >= THRESHOLD) for risk in risks.tolist()]

    def _columns(self, connection: sqlite3.Connection, customer: int) -> tuple[float, int]:
        found = connection.execute(MONTHS, (TODAY, 30.0 * DAY_S, customer)).fetchone()
        if found is None:
            raise KeyError(customer)
        (late,) = connection.execute(LATE_ORDERS, (customer, TODAY - WINDOW_S, TODAY)).fetchone()
        return found[0], late


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load both models once."""
    app.state.service = Service(home())
    yield


app = FastAPI(title="Text risk", lifespan=lifespan)


@app.post("/predict")
def predict(question: Question, request: Request) -> Answer:
    """Answer in FastAPI's thread pool: the models compute for as long as a request lasts."""
    service: Service = request.app.state.service
    try:
        return Answer(predictions=service.predict(question.entities))
    except KeyError as error:
        raise HTTPException(status_code=404, detail=f"unknown customer {error.args[0]}") from error
