"""What ``tailcut check`` reports, for people and as JSON."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from tailcut.common.bounds import Bound

Origin = Literal["entity", "row", "kept row", "example tensors"]


class Tensor(msgspec.Struct):
    """A tensor that went into or came out of the model."""

    name: str
    datatype: str
    shape: list[int]
    sample: list[Any]
    """The first few values of its first row."""


class Group(msgspec.Struct):
    """What a feature group said about the entity."""

    name: str
    key: dict[str, Any]
    ttl_s: float
    ttl: str
    """As the manifest has it."""
    source_ms: float
    """Time spent in its source; 0 where it was read from a preloaded table."""
    values: dict[str, Any]


class Step(msgspec.Struct):
    """A step and how long it took."""

    name: str
    ms: float


class Variant(msgspec.Struct):
    """What is served."""

    name: str
    runtime: str
    version: str
    size_bytes: int
    sha256: str
    refused: str


class Request(msgspec.Struct):
    """The same row as a request, through the caches."""

    stages_ms: dict[str, float]
    total_ms: float
    cache: str


class Untried(msgspec.Struct):
    """A stage of serving that this row did not go through."""

    stage: str
    what: str
    """What of the manifest it would have run."""


class Failure(msgspec.Struct):
    """Where it failed and why."""

    step: str
    code: str
    message: str
    hint: str


class Report(msgspec.Struct):
    """Everything that was seen; what comes after a failure is empty. ``rows_alone``: each row runs alone."""

    deployment: str
    directory: str
    origins: dict[str, int]
    """How many values came from the file, the environment and flags."""
    origin: Origin
    ok: bool = False
    variant: Variant | None = None
    executor: str = ""
    executor_reason: str = ""
    executors: int = 0
    rows_alone: bool = False
    warm_up_ms: dict[int, float] = {}
    unjudged: str = ""
    """Why the build's verdict is not about the features that the model gets here."""
    groups_opened: list[str] = []
    groups: list[Group] = []
    fresh_for_s: float | None = None
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    answer: msgspec.Raw = msgspec.Raw(b"null")
    steps: list[Step] = []
    request: Request | None = None
    references: list[str] = []
    """Keys for the build and the ladder whose references were imported; serving does not need them."""
    untried: list[Untried] = []
    limits: list[Bound] = []
    warnings: list[str] = []
    """What a server of this model would go on without."""
    failure: Failure | None = None
