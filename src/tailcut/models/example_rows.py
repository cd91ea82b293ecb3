"""Inputs to run a variant with before requests come: rows of the holdout that its version keeps, else invented ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from tailcut.common.tensors import DATATYPE_OF, Array, Arrays
from tailcut.common.validation import InputSpec, check_names
from tailcut.errors import ArtifactError, BadRequest
from tailcut.manifest import Manifest
from tailcut.models.value_limits import input_specs
from tailcut.registry import Registry, Variant
from tailcut.registry.rows import ROWS, KeptRows, kept_rows

log = logging.getLogger("tailcut.server")

_FREE_DIMENSION = 8
"""Size that invented rows give to a free dimension that is not the batch."""


class Examples:
    """Batches to warm up with, to measure and to check with.

    Args:
        specs: what each input must be.
        rows: of the holdout; None: one row is invented. It holds zeros and empty texts, or what the limits of the
            inputs allow where that is something else: indexes into embeddings are valid then, encoders know the
            categories, and kernels do the same work.

    Attributes:
        are_real: whether the rows are those of the holdout. The model may refuse invented ones, and be right.
    """

    def __init__(self, specs: Sequence[InputSpec], rows: KeptRows | None = None) -> None:
        self.are_real = rows is not None
        self._rows = rows if rows is not None else KeptRows({spec.name: _invented(spec) for spec in specs})
        alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for place in range(self._rows.count):
            shapes = tuple(array.shape for array in self._rows.at([place]).values())
            alike.setdefault(shapes, []).append(place)
        self._alike = [alike[shapes] for shapes in sorted(alike, key=lambda shapes: sum(map(prod, shapes)))]

    def batch(self, rows: int, start: int = 0) -> Arrays:
        """Return a batch of the shortest rows, from number ``start`` on; where there are fewer they are repeated.

        All of them have one shape: only requests of one shape share a batch.
        """
        shortest = self._alike[0]
        return self._rows.at([shortest[(start + number) % len(shortest)] for number in range(rows)])

    def each(self) -> Iterator[Arrays]:
        """Yield every row by itself."""
        for place in range(self._rows.count):
            yield self._rows.at([place])

    def longer(self) -> Iterator[Arrays]:
        """Yield one row of each other shape."""
        for places in self._alike[1:]:
            yield self._rows.at(places[:1])


def examples_of(manifest: Manifest, variant: Variant, registry: Registry | None = None) -> Examples:
    """Return the examples of a variant: kept rows that its inputs' limits allow. Reads the registry.

    Rows that cannot be used are no reason not to serve: the log says why invented ones take their place.

    Args:
        registry: that holds the rows; the manifest's where None.
    """
    specs = input_specs(manifest.deployment.model, variant.bounds)
    if ROWS not in variant.files:
        return Examples(specs)
    try:
        rows = kept_rows(registry or Registry.of(manifest), variant)
        if rows is not None:
            return Examples(specs, _allowed(rows, specs))
    except (ArtifactError, BadRequest) as error:
        log.warning(
            "version %s is warmed up with an invented row instead of its holdout rows: %s",
            variant.version,
            error.message,
        )
    return Examples(specs)


def _allowed(rows: KeptRows, specs: Sequence[InputSpec]) -> KeptRows:
    """Leave out rows that no request may hold, because the manifest has changed since the build.

    Raises:
        BadRequest: none is left; says what is wrong with the first.
    """
    problems = [problem_of(rows.at([place]), specs) for place in range(rows.count)]
    kept = [place for place, problem in enumerate(problems) if problem is None]
    if not kept:
        raise problems[0] or BadRequest("it keeps no rows")
    return KeptRows({name: array[kept] for name, array in rows.inputs.items()}, rows.padding)


def problem_of(inputs: Arrays, specs: Sequence[InputSpec]) -> BadRequest | None:
    """Say why a request with these inputs would be refused; None where it would not."""
    try:
        check_names(list(inputs), [spec.name for spec in specs], "input")
        for spec in specs:
            array = inputs[spec.name]
            if array.dtype != spec.dtype:
                held = DATATYPE_OF.get(array.dtype, str(array.dtype))
                raise BadRequest(f"input {spec.name!r} is {held}, the manifest says {spec.datatype}")
            spec.check_shape(list(array.shape))
            spec.check_values(array)
            if spec.limits is not None:
                spec.limits.check(array)
    except BadRequest as error:
        return error
    return None


def _invented(spec: InputSpec) -> Array:
    free = _FREE_DIMENSION if spec.limits is None else min(_FREE_DIMENSION, spec.limits.longest)
    shape = (1, *(free if size == -1 else size for size in spec.tail))
    found: Array = np.full(shape, "", object) if spec.datatype == "BYTES" else np.zeros(shape, spec.dtype)
    if spec.limits is not None:
        spec.limits.settle(found)
    return found
