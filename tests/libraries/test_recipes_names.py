"""Values of a model that have the names which quantizers and converters give to what they add."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from tailcut.builder import Holdout
from tailcut.builder.recipes import fp16, int8_dynamic, int8_static
from tailcut.builder.recipes.graph_names import Numbered, free, name_nodes, rename, taken
from tailcut.common.tensors import Arrays

PLAIN = {name: name for name in ("a", "b", "w", "v", "hidden", "product", "y")}
CLASHING = (
    {"a": "a", "b": "a_scale", "w": "w", "v": "w_quantized", "hidden": "w_zero_point", "product": "w_scale", "y": "y"},
    {"a": "a", "b": "a_quantized", "w": "a_zero_point", "v": "w_scale", "hidden": "a_scale", "product": "p", "y": "o"},
    {"a": "t0", "b": "t1_scale", "w": "t2", "v": "t0_scale", "hidden": "t3", "product": "t1", "y": "t2_quantized"},
    {"a": "a", "b": "a_QuantizeLinear_Output", "w": "w", "v": "w_DequantizeLinear_Output", "hidden": "h_scale"}
    | {"product": "y_DequantizeLinear_Input", "y": "h"},
    PLAIN | {"add": "MatMul_1_quant", "first": "MatMul_1", "second": "MatMul_1_output_quantized"},
    PLAIN | {"add": "a_QuantizeLinear", "first": "a_DequantizeLinear", "second": "n1_quant"},
    {"a": "graph_input_cast_0", "b": "input_cast_to_b", "w": "w_cast_to_fp16", "v": "v", "hidden": "h_cast_to_fp16"}
    | {"product": "output_cast_to_y", "y": "graph_output_cast_0"},
)
ROWS = 64


def graph(path: Path, names: dict[str, str]) -> Path:
    """a (rows, 8) and b (rows, 8) -> y (rows, 4): relu(a w) v + b's first columns through the same weights."""
    random = np.random.default_rng(3)
    n = names
    weights = [
        numpy_helper.from_array(random.normal(size=(8, 16)).astype(np.float32), n["w"]),
        numpy_helper.from_array(random.normal(size=(16, 4)).astype(np.float32), n["v"]),
    ]
    nodes = [
        helper.make_node("Add", [n["a"], n["b"]], [n["hidden"]], n.get("add", "")),
        helper.make_node("MatMul", [n["hidden"], n["w"]], [n["product"]], n.get("first", "")),
        helper.make_node("MatMul", [n["product"], n["v"]], [n["y"]], n.get("second", "")),
    ]
    made = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n[name], TensorProto.FLOAT, ["rows", 8]) for name in ("a", "b")],
        [helper.make_tensor_value_info(n["y"], TensorProto.FLOAT, ["rows", 4])],
        weights,
    )
    onnx.save(helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def rows(names: dict[str, str]) -> Arrays:
    random = np.random.default_rng(5)
    return {names[name]: random.normal(size=(ROWS, 8)).astype(np.float32) for name in ("a", "b")}


def run(path: Path, names: dict[str, str]) -> Any:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    assert [each.name for each in session.get_inputs()] == [names["a"], names["b"]]
    return session.run([names["y"]], rows(names))[0]


def dynamic(base: Path, path: Path, names: dict[str, str]) -> None:
    int8_dynamic.quantize(base, path, saturates=False, error_of=lambda file: float(np.abs(run(file, names)).mean() * 0))


def static(base: Path, path: Path, names: dict[str, str]) -> None:
    wanted = run(base, names)
    selection = Holdout(inputs=rows(names))
    int8_static.quantize(
        base, path, selection, saturates=False, error_of=lambda file: float(np.abs(run(file, names) - wanted).mean())
    )


def half(base: Path, path: Path, names: dict[str, str]) -> None:
    fp16.write(base, path, ())


@pytest.mark.parametrize("recipe", [dynamic, static, half])
@pytest.mark.parametrize("names", CLASHING)
def test_the_answers_do_not_depend_on_names(
    tmp_path: Path, names: dict[str, str], recipe: Callable[[Path, Path, dict[str, str]], None]
) -> None:
    answers = []
    for number, each in enumerate((PLAIN, names)):
        base = graph(tmp_path / f"{number}.onnx", each)
        path = tmp_path / f"{number}-made.onnx"
        recipe(base, path, each)
        onnx.checker.check_model(onnx.load(path))
        answers.append(run(path, each))
        assert np.abs(answers[-1] - run(base, each)).max() < 2.0
    np.testing.assert_array_equal(answers[0], answers[1])


NAMES = st.lists(st.text("t0_s", min_size=1, max_size=4), min_size=7, max_size=7, unique=True)


@given(names=NAMES, added=st.lists(st.text("t0_s", min_size=1, max_size=4), unique=True, max_size=6))
def test_numbers_keep_the_graph_and_make_room_for_its_names(names: list[str], added: list[str]) -> None:
    """Whatever a tool adds meanwhile, each value is called as before, and no two values are called alike."""
    own = dict(zip(PLAIN, names, strict=True))
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Add", [own["a"], own["b"]], [own["y"]])],
            "g",
            [helper.make_tensor_value_info(own[name], TensorProto.FLOAT, [1]) for name in ("a", "b")],
            [helper.make_tensor_value_info(own["y"], TensorProto.FLOAT, [1])],
        )
    )
    before = model.SerializeToString()
    numbered = Numbered(model)
    assert len({*numbered.values.values()}) == 3
    new = [name for name in added if name not in numbered.values.values()]
    extra = [helper.make_node("Identity", [numbered.values[own["a"]]], [name]) for name in new]
    model.graph.node.extend(extra)
    numbered.restore(model)
    outputs = [node.output[0] for node in model.graph.node]
    assert len({*outputs, own["a"], own["b"]}) == len(outputs) + 2
    del model.graph.node[1:]
    assert model.SerializeToString() == before


def test_names_inside_branches_are_renamed_too() -> None:
    """An If whose branches read a value of the graph around them."""
    branches = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("Identity", ["x"], [name])],
            name,
            [],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1])],
        )
        for name in ("then", "else")
    }
    made = helper.make_graph(
        [helper.make_node("If", ["c"], ["y"], **branches)],
        "g",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1]),
            helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
    )
    assert taken(made) == {"x", "c", "y", "then", "else"}
    rename(made, lambda name: f"{name}!")
    assert taken(made) == {"x!", "c!", "y!", "then!", "else!"}


def test_free_names_and_nodes() -> None:
    names = {"a", "a_"}
    assert (free("a", names), free("a", names), free("b", names)) == ("a__", "a___", "b")
    nodes = [helper.make_node("Neg", ["x"], ["y"], name) for name in ("", "same", "same", "Neg_0")]
    made = helper.make_graph(nodes, "g", [], [])
    name_nodes(made)
    assert len({node.name for node in made.node}) == 4
