"""The stages of the request path, one file each.

A stage is bound once, at start, to the handler behind it, and returns a handler of its own; one that is not configured
is not bound. A handler may be a plain function that returns the next one's awaitable: where there is nothing to wait
for, no frame and no task is made. There are three kinds of handlers, one per entry point:

    entities:  entity cache > features > (rows)
    rows:      preprocess > (tensors) > postprocess
    tensors:   tensor cache > batching

A new stage is a file here, its name in ``common.timings.Stage`` (its place in the record of times) and a line in
``pipeline.Pipeline``, which binds the stages.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Protocol

from tailcut.common.tensors import Arrays
from tailcut.features import EntityKey
from tailcut.observe.sample import Sample
from tailcut.pipeline.request_context import RequestContext
from tailcut.pipeline.row_transform import Rows

TensorHandler = Callable[[RequestContext, Arrays, int, tuple[str, ...]], Awaitable[Arrays]]
"""Runs checked inputs: (context, every input, rows, names of wanted outputs) -> outputs by name."""

RowHandler = Callable[[RequestContext, Rows, bool], Awaitable[list[Any]]]
"""Answers feature rows: (context, rows, whether the client sent them) -> one JSON value per row."""

Answers = tuple[list[Any], list[float]]
"""One JSON value per entity, and how many seconds each may be kept."""

EntityHandler = Callable[[RequestContext, Sequence[EntityKey]], Awaitable[Answers]]
"""Answers entities: (context, their keys) -> answers."""


class PathStage(Protocol):
    """A step of the request path; it gives its time to ``context.timings``."""

    def bind(self, next_handler: Any, /) -> Any:
        """Return the handler of this stage and of all behind it; one of the three kinds above."""

    def samples(self) -> Iterable[Sample]:
        """Yield what /metrics shows of the stage besides its times."""
