"""Tensors read from bytes, as shared memory and Redis hold them: raw numbers, or a MessagePack list of texts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from tailcut.common.tensors import NUMPY_OF, Array


def array_of(datatype: str, shape: Sequence[int], data: bytes | memoryview) -> Array:
    """Return the tensor that ``data`` holds; numbers share its memory.

    Raises:
        KeyError, ValueError, msgspec.MsgspecError: it holds another one, or none.
    """
    if datatype != "BYTES":
        return np.frombuffer(data, NUMPY_OF[datatype]).reshape(shape)
    elements = msgspec.msgpack.decode(data, type=list[Any])
    if not all([type(element) in (str, bytes) for element in elements]):
        raise ValueError("a BYTES tensor holds an element that is neither text nor bytes")
    return objects(elements, shape)


def objects(elements: Sequence[Any], shape: Sequence[int]) -> Array:
    """Return an array of Python's objects; NumPy's own constructors would look into them."""
    found: Array = np.empty(len(elements), object)
    found[:] = elements
    return found.reshape(shape)
