"""The compute-bound model that load is put on: MiniLM in INT8 where examples/minilm was built, else one made here."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import timeit
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.peers.bodies import Shape

_REGISTRY = Path(__file__).resolve().parent.parent / "examples" / "minilm" / ".tailcut" / "registry"
TOKENS = 32
"""Of a text: a sentence."""
_WIDTH, _HIDDEN, _POSITIONS, _LAYERS = 384, 1536, 32, 5
SIZES = (1, 2, 4, 8)
LARGEST = SIZES[-1]
"""Largest batch that servers are allowed, where nothing else is said: eight rows are half of a tight SLO already."""


@dataclass(frozen=True)
class Compute:
    """A model on disk, and what it is asked."""

    path: Path
    label: str
    shape: Shape
    output: str
    width: int


def compute_model(folder: Path, tokens: int = TOKENS) -> Compute:
    """Put the model into a folder.

    Args:
        tokens: that a row has where the model reads text; what a row costs grows with them.
    """
    return _minilm(folder, tokens) or _made(folder)


def manifest(model: Compute, *, rows: int, limit_ms: float, deadline_ms: int) -> str:
    """Return tailcut's manifest for it: the SLO and the largest batch, all else by default."""
    width = -1 if len(model.shape.inputs) > 1 else model.shape.row.size
    inputs = ", ".join(
        f'{{ name = "{name}", datatype = "{datatype}", shape = [-1, {width}] }}'
        for name, datatype in model.shape.inputs
    )
    return f"""
name = "compute"
[model]
source = "{model.path.name}"
inputs = [{inputs}]
outputs = [{{ name = "{model.output}", datatype = "FP32", shape = [-1, {model.width}] }}]
[serve]
variant = "source"
[slo]
p95 = "{limit_ms:.0f}ms"
timeout = "{deadline_ms}ms"
[batching]
max_rows = {rows}
"""


def _minilm(folder: Path, tokens: int) -> Compute | None:
    from tailcut.errors import TailcutError
    from tailcut.registry import Registry

    registry = Registry(_REGISTRY)
    try:
        version = registry.version("minilm", "latest")
    except TailcutError:
        return None
    names = [name for name, each in version.variants.items() if each.runtime == "onnxruntime" and "int8" in name]
    for name in names:
        with suppress(TailcutError):  # not among the recipes that were built
            variant = registry.variant("minilm", name, version.id)
            break
    else:
        print(f"minilm {version.id} is there, but of {', '.join(names)} none was built", file=sys.stderr)
        return None
    path = Path(shutil.copy(variant.artifact, folder / "compute.onnx"))
    ids = np.random.default_rng(0).integers(2000, 20000, tokens)
    ids[0], ids[-1] = 101, 102  # [CLS] and [SEP]
    inputs = [(each.name, each.datatype) for each in variant.inputs]
    output = variant.outputs[0]
    label = f"MiniLM {variant.name}, {tokens} tokens"
    return Compute(path, label, Shape(inputs, ids), output.name, int(output.shape[-1]))


def _made(folder: Path) -> Compute:
    """Write a position-wise feed-forward stack: like a small encoder, its cost grows with the rows."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    draw = np.random.default_rng(0)
    weights = [numpy_helper.from_array(np.array([-1, _WIDTH], np.int64), "flat")]
    weights.append(numpy_helper.from_array(np.array([-1, _POSITIONS * _WIDTH], np.int64), "whole"))

    def weight(name: str, fan_in: int, fan_out: int) -> str:
        values = (draw.standard_normal((fan_in, fan_out)) / np.sqrt(fan_in)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, name))
        return name

    nodes = [
        helper.make_node("MatMul", ["x", weight("in", 64, _POSITIONS * _WIDTH)], ["spread"]),
        helper.make_node("Reshape", ["spread", "flat"], ["h0"]),
    ]
    for layer in range(_LAYERS):
        wide, narrow = weight(f"a{layer}", _WIDTH, _HIDDEN), weight(f"b{layer}", _HIDDEN, _WIDTH)
        nodes += [
            helper.make_node("MatMul", [f"h{layer}", wide], [f"u{layer}"]),
            helper.make_node("Relu", [f"u{layer}"], [f"r{layer}"]),
            helper.make_node("MatMul", [f"r{layer}", narrow], [f"h{layer + 1}"]),
        ]
    nodes.append(helper.make_node("Reshape", [f"h{_LAYERS}", "whole"], ["joined"]))
    nodes.append(helper.make_node("MatMul", ["joined", weight("out", _POSITIONS * _WIDTH, 16)], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", n]) for name, n in (("x", 64), ("y", 16))]
    graph = helper.make_graph(nodes, "compute", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    path = folder / "compute.onnx"
    onnx.save(model, path)
    row: npt.NDArray[Any] = draw.standard_normal(64).astype(np.float32).round(6)
    return Compute(path, f"feed-forward stack, {_LAYERS} layers of {_WIDTH}", Shape([("x", "FP32")], row), "y", 16)


def bare(model: Compute, seconds: float, core: int, tries: int = 1, sizes: Sequence[int] = SIZES) -> dict[int, float]:
    """Return the milliseconds of one run by batch size: the runtime alone, one thread, on one core.

    Means, because a server's throughput contains every hiccup as well.

    Args:
        tries: so often it is measured, each time in a fresh process; the least of their means counts.
    """
    code = "import json, sys; from benchmarks.compute import time_sizes; print(json.dumps(time_sizes(*sys.argv[1:])))"
    arguments = [str(model.path), written(model), str(seconds / tries), json.dumps(sizes)]
    command = ["taskset", "-c", str(core), sys.executable, "-c", code, *arguments]
    found: dict[int, float] = {}
    for _ in range(tries):
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        for size, took in json.loads(done.stdout).items():
            found[int(size)] = min(took, found.get(int(size), took))
    return found


def time_sizes(path: str, row: str, seconds: str, sizes: str) -> dict[int, float]:
    """Do what ``bare`` says, in this process."""
    session = open_bare(path)
    found = {}
    for size in json.loads(sizes):
        feeds = feeds_of(session, row, size)
        session.run(None, feeds)
        once_s = timeit.timeit(lambda feeds=feeds: session.run(None, feeds), number=1)  # type: ignore[misc]
        count = max(int(float(seconds) / len(json.loads(sizes)) / once_s), 5)
        found[size] = timeit.timeit(lambda feeds=feeds: session.run(None, feeds), number=count) / count * 1000  # type: ignore[misc]
    return found


def open_bare(path: str) -> Any:
    """Return the runtime's session: one thread, all else as it comes."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def written(model: Compute) -> str:
    """Return the model's row as text, for ``feeds_of`` in another process."""
    return json.dumps([model.shape.row.dtype.str, model.shape.row.tolist()])


def feeds_of(session: Any, row: str, size: int) -> dict[str, npt.NDArray[Any]]:
    """Return the inputs of a batch: the same row again and again; all but the first input are ones."""
    first, *others = [each.name for each in session.get_inputs()]
    dtype, values = json.loads(row)
    array = np.repeat(np.array([values], dtype=dtype), size, axis=0)
    return {first: array, **{name: np.ones_like(array) for name in others}}


def capacity_rps(taken_ms: dict[int, float]) -> float:
    """Return the rows per second at the best batch size."""
    return max(size / took for size, took in taken_ms.items()) * 1000
