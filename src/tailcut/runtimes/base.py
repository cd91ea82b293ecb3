"""What a runtime is: an opened artifact that turns input arrays into output arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tailcut.core.tensors import Arrays
from tailcut.manifest import Tensor


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


class Openable(Protocol):
    """What a runtime needs to know of a variant; ``tailcut.registry.Variant`` is one."""

    @property
    def name(self) -> str: ...

    @property
    def runtime(self) -> str: ...

    @property
    def artifact(self) -> Path: ...

    @property
    def inputs(self) -> tuple[Tensor, ...]: ...

    @property
    def outputs(self) -> tuple[Tensor, ...]: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def parts(self) -> Mapping[str, Path]:
        """Of a pair: artifacts of the variants that it runs, by their names; empty for all others."""
        ...


@dataclass(frozen=True)
class Opening:
    """An ``Openable`` that stands for itself: a file that is in no registry, or a part of a pair."""

    name: str
    runtime: str
    artifact: Path
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    settings: Mapping[str, Any]
    parts: Mapping[str, Path] = field(default_factory=dict)
