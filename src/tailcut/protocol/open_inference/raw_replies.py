"""A reply whose outputs are all raw. No I/O.

Source: Triton's binary tensor data extension (https://github.com/triton-inference-server/server,
docs/protocol/extension_binary_data.md).
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tailcut.common.tensors import Arrays
from tailcut.protocol.http import Headers
from tailcut.protocol.open_inference.binary import output_datatype

BINARY_HEADER = "inference-header-content-length"
_BINARY = ("content-type", "application/octet-stream")


class BinaryReply:
    """A body of JSON and raw tensors, with the headers that say so."""

    __slots__ = ("body", "headers")

    def __init__(self, header: bytes, raw: Sequence[bytes], headers: Headers | None = None) -> None:
        self.body = b"".join((header, *raw))
        self.headers = headers or [_BINARY, (BINARY_HEADER, str(len(header)))]


class RawWriter:
    """Writes replies without an id.

    Its JSON is the same for the same shapes, so the last one is remembered.
    """

    def __init__(self, model: str, version: str) -> None:
        self._start = {"model_name": model, "model_version": version}
        self._known: tuple[object, bytes, Headers] = None, b"", []

    def write(self, names: Sequence[str], outputs: Arrays, raw: Sequence[bytes]) -> BinaryReply:
        """Write one.

        Args:
            raw: the bytes of each output, in the order of ``names``.
        """
        if len(names) == 1:
            array = outputs[names[0]]
            key: object = (names[0], array.dtype, array.shape, len(raw[0]))
        else:
            key = [
                (name, outputs[name].dtype, outputs[name].shape, len(each))
                for name, each in zip(names, raw, strict=True)
            ]
        known = self._known
        if known[0] != key:
            described = [
                {
                    "name": name,
                    "datatype": output_datatype(outputs[name]),
                    "shape": outputs[name].shape,
                    "parameters": {"binary_data_size": len(each)},
                }
                for name, each in zip(names, raw, strict=True)
            ]
            header = msgspec.json.encode({**self._start, "outputs": described})
            known = self._known = key, header, [_BINARY, (BINARY_HEADER, str(len(header)))]
        return BinaryReply(known[1], raw, known[2])
