"""A reply in JSON alone. No I/O.

Source: Open Inference Protocol, REST, "Inference Response JSON Object".
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec
from msgspec import UNSET, UnsetType

from tailcut.common.tensors import Array, Arrays
from tailcut.common.validation import not_finite
from tailcut.protocol.open_inference.binary import output_datatype
from tailcut.protocol.open_inference.json_numbers import NULL, Way, way_of, with_infinity

_Known = tuple[object, bytes, Way, bool, bool]
"""An output's datatype and shape, its JSON as far as its values, what writes those, whether it is a float, and whether
all of its values must be finite."""


class JsonWriter:
    """Writes replies.

    All but the values of an output is the same for the same shape, so the last is remembered.

    Args:
        nan_outputs: see ``InferenceCodec``.
    """

    def __init__(self, model: str, version: str, nan_outputs: Collection[str]) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._start = self._encode({"model_name": model, "model_version": version}).removesuffix(b"}")
        self._nan_outputs = nan_outputs
        self._known: dict[str, _Known] = {}

    def write(self, names: Sequence[str], outputs: Arrays, id: str | UnsetType) -> bytes:
        """Write one.

        Raises:
            InferenceError: an output holds NaN or infinity and must not, or bytes that are no text, or has a datatype
                that the protocol has not.
        """
        start = self._start if id is UNSET else b"".join((self._start, b',"id":', self._encode(id)))
        if len(names) == 1:
            return b"".join((start, b',"outputs":[', *self._tensor(names[0], outputs[names[0]]), b"}]}"))
        parts = [start, b',"outputs":[']
        for name in names:
            parts += self._tensor(name, outputs[name])
            parts.append(b"},")
        parts[-1] = b"}]}"
        return b"".join(parts)

    def values(self, name: str, array: Array) -> bytes:
        """Write an output's values flat, in row-major order; NaN as null, infinity as 1e999, bytes as text.

        Raises:
            InferenceError: see ``write``.
        """
        return self._tensor(name, array)[1]

    def _tensor(self, name: str, array: Array) -> tuple[bytes, bytes]:
        """Return an output as far as its values, and those."""
        what = array.dtype, array.shape
        known = self._known.get(name)
        if known is None or known[0] != what:
            known = self._known[name] = what, self._described(name, array), *self._way(name, array)
        _, described, way, is_float, is_finite = known
        values = way(array)
        if is_float and NULL in values:
            if is_finite:
                raise not_finite(name)
            values = with_infinity(values, array)
        return described, values

    def _described(self, name: str, array: Array) -> bytes:
        tensor = {"name": name, "datatype": output_datatype(array), "shape": array.shape}
        return self._encode(tensor).removesuffix(b"}") + b',"data":'

    def _way(self, name: str, array: Array) -> tuple[Way, bool, bool]:
        return way_of(array.dtype, array.size), array.dtype.kind == "f", name not in self._nan_outputs
