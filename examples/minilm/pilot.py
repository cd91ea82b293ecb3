"""The pilot's service, what one ships first: FastAPI, tokenisation and the model in a synchronous handler.

``uvicorn minilm.pilot:app`` (in examples/); ``{"texts": ["..."]}`` -> ``{"embeddings": [[384 numbers], ...]}``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from itertools import cycle
from typing import Annotated

import torch
from fastapi import FastAPI, Request
from pydantic import BaseModel, Field
from torch import nn

from minilm.model import load
from minilm.tokens import encode

SENTENCES = (
    "Return the sum of a sequence.",
    "The function raises ValueError where the two arrays have different lengths, and broadcasts them otherwise.",
    "How do I read a file line by line?",
    "Solve the linear system by LU decomposition with partial pivoting; the matrix is overwritten unless a copy is"
    " asked for. Singular matrices are found by a pivot of zero, and its row is given with the error.",
)


class Question(BaseModel):
    """Which texts to embed."""

    texts: Annotated[list[str], Field(min_length=1, max_length=64)]


class Answer(BaseModel):
    """One embedding per text, in order."""

    embeddings: list[list[float]]


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model once."""
    torch.set_num_threads(1)
    app.state.model = load()
    yield


app = FastAPI(title="MiniLM", lifespan=lifespan)


@app.post("/embed")
def embed(question: Question, request: Request) -> Answer:
    """Answer in FastAPI's thread pool: the model computes for as long as a request lasts."""
    tensors = {name: torch.from_numpy(value) for name, value in encode(question.texts).items()}
    model: nn.Module = request.app.state.model
    with torch.inference_mode():
        embeddings = model(**tensors)
    return Answer(embeddings=embeddings.tolist())


def traffic(seed: int) -> Iterator[dict[str, list[str]]]:
    """Yield request bodies for ``tailcut load`` and ``tailcut profile``: single sentences, short and long in turn."""
    del seed
    return cycle({"texts": [text]} for text in SENTENCES)
