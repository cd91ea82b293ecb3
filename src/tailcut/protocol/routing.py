"""What a route is, and which version of the model one means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from reprlib import repr as shown

from tailcut.errors import NotFound
from tailcut.pipeline.pipeline import Pipeline
from tailcut.protocol.http import Body, HeaderMap, Reply
from tailcut.serving.deployment import Engine

Handler = Callable[[HeaderMap, Body], Awaitable[Reply]]
Route = tuple[str, Handler]
"""A method and what answers it."""


def path_of(engine: Engine, version: str) -> Pipeline:
    """Return the path that answers from here on; a version that the client named may have been replaced meanwhile.

    Raises:
        NotFound: it is not the version that is served.
        NotReady: none is.
    """
    pipeline = engine.pipeline
    if version and version != pipeline.served[1]:
        raise no_version(engine, version)
    return pipeline


def no_version(engine: Engine, version: str) -> NotFound:
    """Return the error for a version that is not served."""
    what = f"model {engine.deployment.name!r} has no version {shown(version)} here"
    return NotFound(what, hint=f"it serves {engine.pipeline.served[1]!r}")
