"""One request in the form that each server reads, and whether an answer is the model's."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

JSON = {"content-type": "application/json"}
_LENGTH = "inference-header-content-length"


@dataclass(frozen=True)
class Shape:
    """What a request carries: one row of numbers under the first input's name; other inputs are ones.

    Args:
        inputs: (name, datatype) of each input.
        row: [width]
    """

    inputs: Sequence[tuple[str, str]]
    row: npt.NDArray[np.generic]


def body_of(form: str, shape: Shape) -> tuple[bytes, dict[str, str]]:
    """Return a request's body and headers in one of the forms of ``catalog.Peer``."""
    values = shape.row.tolist()
    if form == "row":
        return json.dumps({"x": values}).encode(), JSON
    if form == "rows":
        return json.dumps({"x": [values]}).encode(), JSON
    arrays = [shape.row, *(np.ones_like(shape.row) for _ in shape.inputs[1:])]
    tensors: list[dict[str, Any]] = [
        {"name": name, "shape": [1, len(values)], "datatype": datatype} for name, datatype in shape.inputs
    ]
    if form == "oip":
        filled = [{**tensor, "data": array.tolist()} for tensor, array in zip(tensors, arrays, strict=True)]
        return json.dumps({"inputs": filled}, separators=(",", ":")).encode(), JSON
    for tensor, array in zip(tensors, arrays, strict=True):
        tensor["parameters"] = {"binary_data_size": array.nbytes}
    request = {"inputs": tensors, "parameters": {"binary_data_output": True}}
    head = json.dumps(request, separators=(",", ":")).encode()
    raw = b"".join(array.tobytes() for array in arrays)
    return head + raw, {"content-type": "application/octet-stream", _LENGTH: str(len(head))}


def first_number(answer: bytes, form: str) -> float:
    """Return the first number of the output in an answer, whatever its form; NaN where there is none."""
    if form == "binary":
        try:
            _, at = json.JSONDecoder().raw_decode(answer.decode("latin-1"))
        except ValueError:
            return float("nan")
        return float(np.frombuffer(answer[at : at + 4], "<f4")[0]) if len(answer) >= at + 4 else float("nan")
    text = answer.decode(errors="replace")
    found = re.search(r'(?:"data"|"y")\s*:\s*\[+\s*(-?[0-9.eE+-]+)|^\s*\[+\s*(-?[0-9.eE+-]+)', text)
    return float(found.group(1) or found.group(2)) if found else float("nan")
