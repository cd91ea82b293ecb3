"""Take a trained model from pilot to production inside a latency SLO, with the evidence."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tailcut.client import AsyncClient, Client
    from tailcut.manifest import Manifest
    from tailcut.transport.asgi import ASGIApplication
    from tailcut.transport.in_process import InProcessModel

__all__ = ["AsyncClient", "Client", "InProcessModel", "__version__", "asgi", "open"]

__version__: str

_LAZY = {
    "AsyncClient": "tailcut.client",
    "Client": "tailcut.client",
    "InProcessModel": "tailcut.transport.in_process",
}
"""Names that are imported when they are asked for, and from where."""


def asgi(*manifests: Manifest | Path | str, overrides: Sequence[str] = ()) -> ASGIApplication:
    """Make an ASGI application of one or more deployments, to mount in a FastAPI or Starlette app or to serve alone.

        model = tailcut.asgi("tailcut.toml")
        app = FastAPI(lifespan=model.lifespan)
        app.mount("/model", model)

    Args:
        manifests: one deployment; or paths as ``tailcut serve`` takes them: manifests or their folders, or one
            ``host.toml`` or folder of models; without any, ``./tailcut.toml``.
        overrides: settings in place of the file's, each "path=value".

    Raises:
        ManifestError: the manifest is wrong.
        StartError: a file of tokens cannot be read.
    """
    from tailcut.transport.asgi import asgi as make

    return make(*manifests, overrides=overrides)


def open(*manifests: Manifest | Path | str, model: str = "", overrides: Sequence[str] = ()) -> InProcessModel:
    """Make a deployment that this process asks by function calls, without a server.

        async with tailcut.open("tailcut.toml") as model:
            predictions = await model.predict([{"age": 41, "income": 2300}])

    Args:
        manifests: one deployment; or paths as ``tailcut serve`` takes them: its manifest or folder, with those of the
            models that compute its features; without any, ``./tailcut.toml``.
        model: of several models the one to ask; by default the one that computes features for no other.
        overrides: settings in place of the file's, each "path=value"; of several models "NAME:path=value" sets one.

    Raises:
        ManifestError: the manifest is wrong.
    """
    from tailcut.transport.in_process import open_model

    return open_model(*manifests, model=model, overrides=overrides)


def __getattr__(name: str) -> Any:
    # Read on demand: package metadata is a file, and importing tailcut must not read files.
    if name == "__version__":
        from tailcut.version import version

        return version()
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'tailcut' has no attribute {name!r}")
