"""Brings a holdout's inputs to the manifest's datatypes, by the rule that also holds for ``model.preprocess``."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.common.scalars import is_missing
from tailcut.common.tensors import Array
from tailcut.common.texts import MISSING_TEXT
from tailcut.common.validation import InputSpec
from tailcut.errors import BuildError, TailcutError
from tailcut.manifest import Model
from tailcut.models.value_limits import input_specs
from tailcut.pipeline.value_conversion import converted


def fitted(holdout: Holdout, model: Model) -> Holdout:
    """Convert every input to its datatype, then compare all of them with the manifest.

    Returns:
        the holdout with, for example, float64 made float32 (``Holdout.raw`` keeps what was given). A number that the
        datatype cannot hold at all is refused.

    Raises:
        BuildError: text, fractions or overflows that the datatype does not hold; and see ``Holdout.check``.
    """
    specs = {spec.name: spec for spec in input_specs(model)}
    arrays = {name: _fitted(array, specs.get(name)) for name, array in holdout.inputs.items()}
    rounded = {
        name: array
        for name, array in holdout.inputs.items()
        if array.dtype.kind in "iuf" and array.dtype != arrays[name].dtype
    }
    found = replace(holdout, inputs=arrays, raw=rounded)
    found.check(model.inputs)
    return found


def _fitted(array: Array, spec: InputSpec | None) -> Array:
    if spec is None:
        return array
    if spec.datatype == "BYTES":
        return _texts(array, spec)
    return array if array.dtype == spec.dtype else _converted(array, spec)


def _texts(array: Array, spec: InputSpec) -> Array:
    """Return an array of text objects; a missing value is the empty text where the input allows it."""
    values = array.ravel().tolist()
    missing = [is_missing(value) for value in values]
    if any(missing) and not spec.allow_nan:
        raise BuildError(
            f"the holdout's input {spec.name!r} has no text in row {missing.index(True)} ({sum(missing)} such rows)",
            hint='set allow_nan = true on that tensor: a missing text is then sent as "" (in JSON null)',
        )
    texts = [MISSING_TEXT if gone else value for value, gone in zip(values, missing, strict=True)]
    if any(missing) and texts.count(MISSING_TEXT) > sum(missing):
        raise BuildError(
            f"the holdout's input {spec.name!r} has both missing texts and empty ones, which requests cannot "
            "distinguish",
            hint="replace empty texts by a separate word, in training and in requests",
        )
    found = np.empty(len(values), np.object_)
    found[:] = texts
    return _converted(found.reshape(array.shape), spec)


def _converted(array: Array, spec: InputSpec) -> Array:
    try:
        return converted(array, spec)
    except (TailcutError, ArithmeticError, ValueError, TypeError) as error:
        said = error.message if isinstance(error, TailcutError) else f"input {spec.name!r}: {error}"
        raise BuildError(
            f"the holdout's {said} (it is {array.dtype} {list(array.shape)})",
            hint="give numbers that fit the datatype, as in production, or correct model.inputs",
        ) from error
