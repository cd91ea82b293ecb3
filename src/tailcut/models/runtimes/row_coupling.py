"""Operators of an ONNX file that make the rows of a batch influence each other.

Dynamic quantisation takes one scale and one zero point for a whole tensor (onnxruntime, "Quantize ONNX models"), so
that one extreme row makes all others coarse. The file is searched for the names: serving has no onnx package.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

OPERATORS = ("DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM")
"""Those of ONNX and of onnxruntime 1.31 that quantise activations while the model runs.

``MatMulNBits`` does so too where its accuracy level is 4, but with a scale for each block of a row.
"""

_OP_TYPE = 0x22
"""Tag of the field ``op_type`` (4, length-delimited) in ONNX's NodeProto: names and documentation have other tags."""

_MARKS = {name: bytes((_OP_TYPE, len(name))) + name.encode() for name in OPERATORS}
_LONGEST = max(map(len, _MARKS.values()))
_CHUNK_BYTES = 1 << 22


def coupling_operators(paths: Iterable[Path]) -> tuple[str, ...]:
    """Return the names of the operators in ``paths`` that couple rows; empty where there are none.

    Files of other formats may be among them: they hold no such marks. Bytes of a tensor that look like one cost speed,
    and never an answer.

    Raises:
        OSError: a file cannot be read.
    """
    found: set[str] = set()
    for path in paths:
        with path.open("rb") as file:
            end = b""
            while chunk := file.read(_CHUNK_BYTES):
                block = end + chunk
                found.update(name for name, mark in _MARKS.items() if mark in block)
                end = block[-_LONGEST:]
    return tuple(sorted(found))
