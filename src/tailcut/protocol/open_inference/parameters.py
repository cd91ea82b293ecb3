"""Parameters of an inference request, its inputs and its outputs: read, or refused by name. No I/O.

Source: Open Inference Protocol, REST, "Parameters"; Triton's binary data, classification, sequence and schedule policy
extensions (https://github.com/triton-inference-server/server, docs/protocol).
"""

from __future__ import annotations

from reprlib import repr as shown

from msgspec import UNSET, UnsetType

from tailcut.errors import BadRequest
from tailcut.protocol.open_inference.json_tensors import AnyTensor, Parameters


def binary_size(tensor: AnyTensor) -> int:
    """Return the bytes of a tensor that is sent raw; -1 where it is in JSON."""
    size = tensor.parameters.get("binary_data_size") if tensor.parameters is not UNSET else None
    if size is None:
        return -1
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise BadRequest(
            f"parameter binary_data_size of input {tensor.name!r} is {shown(size)}, expected a number of bytes",
            hint="send the tensor's length in bytes",
        )
    if tensor.data is not UNSET:
        raise BadRequest(f"input {tensor.name!r} has both data and binary_data_size", hint="send one of the two")
    return size


def wants_raw(output: str, parameters: Parameters | UnsetType, *, default: bool) -> bool:
    """Return whether an output is wanted raw; ``default`` is what the request says of all."""
    if parameters is UNSET or not parameters:
        return default
    if parameters.get("classification"):
        raise BadRequest(
            f"output {output!r} asks for classification, which is not supported",
            hint="request the output itself and select its largest values",
        )
    return flag(parameters, "binary_data", default=default)


def flag(parameters: Parameters, name: str, *, default: bool) -> bool:
    """Return a parameter that is true or false."""
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise BadRequest(f"parameter {name} is {shown(value)}", hint="send true or false")
    return value


def refuse_sequences(parameters: Parameters) -> None:
    """Refuse what is part of a sequence that the server would have to remember."""
    if parameters.get("sequence_id"):
        raise BadRequest(
            "parameter sequence_id is set, but models here keep no state between requests",
            hint="leave sequence_id out, and send the whole input in one request",
        )


def timeout_ns(parameters: Parameters) -> int:
    """Return the client's timeout in nanoseconds; 0 where it sent none."""
    timeout = parameters.get("timeout", 0)
    if isinstance(timeout, bool) or not isinstance(timeout, int) or timeout < 0:
        raise BadRequest(
            f"parameter timeout is {shown(timeout)}, expected a whole number of microseconds, at least 0",
            hint="0 or nothing means the server's own timeout",
        )
    return timeout * 1000


def priority(parameters: Parameters) -> int:
    """Return the client's priority: 1 runs first, larger ones later; 0 where it sent none."""
    value = parameters.get("priority", 0)
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise BadRequest(
            f"parameter priority is {shown(value)}, expected a whole number, at least 0",
            hint="1 runs first; 0 or nothing means the default, between 1 and 3",
        )
    return value
