"""Chooses the rows of the holdout that a version keeps: serving warms up with them, and checks and verifies.

They come from the confirmation split, which every variant of the version has answered.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Array, Arrays, Bools
from tailcut.manifest import Model
from tailcut.models.example_rows import problem_of
from tailcut.models.value_limits import input_specs
from tailcut.registry.padding import lengths
from tailcut.registry.rows import ROWS, KeptRows

FILE = f"{ROWS}.npz"

_SEED = 0
_MOST_TRIED = 512
"""Rows that are compared with the limits of the inputs, beside the shortest and the longest."""


def write(folder: Path, rows: KeptRows | None) -> None:
    """Keep the rows for the registry; nothing where there are none."""
    if rows is not None:
        rows.save(folder / FILE)


def files(folder: Path) -> dict[str, Path]:
    """Return what a version of this build keeps, for ``Registry.add``."""
    path = folder / FILE
    return {ROWS: path} if path.exists() else {}


def choose(holdout: Holdout, answers: Arrays, model: Model, bounds: list[Bound], count: int) -> KeptRows | None:
    """Choose rows at random, of all lengths from the shortest to the longest; the same data give the same rows.

    Args:
        answers: of the source model, by output; of an output that is not judged maybe of the first rows only.
        bounds: that the model proves: serving refuses rows beyond them.
        count: of rows wanted.

    Returns:
        the rows, the shortest first; fewer where not as many are answered with finite numbers, if any are. None where
        none is wanted, or none may be sent.
    """
    places = np.random.default_rng(_SEED).permutation(holdout.rows)
    finite = _finite(holdout.rows, answers)
    places = places[finite[places]] if finite.any() else places
    sizes = _lengths(holdout)
    ends = [places[np.argmin(sizes[places])], places[np.argmax(sizes[places])]]
    specs = input_specs(model, bounds)
    tried = np.array(list(dict.fromkeys([*ends, *places[:_MOST_TRIED]])))
    allowed = np.array([problem_of(holdout.at(np.array([place])), specs) is None for place in tried])
    found = tried[allowed]
    found = found[np.argsort(sizes[found], kind="stable")]
    if not count or not found.size:
        return None
    # Evenly spaced among the lengths; of one length they are the first of the random order.
    chosen = found[np.linspace(0, found.size - 1, min(count, found.size)).round().astype(np.intp)]
    return KeptRows(holdout.at(chosen), holdout.padding)


def _finite(rows: int, answers: Arrays) -> Bools:
    """Tell for each row whether every answer to it is finite, (rows,)."""
    found = np.ones(rows, np.bool_)
    for array in answers.values():
        if array.dtype.kind == "f":
            found[: len(array)] &= np.isfinite(array.reshape(len(array), -1).astype(np.float64)).all(axis=1)
    return found


def _lengths(holdout: Holdout) -> Array:
    """Return how long each row is, (rows,): its tokens, else the characters of its texts."""
    if holdout.padding:
        return lengths(holdout.inputs[holdout.padding])
    found = np.zeros(holdout.rows, np.int64)
    for array in holdout.inputs.values():
        if array.dtype.hasobject:
            characters = [sum(map(len, row.ravel().tolist())) for row in array.reshape(len(array), -1)]
            found += np.array(characters, np.int64)
    return found
