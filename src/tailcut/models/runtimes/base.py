"""What a runtime is: an opened artifact that turns input arrays into output arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

from tailcut.common.tensors import Arrays
from tailcut.manifest import TensorSpec


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

    def close(self) -> None:
        """Free what the runtime holds. Calling it twice is allowed."""


@runtime_checkable
class StreamingRuntime(Runtime, Protocol):
    """A runtime that can answer in parts, as text is generated: what ``generate_stream`` needs.

    Streams may run several at a time, and beside ``run``, each from a thread of its own: a runtime that cannot do so
    locks what it shares.
    """

    def stream(self, inputs: Arrays, outputs: Sequence[str]) -> Iterator[Arrays]:
        """Yield the answer to one row, part by part.

        A generator is closed where the client left or the deadline passed, after the part that it is making.

        Args:
            inputs: every input by name; the first dimension of each is 1.
            outputs: names of the outputs wanted.

        Yields:
            each wanted output by name, of any shape whose first dimension is 1.
        """


class Openable(Protocol):
    """What a runtime needs to know of a variant; ``tailcut.registry.Variant`` is one."""

    @property
    def name(self) -> str: ...

    @property
    def runtime(self) -> str: ...

    @property
    def artifact(self) -> Path: ...

    @property
    def inputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def outputs(self) -> tuple[TensorSpec, ...]: ...

    @property
    def settings(self) -> Mapping[str, Any]: ...

    @property
    def parts(self) -> Mapping[str, Path]:
        """Of a pair: artifacts of the variants that it runs, by their names; empty for all others."""
        ...


class OpenOptions(NamedTuple):
    """How a variant is opened.

    Attributes:
        threads: of the runtime for one batch.
        source: makes the live object that the artifact belongs to; see ``open_runtime``.
    """

    threads: int
    source: Callable[[], Any] | None = None


@dataclass(frozen=True)
class OpenSpec:
    """An ``Openable`` that stands for itself: a file that is in no registry, or a part of a pair."""

    name: str
    runtime: str
    artifact: Path
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    settings: Mapping[str, Any]
    parts: Mapping[str, Path] = field(default_factory=dict)
