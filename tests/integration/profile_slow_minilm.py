"""The pilot of examples/minilm itself, with a known delay in each stage."""

from __future__ import annotations

import threading
from typing import Any

import parts
from pydantic import field_serializer, field_validator

from minilm import pilot

one_at_a_time = threading.Lock()


class Question(pilot.Question):
    @field_validator("texts")
    @classmethod
    def check(cls, texts: list[str]) -> list[str]:
        parts.nap("validation", "decode", 0.045)
        return texts


class Answer(pilot.Answer):
    @field_serializer("embeddings", mode="wrap")
    def show(self, embeddings: Any, handler: Any) -> Any:
        parts.nap("encoder", "encode", 0.045)
        return handler(embeddings)


load, encode = pilot.load, pilot.encode


def slow_encode(texts: list[str]) -> Any:
    parts.in_thread()
    parts.nap("tokenizer", "code", 0.045)
    parts.hold(one_at_a_time)
    with one_at_a_time:
        parts.had()
        return encode(texts)


pilot.load = lambda: parts.slowed(load())
pilot.encode = slow_encode
app = pilot.app
parts.plant(app, "/embed", pilot.embed, question=Question, many=1_000_000, **{"return": Answer})
