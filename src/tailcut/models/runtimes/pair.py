"""The pair runtime: two variants of one model, and the input length from which on the second one runs.

The artifact is a small JSON file that names both by the SHA-256 of their artifacts; the artifacts themselves come in
``Openable.parts``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import msgspec

from tailcut.common.tensors import Arrays
from tailcut.errors import ArtifactError, InferenceError
from tailcut.models.runtimes import open_runtime
from tailcut.models.runtimes.base import Openable, OpenOptions, OpenSpec, Runtime
from tailcut.models.runtimes.bucketed import zeros
from tailcut.models.runtimes.checks import AGAIN


class Part(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the two."""

    variant: str
    runtime: str
    sha256: str
    settings: dict[str, Any] = {}


class PairFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is in the artifact.

    Attributes:
        input: name of the input whose length decides.
        dimension: which of its dimensions is the length.
        at: longest length that ``short`` runs.
    """

    schema: int = 1
    input: str
    dimension: int
    at: int
    short: Part
    long: Part


class PairRuntime:
    """Two opened runtimes; each batch goes to one of them by its length, padding included. Use ``open_runtime``."""

    def __init__(self, variant: Openable, options: OpenOptions) -> None:
        pair = _read(variant)
        self._input, self._dimension, self._at = pair.input, pair.dimension, pair.at
        self._short = _open(variant, pair.short, options.threads)
        try:
            self._long = _open(variant, pair.long, options.threads)
        except BaseException:
            self._short.close()
            raise
        # Whoever warms up with short inputs only would leave the other part cold.
        _warm(self._short, variant, pair.at)
        _warm(self._long, variant, pair.at + 1)

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``."""
        runtime = self._short if inputs[self._input].shape[self._dimension] <= self._at else self._long
        return runtime.run(inputs, outputs)

    def close(self) -> None:
        """Close both."""
        self._short.close()
        self._long.close()


def _read(variant: Openable) -> PairFile:
    what = f"{variant.artifact} (variant {variant.name!r})"
    try:
        pair = msgspec.json.decode(variant.artifact.read_bytes(), type=PairFile)
    except (OSError, msgspec.DecodeError) as error:
        raise ArtifactError(f"cannot read the pair {what}: {error}", hint=AGAIN) from error
    shape = next((tensor.shape for tensor in variant.inputs if tensor.name == pair.input), ())
    if pair.schema != 1 or not 1 <= pair.dimension < len(shape) or shape[pair.dimension] != -1:
        raise ArtifactError(
            f"the pair {what} (schema {pair.schema}) switches by dimension {pair.dimension} of input {pair.input!r}, "
            f"but the manifest gives it the shape {list(shape)}",
            hint=f"that dimension must be free (-1); {AGAIN}",
        )
    return pair


def _open(variant: Openable, part: Part, threads: int) -> Runtime:
    """Open a part with the threads that suit it, no more than ``threads``.

    Raises:
        ArtifactError: its artifact is not there, or is another one than the pair was judged with.
    """
    path = variant.parts.get(part.variant)
    if path is None:
        raise ArtifactError(
            f"variant {variant.name!r} is a pair and needs the artifact of {part.variant!r}, which is missing",
            hint="open it from the registry, which stores both parts",
        )
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != part.sha256:
        raise ArtifactError(
            f"{path}, the part {part.variant!r} of variant {variant.name!r}, has SHA-256 {found}; "
            f"the pair was judged with {part.sha256}",
            hint="run `tailcut build` again",
        )
    name = f"{variant.name} ({part.variant})"
    opened = OpenSpec(name, part.runtime, path, variant.inputs, variant.outputs, part.settings)
    return open_runtime(opened, threads=min(threads, int(part.settings.get("threads", threads))))


def _warm(runtime: Runtime, variant: Openable, length: int) -> None:
    """Run one row of zeros: a runtime's first batch of a length takes many times longer than the next."""
    # Zeros may be no input that the model takes: then its first request warms it up.
    with suppress(InferenceError):
        runtime.run(zeros(variant.inputs, 1, length), [tensor.name for tensor in variant.outputs])
