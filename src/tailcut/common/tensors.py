"""Datatypes of the Open Inference Protocol v2 and their NumPy counterparts.

Source: Open Inference Protocol, "Tensor Data Types"
(https://github.com/open-inference/open-inference-protocol, specification/protocol/inference_rest.md).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.generic]
Arrays = dict[str, Array]
Bools = npt.NDArray[np.bool_]
Doubles = npt.NDArray[np.float64]
Keys = npt.NDArray[np.int64]

NUMPY_OF: dict[str, np.dtype[np.generic]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype(np.uint8),
    "UINT16": np.dtype(np.uint16),
    "UINT32": np.dtype(np.uint32),
    "UINT64": np.dtype(np.uint64),
    "INT8": np.dtype(np.int8),
    "INT16": np.dtype(np.int16),
    "INT32": np.dtype(np.int32),
    "INT64": np.dtype(np.int64),
    "FP16": np.dtype(np.float16),
    "FP32": np.dtype(np.float32),
    "FP64": np.dtype(np.float64),
    "BYTES": np.dtype(np.object_),
}
DATATYPE_OF: dict[np.dtype[np.generic], str] = {dtype: name for name, dtype in NUMPY_OF.items()}
