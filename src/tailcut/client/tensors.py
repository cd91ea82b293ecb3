"""Arrays <-> requests and replies of Open Inference Protocol v2 with binary tensors. No I/O.

Source: Triton's binary tensor data extension (https://github.com/triton-inference-server/server,
docs/protocol/extension_binary_data.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import msgspec
import numpy as np

from tailcut.common import json_values
from tailcut.common.tensors import NUMPY_OF, Array, Arrays, datatype_of, element_bytes, elements_of, number_bytes
from tailcut.errors import BadRequest

BINARY_HEADER = "inference-header-content-length"
_ANY = msgspec.json.Decoder()


def encode(inputs: Mapping[str, Array], outputs: Sequence[str] | None) -> tuple[dict[str, str], bytes]:
    """Return headers and body of an inference request.

    Args:
        inputs: arrays by name, first dimension the rows.
        outputs: names wanted; None for all.

    Raises:
        BadRequest: an input is no array, or of a dtype that the protocol has no datatype for.
    """
    described, raw = [], []
    for name, array in inputs.items():
        datatype, data = _raw(name, array)
        raw.append(data)
        parameters = {"binary_data_size": len(data)}
        described.append({"name": name, "shape": array.shape, "datatype": datatype, "parameters": parameters})
    request: dict[str, Any] = {"inputs": described, "parameters": {"binary_data_output": True}}
    if outputs is not None:
        request["outputs"] = [{"name": name} for name in outputs]
    header = msgspec.json.encode(request)
    headers = {"content-type": "application/octet-stream", BINARY_HEADER: str(len(header))}
    return headers, b"".join([header, *raw])


def decode(headers: Mapping[str, str], body: bytes) -> Arrays:
    """Return the outputs of an inference reply, each an array of its own that may be written to.

    Raises:
        ValueError: the reply is none of this protocol.
    """
    length = headers.get(BINARY_HEADER)
    at = len(body) if length is None else int(length)
    reply = json_values.decode(_ANY, body[:at])
    found: Arrays = {}
    for tensor in reply["outputs"]:
        dtype, shape = NUMPY_OF[tensor["datatype"]], tensor["shape"]
        size = tensor.get("parameters", {}).get("binary_data_size")
        if size is None:
            found[tensor["name"]] = np.array(tensor["data"], dtype).reshape(shape)
            continue
        data, at = body[at : at + size], at + size
        if tensor["datatype"] == "BYTES":
            elements = elements_of(data, prod(shape), f"output {tensor['name']!r}")
            texts: Array = np.empty(len(elements), object)
            texts[:] = list(map(_text, elements))
            found[tensor["name"]] = texts.reshape(shape)
        else:
            found[tensor["name"]] = np.frombuffer(data, dtype.newbyteorder("<")).astype(dtype).reshape(shape)
    return found


def _raw(name: str, array: Array) -> tuple[str, bytes]:
    if not isinstance(array, np.ndarray) or not array.ndim:
        raise BadRequest(
            f"input {name!r} is a {type(array).__name__}, expected an array with rows as its first dimension",
            hint="pass an array, for example np.asarray(rows, dtype=np.float32)",
        )
    datatype = datatype_of(array)
    if datatype is None:
        raise BadRequest(
            f"input {name!r} is an array of {array.dtype}, for which the protocol has no datatype",
            hint="convert it with array.astype(...) to the datatype in metadata()",
        )
    if datatype == "BYTES":
        return datatype, element_bytes([_element(name, value) for value in array.ravel().tolist()])
    return datatype, number_bytes(array)


def _element(name: str, value: object) -> bytes:
    if isinstance(value, str):
        try:
            value = value.encode()
        except UnicodeEncodeError as error:
            raise BadRequest(
                f"input {name!r} holds text that is not valid Unicode: {error.reason}",
                hint="send text without surrogates",
            ) from error
    if not isinstance(value, bytes):
        raise BadRequest(
            f"input {name!r} holds a {type(value).__name__}", hint="put only text or bytes into an array of objects"
        )
    return value


def _text(value: bytes) -> str | bytes:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value
