"""Tensors in memory that two processes share."""

from __future__ import annotations

import numpy as np
import pytest

from tailcut.common.tensors import NUMPY_OF
from tailcut.models.runtimes.remote.arena import Arena


@pytest.mark.parametrize("datatype", list(NUMPY_OF))
def test_tensors_of_every_datatype_are_joined_and_come_back(datatype: str) -> None:
    values = {"BYTES": ["", "h\u00e9", b"\xff"], "BOOL": [True, False, True]}.get(datatype, [0, 1, 2])
    array = np.empty((3, 1), NUMPY_OF[datatype])
    array[:, 0] = values
    arena = Arena.make()
    placed = arena.put([{"x": array}, {"x": array[:1]}], ["x"])
    found = arena.get(placed, arena.size_bytes)["x"]
    assert found.dtype == array.dtype
    assert found.tolist() == [[value] for value in [*values, values[0]]]
    arena.close()


def test_an_element_that_is_neither_text_nor_bytes_is_refused() -> None:
    arena = Arena.make()
    placed = arena.put([{"x": np.array(["a", 1], object)}], ["x"])
    with pytest.raises(ValueError, match="neither text nor bytes"):
        arena.get(placed, arena.size_bytes)
    arena.close()
