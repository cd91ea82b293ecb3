"""The reference of a version: sketches of the inputs, and of the outputs of each variant, as bytes and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import numpy as np

from tailcut.common.tensors import Array
from tailcut.errors import ArtifactError
from tailcut.manifest import TensorSpec
from tailcut.observe.drift.sketch import Role, Sketch, effective_rows, sketch

MOST = 256
"""Columns of one tensor that are watched one by one."""


class Column(NamedTuple):
    """A column of a batch: (rows,) of values."""

    role: Role
    name: str
    values: Array


def columns_of(role: Role, spec: TensorSpec, array: Array) -> list[Column]:
    """Return the columns of one tensor of a batch.

    Args:
        role: whether it goes into the model or comes out.
        spec: of the tensor.
        array: (rows, ...).
    """
    width = int(np.prod(spec.shape[1:])) if len(spec.shape) > 1 else 1
    flat = array.reshape(len(array), -1)
    if -1 in spec.shape[1:]:
        if role == "output" or flat.dtype.kind not in "iu":
            return []
        # As a float: a length is a number, however few different ones there are.
        return [Column(role, f"{spec.name}.nonzero", np.count_nonzero(flat, axis=1).astype(np.float64))]
    if width > MOST:
        return _summed_up(role, spec.name, flat)
    return [Column(role, name, flat[:, place]) for place, name in enumerate(names_of(spec, flat.shape[1]))]


def names_of(spec: TensorSpec, width: int) -> Sequence[str]:
    """Name the columns of a tensor: as the manifest does, else by their place."""
    if width == 1:
        return spec.columns if len(spec.columns) == 1 else (spec.name,)
    return spec.columns if len(spec.columns) == width else [f"{spec.name}[{place}]" for place in range(width)]


def _summed_up(role: Role, name: str, flat: Array) -> list[Column]:
    if flat.dtype.hasobject:
        return []
    wide = flat.astype(np.float64)
    return [Column(role, f"{name}.mean", wide.mean(1)), Column(role, f"{name}.std", wide.std(1))]


NAME = "drift"
"""Name of the file beside a version's artifacts; see ``Registry.file``."""

FORM = 1


class Reference(msgspec.Struct, frozen=True, kw_only=True):
    """What a version's inputs and outputs were like on the holdout.

    Attributes:
        form: number of the form; a reader refuses a later one.
        inputs: sketches of input columns.
        outputs: variant -> sketches of its output columns.
    """

    form: int = FORM
    inputs: tuple[Sketch, ...]
    outputs: dict[str, tuple[Sketch, ...]] = {}

    def of(self, variant: str) -> tuple[Sketch, ...]:
        """Return the sketches of inputs and of one variant's outputs."""
        return (*self.inputs, *self.outputs.get(variant, ()))


def sketches_of(
    role: Role, specs: Sequence[TensorSpec], arrays: Mapping[str, Array], groups: Array | None = None
) -> tuple[Sketch, ...]:
    """Sketch every column of tensors.

    Args:
        role: whether they go into the model or come out.
        specs: of the tensors; those without an array are left out.
        arrays: name -> (rows, ...).
        groups: (rows,) of what rows belong to that hang together; None where each row stands for itself.
    """
    found = []
    for spec in specs:
        if spec.name not in arrays:
            continue
        array = arrays[spec.name]
        worth = effective_rows(None if groups is None else groups[: len(array)], len(array))
        found += [sketch(role, each.name, each.values, worth) for each in columns_of(role, spec, array)]
    return tuple(found)


def encode(reference: Reference) -> bytes:
    """Write a reference as JSON; the same one gives the same bytes."""
    return msgspec.json.encode(reference)


def decode(content: bytes) -> Reference:
    """Read what ``encode`` wrote.

    Raises:
        ArtifactError: it is something else, or of a later form.
    """
    hint = "run `tailcut build` again, which sketches the holdout anew"
    try:
        found = msgspec.json.decode(content, type=Reference)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ArtifactError(f"the drift reference cannot be read: {error}", hint=hint) from error
    if found.form > FORM:
        raise ArtifactError(
            f"the drift reference has form {found.form}, but this tailcut reads up to {FORM}",
            hint=f"upgrade tailcut, or {hint}",
        )
    return found
