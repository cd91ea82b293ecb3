"""Routes, the pipeline that a request's version means, and the codec of the variant that answers."""

from __future__ import annotations

import weakref
from collections.abc import Awaitable, Callable
from reprlib import repr as shown
from typing import Any, Generic, NamedTuple, TypeVar

from tailcut.errors import NotFound
from tailcut.pipeline.pipeline import Pipeline
from tailcut.pipeline.request_context import ServedVariant
from tailcut.protocol.http import Body, HeaderMap, Reply
from tailcut.serving.engine import Engine

C = TypeVar("C")
Handler = Callable[[HeaderMap, Body], Awaitable[Reply]]
Operation = dict[str, Any]
"""What /openapi.json says of a route."""


class Route(NamedTuple):
    """A method, what answers it, and its description; empty for a route that is not described."""

    method: str
    handler: Handler
    operation: Operation = {}  # noqa: RUF012  # never written to


def pipeline_of(engine: Engine, version: str) -> Pipeline:
    """Return the pipeline that serves now; a version that the client named may have been replaced meanwhile.

    Raises:
        NotFound: it is not the version that is served.
        NotReady: none is.
    """
    pipeline = engine.pipeline
    if version and version != pipeline.serving.version:
        raise no_version(engine, version)
    return pipeline


class Codecs(Generic[C]):
    """The codec of the variant that answers; made anew when another one does.

    Args:
        make: a class with the arguments of ``InferenceCodec``.

    Attributes:
        known: the last variant, whose end it does not hold up, and its codec.
    """

    def __init__(self, make: Callable[..., C], engine: Engine) -> None:
        self._make = make
        self._engine = engine
        self.known: tuple[weakref.ref[ServedVariant], C] | None = None

    def of(self, served: ServedVariant) -> C:
        """Return the codec of a variant."""
        if self.known is None or self.known[0]() is not served:
            deployment = self._engine.deployment
            codec = self._make(
                deployment.name,
                served.version,
                served.specs,
                served.outputs,
                max_rows=deployment.batching.max_queue_rows,
                nan_outputs=[tensor.name for tensor in deployment.model.outputs if tensor.allow_nan],
            )
            self.known = weakref.ref(served), codec
        return self.known[1]


def no_version(engine: Engine, version: str) -> NotFound:
    """Return the error for a version that is not served."""
    what = f"model {engine.deployment.name!r} has no version {shown(version)} here"
    return NotFound(what, hint=f"it serves {engine.pipeline.serving.version!r}")
