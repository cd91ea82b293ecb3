"""The limits of inputs that a source model proves, kept between the steps of a build, and trials at their edges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tailcut.builder import bounds
from tailcut.builder.bounds import FoundBounds
from tailcut.builder.bounds.trials import Call
from tailcut.builder.holdouts import arrays
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.recipes.base import Precision
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Array, Arrays
from tailcut.manifest import Model
from tailcut.registry.evidence import EdgeFinding

__all__ = ["FoundBounds", "answer_edges", "edges", "find", "read", "refusal", "write"]

FILE = "bounds.json"
EDGES_FILE = "edges.npz"
_ROWS = 3
_SHOWN = 3


def find(model: Any, call: Call, selection: Holdout, section: Model, path: Path | None) -> FoundBounds:
    """Find the limits of a source model.

    Args:
        model: what ``model.source`` gave; None where it is a path.
        call: runs it: input arrays by name -> output arrays by name.
        path: of an .onnx file or a Hugging Face folder.
    """
    found = bounds.of_source(
        model, call, section.inputs, selection.at(np.array(_telling(selection, section))), path=path
    )
    # The source answers every row of the holdout: what one of them is beyond is no limit.
    kept = [each for each in found.bounds if not _is_beyond(each, selection.inputs[each.input])]
    return msgspec.structs.replace(found, bounds=kept)


def _telling(selection: Holdout, section: Model) -> list[int]:
    """Choose rows to try: the first, and of each input of integers the one with the smallest value below zero."""
    found = list(range(min(_ROWS, selection.rows)))
    for tensor in section.inputs:
        array = selection.inputs[tensor.name]
        if array.dtype.kind == "i" and array.size and array.min() < 0:
            found.append(int(array.reshape(len(array), -1).min(axis=1).argmin()))
    return list(dict.fromkeys(found))


def _is_beyond(bound: Bound, array: Array) -> bool:
    """Tell whether a value of the holdout is outside of a limit."""
    if array.dtype.kind not in "iuf" or (bound.min is None and bound.max is None):
        return False
    flat: Any = array.reshape(len(array), -1)
    flat = flat[:, list(bound.columns)] if bound.columns else flat
    below = bound.min is not None and bool((flat < bound.min).any())
    return below or (bound.max is not None and bool((flat > bound.max).any()))


def write(folder: Path, found: FoundBounds) -> None:
    """Keep the limits for the build's other steps."""
    (folder / FILE).write_bytes(msgspec.json.encode(found))


def read(folder: Path) -> FoundBounds:
    """Read what ``write`` kept; no limits where nothing was."""
    path = folder / FILE
    return msgspec.json.decode(path.read_bytes(), type=FoundBounds) if path.exists() else FoundBounds()


def answer_edges(folder: Path, source: Call, selection: Holdout, section: Model) -> None:
    """Keep what the source answers at the edges of the inputs, once: it is the same for every variant."""
    if (folder / EDGES_FILE).exists():
        return
    found: Arrays = {}
    expected = _edges(folder, source, selection, section).expected
    for place, answer in enumerate(expected):
        # An error is text of its own, an answer one array per output; a place that was not tried has neither.
        arrays_of = {"": np.array(answer)} if isinstance(answer, str) else answer or {}
        found |= {f"{place}/{name}": array for name, array in arrays_of.items()}
    arrays.save(folder / EDGES_FILE, {"count": np.array(len(expected)), **found})


def _edges(folder: Path, source: Call, selection: Holdout, section: Model) -> bounds.Edges:
    rows, found = selection.take(min(_ROWS, selection.rows)), read(folder)
    kept = _kept_answers(folder / EDGES_FILE)
    return bounds.Edges(source, section.inputs, section.outputs, rows, found.bounds, found.sizes, kept)


def _kept_answers(path: Path) -> list[Arrays | str | None] | None:
    if not path.exists():
        return None
    with np.load(path, allow_pickle=False) as file:
        answers: list[Arrays | str | None] = [None] * int(file["count"])
        for key in set(file.files) - {"count"}:
            place, _, name = key.partition("/")
            if not name:
                answers[int(place)] = str(file[key])
                continue
            known = answers[int(place)]
            answers[int(place)] = {**(known if isinstance(known, dict) else {}), name: file[key]}
    return answers


def edges(
    folder: Path, precision: Precision, source: Call, variant: Call, selection: Holdout, section: Model
) -> list[EdgeFinding]:
    """Return where a variant does something else than the source at the edges of the inputs.

    Numbers are compared of portable variants, and of those whose runtime chooses the precision for integers only, which
    no precision rounds; those of others are the quality gate's.
    """
    tried = _edges(folder, source, selection, section)
    whole = {tensor.name for tensor in section.inputs if "INT" in tensor.datatype}
    return [
        EdgeFinding(kind=finding.kind, text=finding.text)
        for finding in tried.compare(variant, numbers=precision in ("portable", "runtime"))
        if finding.kind != "differs" or precision == "portable" or finding.input in whole
    ]


def refusal(findings: Sequence[EdgeFinding]) -> str:
    """Say why trials at the edges refuse a variant; empty where they do not.

    A value that only the variant refuses, or that was not tried, is no wrong answer: it stands in the evidence.
    """
    wrong = [each.text for each in findings if each.kind not in {"raises", "untried"}]
    if not wrong:
        return ""
    more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return (
        f"{'; '.join(wrong[:_SHOWN])}{more}. Declare the values that the model takes in model.inputs (min, max, "
        "values, max_length)"
    )
