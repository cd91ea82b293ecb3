"""Take a trained model from pilot to production inside a latency SLO, with the evidence."""

from __future__ import annotations

__version__: str


def __getattr__(name: str) -> str:
    # Read on demand: package metadata is a file, and importing tailcut must not read files.
    if name == "__version__":
        from importlib.metadata import version

        return version("tailcut")
    raise AttributeError(f"module 'tailcut' has no attribute {name!r}")
