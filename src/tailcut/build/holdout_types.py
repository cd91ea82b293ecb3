"""Brings a holdout's inputs to the manifest's datatypes, by the rule that also holds for ``model.preprocess``."""

from __future__ import annotations

from dataclasses import replace

from tailcut.build.holdout import Holdout
from tailcut.core.tensors import Array
from tailcut.core.validation import InputSpec
from tailcut.engine.assembly import converted
from tailcut.engine.limits import input_specs
from tailcut.errors import BuildError, TailcutError
from tailcut.manifest import Model


def fitted(holdout: Holdout, model: Model) -> Holdout:
    """Convert every input to its datatype, then hold all of them against the manifest.

    Returns:
        the holdout with, for example, float64 made float32. Where a number would not survive it is refused.

    Raises:
        BuildError: text, fractions or overflows that the datatype does not hold; and see ``Holdout.check``.
    """
    specs = {spec.name: spec for spec in input_specs(model)}
    arrays = {
        name: array if name not in specs or array.dtype == specs[name].dtype else _converted(array, specs[name])
        for name, array in holdout.inputs.items()
    }
    found = replace(holdout, inputs=arrays)
    found.check(model.inputs)
    return found


def _converted(array: Array, spec: InputSpec) -> Array:
    try:
        return converted(array, spec)
    except (TailcutError, ArithmeticError, ValueError, TypeError) as error:
        said = error.message if isinstance(error, TailcutError) else f"input {spec.name!r}: {error}"
        raise BuildError(
            f"the holdout's {said} (it is {array.dtype} {list(array.shape)})",
            hint="give numbers that the datatype holds, as production does, or correct model.inputs",
        ) from error
