"""Named arrays in an .npz file, whatever their names: ``numpy.savez`` takes them as keywords, "file" among its own."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from tailcut.common.tensors import Array


def save(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays without pickle, for ``numpy.load``; text becomes fixed-width Unicode.

    Raises:
        OSError: the file cannot be written.
    """
    with zipfile.ZipFile(path, "w") as file:
        for name, array in arrays.items():
            plain = array.astype("U") if array.dtype.hasobject else array
            with file.open(f"{name}.npy", "w", force_zip64=True) as part:
                np.lib.format.write_array(part, np.asanyarray(plain), allow_pickle=False)
