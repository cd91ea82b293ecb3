"""A reply with one output in JSON. No I/O.

Source: Open Inference Protocol, REST, "Inference Response JSON Object".
"""

from __future__ import annotations

from typing import Any

import msgspec

from tailcut.core.tensors import Array
from tailcut.server.binary import output_datatype


class OneOutputWriter:
    """Writes replies without an id.

    All but the values is the same for the same output and shape, so the last one is remembered.
    """

    def __init__(self, model: str, version: str) -> None:
        self._start = {"model_name": model, "model_version": version}
        self._known: tuple[object, bytes] = None, b""
        self._encode = msgspec.json.Encoder().encode

    def write(self, name: str, array: Array, values: list[Any]) -> bytes:
        """Write one.

        Args:
            values: of the array, flat.
        """
        what = name, array.dtype, array.shape
        known = self._known
        if known[0] != what:
            described = {"name": name, "datatype": output_datatype(array), "shape": array.shape}
            start = self._encode({**self._start, "outputs": [described]}).removesuffix(b"}]}")
            known = self._known = what, start + b',"data":'
        return b"".join((known[1], self._encode(values), b"}]}"))
