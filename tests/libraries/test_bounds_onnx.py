"""Bounds that an ONNX graph proves: inputs that reach a Gather unchanged, and positions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.derived_kit import bounds_of, lengths_of, of_file, slow

from tailcut.builder.bounds import of_source
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.limits import find
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Arrays
from tailcut.manifest import Model, TensorSpec

IDS = TensorSpec(name="x", datatype="INT64", shape=(-1, 3))
PACKED = TensorSpec(name="x", datatype="FP32", shape=(-1, 3))
ROWS = np.array([[1, 2, 3], [4, 5, 6], [0, 0, 1]])
CONSTANTS = {
    "shops": np.ones((50, 4), np.float32),
    "days": np.ones((7, 4), np.float32),
    "zero": np.array([0]),
    "one": np.array([1]),
    "two": np.array([2]),
    "fifty": np.array(50),
    "seventy": np.array(70),
    "flat": np.array([-1, 1]),
    "columns": np.array([2, 0]),
}


def save(path: Path, nodes: list[Any], tensor: TensorSpec, **more: np.ndarray[Any, Any]) -> Path:
    """Write a graph of these nodes from tensor ``x`` to an output ``y`` of any shape."""
    kind = TensorProto.FLOAT if tensor.datatype == "FP32" else TensorProto.INT64
    shape = ["rows", *(size if size > 0 else f"free{place}" for place, size in enumerate(tensor.shape[1:]))]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(array, name) for name, array in (CONSTANTS | more).items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(path))
    return path


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def derived(path: Path, tensor: TensorSpec) -> dict[Any, Bound]:
    rows: Arrays = {"x": ROWS.astype(np.float32 if tensor.datatype == "FP32" else np.int64)}
    return bounds_of(None, of_file(path), (tensor,), rows, path)


REACHED: dict[str, list[Any]] = {
    "plain": [node("Gather", "shops x", "y")],
    "cast": [node("Cast", "x", "i", to=TensorProto.INT32), node("Gather", "shops i", "y")],
    "reshaped": [
        node("Reshape", "x flat", "f"),
        node("Squeeze", "f one", "s"),
        node("Identity", "s", "i"),
        node("Gather", "shops i", "y"),
    ],
    "by shape": [
        node("Shape", "x", "shape"),
        node("Transpose", "x", "t", perm=[1, 0]),
        node("Reshape", "t shape", "r"),
        node("Gather", "shops r", "y"),
    ],
    "with a constant beside it": [
        node("Shape", "x", "rows", start=0, end=1),
        node("Concat", "rows one", "shape", axis=0),
        node("Expand", "two shape", "beside"),
        node("Concat", "beside x", "c", axis=1),
        node("Gather", "shops c", "y"),
    ],
}


@pytest.mark.parametrize("name", REACHED)
def test_an_input_that_reaches_a_gather_unchanged_has_its_bounds(name: str, tmp_path: Path) -> None:
    found = derived(save(tmp_path / "m.onnx", REACHED[name], IDS), IDS)
    assert found == {("x", ()): Bound(input="x", min=0, max=49, why="table shops has 50 rows")}


CHANGED: dict[str, list[Any]] = {
    "hashed": [node("Mod", "x fifty", "i"), node("Gather", "shops i", "y")],
    "shifted": [node("Sub", "x one", "i"), node("Gather", "shops i", "y")],
    "clipped": [
        node("Sub", "fifty one", "last"),
        node("Squeeze", "last zero", "most"),
        node("Squeeze", "zero zero", "least"),
        node("Clip", "x least most", "i"),
        node("Gather", "shops i", "y"),
    ],
    "one code replaced": [
        node("Equal", "x seventy", "is"),
        node("Cast", "is", "flag", to=TensorProto.INT64),
        node("Mul", "flag seventy", "less"),
        node("Sub", "x less", "i"),
        node("Gather", "shops i", "y"),
    ],
    "cut by its own values": [
        node("Gather", "x zero", "row"),
        node("Gather", "row zero", "first", axis=1),
        node("Squeeze", "first zero", "count"),
        node("Min", "count two", "end"),
        node("Slice", "x zero end one", "i"),
        node("Gather", "shops i", "y"),
    ],
    "moved by its own values": [
        node("Gather", "x zero", "row"),
        node("Squeeze", "row zero", "places"),
        node("Gather", "x places", "i", axis=0),
        node("Gather", "shops i", "y"),
    ],
}


@pytest.mark.parametrize("name", CHANGED)
def test_an_input_that_is_changed_on_its_way_has_no_bounds(name: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    save(path, CHANGED[name], IDS)
    rows: Arrays = {"x": np.array([[2, 1, 0], [0, 1, 2], [2, 0, 1]])}
    call = of_file(path)
    assert call(rows)["y"].size
    assert bounds_of(None, call, (IDS,), rows, path) == {}


def test_a_constant_beside_a_column_is_no_column(tmp_path: Path) -> None:
    nodes = [
        node("Slice", "x zero one one", "first"),
        node("Shape", "x", "rows", start=0, end=1),
        node("Concat", "rows one", "shape", axis=0),
        node("Expand", "two shape", "beside"),
        node("Concat", "beside first", "i", axis=1),
        node("Gather", "shops i", "y"),
    ]
    assert list(derived(save(tmp_path / "m.onnx", nodes, IDS), IDS)) == [("x", (0,))]


def test_columns_of_one_input_have_the_bounds_of_their_own_tables(tmp_path: Path) -> None:
    nodes = [
        node("Split", "x", "a b c", axis=1, num_outputs=3),
        node("Cast", "a", "shop", to=TensorProto.INT64),
        node("Cast", "b", "day", to=TensorProto.INT64),
        node("Gather", "shops shop", "e"),
        node("Gather", "days day", "f"),
        node("Concat", "e f", "y", axis=1),
    ]
    found = derived(save(tmp_path / "m.onnx", nodes, PACKED), PACKED)
    limits = {columns: (bound.min, bound.max) for (_, columns), bound in found.items()}
    assert limits == {
        (0,): (pytest.approx(-1, abs=1e-6), pytest.approx(50, abs=1e-5)),
        (1,): (pytest.approx(-1, abs=1e-6), pytest.approx(7, abs=1e-5)),
    }
    assert all(low > -1 and high < 50 for low, high in limits.values())


def test_elements_and_tuples_have_bounds_too(tmp_path: Path) -> None:
    nodes = [node("Gather", "x columns", "i", axis=1), node("GatherND", "shops i", "y")]
    table = np.ones((50, 20), np.float32)
    found = derived(save(tmp_path / "nd.onnx", nodes, IDS, shops=table), IDS)
    assert {columns: bound.max for (_, columns), bound in found.items()} == {(2,): 49, (0,): 19}
    nodes = [node("GatherElements", "shops x", "y", axis=0)]
    assert derived(save(tmp_path / "elements.onnx", nodes, IDS), IDS)["x", ()].max == 49


def test_a_quantized_table_has_the_bounds_of_its_rows(tmp_path: Path) -> None:
    nodes = [node("DequantizeLinear", "q scale", "w"), node("Gather", "w x", "y")]
    more = {"q": np.ones((50, 4), np.int8), "scale": np.array(0.5, np.float32)}
    assert derived(save(tmp_path / "m.onnx", nodes, IDS, **more), IDS)["x", ()].max == 49


def with_positions(folder: Path) -> tuple[TensorSpec, Path]:
    """Save a model that adds one of 32 positions to each place of a row of shops."""
    text = TensorSpec(name="x", datatype="INT64", shape=(-1, -1))
    nodes = [
        node("Gather", "shops x", "e"),
        node("Shape", "x", "length", start=1, end=2),
        node("Slice", "positions zero length zero", "p"),
        node("Add", "e p", "y"),
    ]
    path = save(folder / "m.onnx", nodes, text, positions=np.ones((32, 4), np.float32))
    return text, path


def test_a_table_of_positions_limits_the_length(tmp_path: Path) -> None:
    text, path = with_positions(tmp_path)
    call = of_file(path)
    assert lengths_of(None, call, (text,), {"x": ROWS}, path) == {"x": 32}
    assert bounds_of(None, call, (text,), {"x": ROWS}, path)["x", ()].max == 49


def test_a_trial_for_which_no_time_is_left_proves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, path = with_positions(tmp_path)
    call = of_file(path)

    def found(trials: int) -> tuple[list[Bound], int]:
        limited, made = slow(monkeypatch, call, trials)
        return of_source(None, limited, (text,), {"x": ROWS}, path=path, strict=True).bounds, len(made)

    whole, most = found(1000)
    assert len(whole) == 2
    for trials in range(1, most):
        bounds, made = found(trials)
        assert made == trials
        assert bounds == whole[: len(bounds)]
    assert len(bounds) == 1


_DIAMONDS = 200
"""Walks that take both sides of each one would never end."""


def test_tensors_that_are_used_twice_are_walked_once(tmp_path: Path) -> None:
    values, shapes = ["x"], ["flat"]
    nodes = []
    for place in range(_DIAMONDS):
        nodes.append(node("Concat", f"{values[-1]} {values[-1]}", f"c{place}", axis=0))
        nodes.append(node("Slice", f"c{place} zero one zero", f"v{place}"))
        nodes.append(node("Max", f"{shapes[-1]} {shapes[-1]}", f"s{place}"))
        values.append(f"v{place}")
        shapes.append(f"s{place}")
    nodes += [node("Reshape", f"{values[-1]} {shapes[-1]}", "i"), node("Gather", "shops i", "y")]
    assert derived(save(tmp_path / "m.onnx", nodes, IDS), IDS)["x", ()].max == 49


def test_a_file_is_read_once_for_bounds_and_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path / "m.onnx", REACHED["plain"], IDS)
    call, read, load = of_file(path), [], onnx.load

    def counted(*given: Any, **options: Any) -> Any:
        read.append(given)
        return load(*given, **options)

    monkeypatch.setattr(onnx, "load", counted)
    section = Model(source="m.onnx", inputs=(IDS,), outputs=(TensorSpec(name="y"),))
    found = find(None, call, Holdout({"x": ROWS}), section, path)
    assert ([bound.max for bound in found.bounds], found.sizes, len(read)) == ([49], [50], 1)


def test_sizes_of_tables_need_no_answer_to_the_rows(tmp_path: Path) -> None:
    path = save(tmp_path / "m.onnx", REACHED["plain"], IDS)
    found = of_source(None, of_file(path), (IDS,), {"x": ROWS + 50}, path=path, strict=True)
    assert (found.bounds, found.sizes) == ([], [50])


def test_a_file_that_is_no_model_has_no_bounds(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"no model")
    assert bounds_of(None, lambda arrays: {"y": arrays["x"]}, (IDS,), {"x": ROWS}, path) == {}
