"""Runs rows of the holdout through a runtime, and finds the ones that it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from reprlib import Repr

import numpy as np

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import BuildError, InferenceError, OutputsError
from tailcut.models.runtimes import Runtime

_shown = Repr()
_shown.maxlist = 8


def run(runtime: Runtime, holdout: Holdout, places: Array, outputs: Sequence[str]) -> Arrays:
    """Run the rows at ``places``, (wanted,) of row numbers, as one batch.

    Raises:
        BuildError: the runtime refuses it; names a row that it refuses on its own too, with its values.
    """
    try:
        return runtime.run(holdout.at(places), outputs)
    except OutputsError as error:
        raise BuildError(error.message, hint=error.hint) from error
    except InferenceError as error:
        raise _refused(runtime, holdout, places, outputs, error) from error


def _refused(
    runtime: Runtime, holdout: Holdout, places: Array, outputs: Sequence[str], error: InferenceError
) -> BuildError:
    alone = [(int(place), said) for place in places if (said := _alone(runtime, holdout, int(place), outputs))]
    if not alone:
        return BuildError(
            f"{error.message}; each of these {len(places)} rows by itself works",
            hint="the model must accept any number of rows: derive shapes from the inputs, not from one example",
        )
    place, said = alone[0]
    many = f"row {holdout.number(place)} of the holdout" if len(alone) < len(places) else "every row of the holdout"
    others = f" ({len(alone)} of {len(places)} rows tried are refused)" if 1 < len(alone) < len(places) else ""
    values = {name: array[0] for name, array in holdout.at(np.array([place])).items()}
    return BuildError(
        f"{many} is refused{others}: {said}; its values are {_text(values)}",
        hint="fix the model, or give it rows like its training rows: check order, categories and gaps",
    )


def _alone(runtime: Runtime, holdout: Holdout, place: int, outputs: Sequence[str]) -> str:
    """Say why a row is refused where it is alone; empty where it works."""
    try:
        runtime.run(holdout.at(np.array([place])), outputs)
    except InferenceError as error:
        return error.message
    return ""


def _text(values: Arrays) -> str:
    return ", ".join(f"{name} {_shown.repr(np.asarray(value).tolist())}" for name, value in values.items())
