"""Routes, the pipeline that a request's version means, and the codec for that pipeline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from reprlib import repr as shown
from typing import TypeVar

from tailcut.errors import NotFound
from tailcut.pipeline.pipeline import Pipeline
from tailcut.protocol.http import Body, HeaderMap, Reply
from tailcut.serving.deployment import Engine

C = TypeVar("C")
Handler = Callable[[HeaderMap, Body], Awaitable[Reply]]
Route = tuple[str, Handler]
"""A method and what answers it."""


def pipeline_of(engine: Engine, version: str) -> Pipeline:
    """Return the pipeline that serves now; a version that the client named may have been replaced meanwhile.

    Raises:
        NotFound: it is not the version that is served.
        NotReady: none is.
    """
    pipeline = engine.pipeline
    if version and version != pipeline.served[1]:
        raise no_version(engine, version)
    return pipeline


def codec_for(make: Callable[..., C], engine: Engine, pipeline: Pipeline, max_rows: int) -> C:
    """Make the codec of one pipeline.

    Args:
        make: a class with the arguments of ``InferenceCodec``.
        max_rows: of a request.
    """
    deployment = engine.deployment
    return make(
        deployment.name,
        pipeline.served[1],
        pipeline.specs,
        pipeline.outputs,
        max_rows=max_rows,
        nan_outputs=[tensor.name for tensor in deployment.model.outputs if tensor.allow_nan],
    )


def no_version(engine: Engine, version: str) -> NotFound:
    """Return the error for a version that is not served."""
    what = f"model {engine.deployment.name!r} has no version {shown(version)} here"
    return NotFound(what, hint=f"it serves {engine.pipeline.served[1]!r}")
