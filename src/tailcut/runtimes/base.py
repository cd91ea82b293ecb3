"""What a runtime is: an opened artifact that turns input arrays into output arrays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from tailcut.core.tensors import Arrays


class Runtime(Protocol):
    """An opened model. ``run`` may be called from any thread, one call at a time per instance."""

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch.

        Args:
            inputs: every input by name; the first dimension of each is the batch's rows.
            outputs: names of the outputs wanted.

        Returns:
            each wanted output by name, first dimension as long as the inputs'.
        """
        ...

    def close(self) -> None:
        """Free what the runtime holds. Calling it twice is allowed."""
        ...


class Opener(Protocol):
    """Opens an artifact: ``tailcut.runtimes.open_runtime`` finds one by the variant's runtime name."""

    def __call__(self, artifact: Path, *, threads: int) -> Runtime: ...
