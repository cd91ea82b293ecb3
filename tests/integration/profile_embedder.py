"""An application of another shape, that of examples/minilm: FastAPI, a synchronous handler in the pool of threads that
tokenises, computes and answers with embeddings. The test copies this file and lets it be profiled as it is.

The last part of the path says what is slow. What that really took is written down by ``naps`` (profile_naps.py).
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

import anyio.to_thread
import naps
import torch
from fastapi import Depends, FastAPI
from naps import planted
from parts import THREADS, authorise, had, hold, in_thread, nap, slow, take_threads
from pydantic import BaseModel, Field, field_serializer, field_validator
from tokenizers import Encoding, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

WORDS = ("[PAD]", "[UNK]", "solve", "the", "linear", "system", "by", "decomposition")
SIZE = 32

one_at_a_time = threading.Lock()
local = threading.local()


class Question(BaseModel):
    texts: Annotated[list[str], Field(min_length=1)]

    @field_validator("texts")
    @classmethod
    def strip(cls, texts: list[str]) -> list[str]:
        nap("validation", "decode", 0.012)
        return [text.strip() for text in texts]


class Answer(BaseModel):
    embeddings: list[list[float]]

    @field_serializer("embeddings")
    def rounded(self, embeddings: list[list[float]]) -> list[list[float]]:
        nap("encoder", "encode", 0.016)
        return [[round(value, 6) for value in embedding] for embedding in embeddings]


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(SIZE, SIZE)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        if slow.get() == "model":
            time.sleep(0.005)
        return torch.relu(self.inner(hidden))


class Encoder(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = torch.nn.Embedding(len(WORDS), SIZE)
        self.layers = torch.nn.Sequential(Layer(), Layer())

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        with planted("model"):
            return self.embedded(ids, mask)

    def embedded(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        hidden = self.layers(self.words(ids)) * mask.unsqueeze(-1)
        return torch.nn.functional.normalize(hidden.sum(dim=1), dim=1)


def make_tokenizer() -> Tokenizer:
    made = Tokenizer(WordLevel({word: place for place, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.enable_padding(pad_token="[PAD]")
    return made


tokenizer = make_tokenizer()
model = Encoder().eval()


def tokenise(texts: list[str]) -> list[Encoding]:
    if slow.get() == "tokenizer":
        time.sleep(0.012)
    return tokenizer.encode_batch([text.lower() for text in texts])


def prefix() -> str:
    """What goes in front of a text is kept in a database."""
    if not hasattr(local, "connection"):
        local.connection = sqlite3.connect(":memory:")
        local.connection.create_function("prefix", 0, slow_prefix)
    return str(local.connection.execute("SELECT prefix()").fetchall()[0][0])


def slow_prefix() -> str:
    with planted("sql"):
        time.sleep(0.005)
    return "the"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    torch.set_num_threads(1)
    anyio.to_thread.current_default_thread_limiter().total_tokens = THREADS
    yield
    naps.write()


app = FastAPI(lifespan=lifespan, dependencies=[Depends(naps.remember), Depends(authorise), Depends(take_threads)])


@app.post("/embed/{part}")
def embed(question: Question, part: str) -> Answer:
    in_thread()
    texts = [f"{prefix()} {text}" for text in question.texts] if part == "query" else question.texts
    # All of the handler's code that can take long: on a slow machine the rest of it is a tenth of what is planted.
    with planted("code"):
        tokens = tokenise(texts)
        ids, mask = (torch.tensor([getattr(one, name) for one in tokens]) for name in ("ids", "attention_mask"))
    hold(one_at_a_time)
    with one_at_a_time, torch.inference_mode():
        had()
        embeddings = model(ids, mask)
    return Answer(embeddings=embeddings.tolist())
