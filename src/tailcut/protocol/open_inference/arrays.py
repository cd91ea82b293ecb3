"""Arrays that a caller in this process gives. No I/O."""

from __future__ import annotations

import numpy as np

from tailcut.common.tensors import DATATYPE_OF, Array
from tailcut.common.validation import InputSpec
from tailcut.errors import BadRequest
from tailcut.pipeline.value_conversion import converted
from tailcut.protocol.open_inference.json_tensors import AnyTensor, check_datatype


def checked_array(array: Array, spec: InputSpec, max_rows: int) -> Array:
    """Return an array as the model takes it: contiguous and in this machine's byte order, else the caller's own.

    Raises:
        BadRequest: it is no array, or its datatype, shape or a value is wrong.
        TooLarge: more than ``max_rows`` rows.
    """
    if not isinstance(array, np.ndarray):
        raise BadRequest(
            f"input {spec.name!r} is a {type(array).__name__}, expected an array",
            hint="pass an array, for example np.asarray(rows, dtype=np.float32)",
        )
    shape = list(array.shape)
    kind = "BYTES" if array.dtype.kind in "OSU" else DATATYPE_OF.get(array.dtype.newbyteorder("="), str(array.dtype))
    check_datatype(AnyTensor(spec.name, shape, kind), spec)
    spec.check_shape(shape)
    spec.check_size(shape, max_rows)
    if spec.datatype == "BYTES":
        return converted(array, spec)
    found: Array = np.ascontiguousarray(array, spec.dtype)
    spec.check_values(found)
    return found
