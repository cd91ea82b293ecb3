"""The libraries that models run on, as the hooks on their calls report them. Runs in the profiled process.

That a library is imported says nothing: transformers imports torch, whatever its models run on.
"""

from __future__ import annotations

from tailcut.profiler.recording.spans import one_line
from tailcut.profiler.recording.tracing import current
from tailcut.profiler.records import Stage


class ModelLibraries:
    """By the labels of models' spans, which library answered."""

    def __init__(self) -> None:
        self._found: dict[str | bytes, str] = {}
        self._inside: dict[str | bytes, str] = {}

    def tell(self, label: str | bytes, library: str) -> None:
        """Record the library of a span's label; where two libraries have models of one label, neither."""
        if self._found.setdefault(label, library) != library:
            self._found[label] = ""

    def tell_inside(self, library: str) -> None:
        """Record it for the model's span that this code runs in, if any: its class only wraps a runtime."""
        span = current.get()
        if span is not None and span.stage is Stage.MODEL:
            self._inside[span.label] = library

    def found(self) -> dict[str, str]:
        """Return the libraries by labels as they are recorded."""
        told = {**dict(self._found), **dict(self._inside)}
        return {one_line(label): library for label, library in told.items() if library}


libraries = ModelLibraries()
