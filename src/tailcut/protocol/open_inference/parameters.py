"""Parameters of an inference request and of its outputs: read, or refused by name. No I/O.

Source: Open Inference Protocol, REST, "Parameters"; Triton's binary data, classification, sequence and schedule policy
extensions (https://github.com/triton-inference-server/server, docs/protocol).
"""

from __future__ import annotations

from reprlib import repr as shown
from typing import Any

from msgspec import UNSET, UnsetType

from tailcut.errors import BadRequest

Parameters = dict[str, Any]


def wants_raw(output: str, parameters: Parameters | UnsetType, *, default: bool) -> bool:
    """Return whether an output is wanted raw; ``default`` is what the request says of all."""
    if parameters is UNSET or not parameters:
        return default
    if parameters.get("classification"):
        raise no_classification(output)
    return flag(parameters, "binary_data", default=default)


def no_classification(output: str) -> BadRequest:
    """Return the error for an output that asks for its largest values only."""
    return BadRequest(
        f"output {output!r} asks for classification, which is not supported",
        hint="request the output itself and select its largest values",
    )


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
