"""The small model that overhead is measured on: MLP 64-256-256-1 with seeded weights, and its one request."""

from __future__ import annotations

import timeit
from itertools import pairwise
from pathlib import Path
from statistics import median

import msgspec
import numpy as np

_SIZES = (64, 256, 256, 1)

MANIFEST = """
name = "mlp"
[model]
source = "mlp.onnx"
inputs = [{ name = "x", datatype = "FP32", shape = [-1, 64] }]
outputs = [{ name = "y", datatype = "FP32", shape = [-1, 1] }]
[serve]
variant = "source"
"""

BODY_FLOATS = msgspec.json.encode(
    {
        "inputs": [
            {
                "name": "x",
                "shape": [1, 64],
                "datatype": "FP32",
                "data": np.random.default_rng(0).standard_normal(64).round(6).tolist(),
            }
        ]
    }
)


class _Input(msgspec.Struct):
    name: str
    shape: list[int]
    datatype: str
    data: list[float]


class _Request(msgspec.Struct):
    inputs: list[_Input]


def write_model(path: Path, seed: int = 0) -> Path:
    """Write the model with the weights of a seed as ONNX and return the path."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    generator = np.random.default_rng(seed)
    nodes, weights = [], []
    name = "x"
    for layer, (fan_in, fan_out) in enumerate(pairwise(_SIZES)):
        last = layer == len(_SIZES) - 2
        weight = (generator.standard_normal((fan_in, fan_out)) / np.sqrt(fan_in)).astype(np.float32)
        weights += [
            numpy_helper.from_array(weight, f"w{layer}"),
            numpy_helper.from_array(np.zeros(fan_out, np.float32), f"b{layer}"),
        ]
        out = "y" if last else f"h{layer}"
        nodes.append(helper.make_node("Gemm", [name, f"w{layer}", f"b{layer}"], [out]))
        if not last:
            nodes.append(helper.make_node("Relu", [out], [f"r{layer}"]))
            name = f"r{layer}"
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    onnx.save(model, path)
    return path


def bare(model: str) -> dict[str, float]:
    """Return the median microseconds of decoding the body and of one ``session.run`` with one thread."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    decoder = msgspec.json.Decoder(_Request)
    row = np.array(decoder.decode(BODY_FLOATS).inputs[0].data, dtype=np.float32).reshape(1, 64)
    decode = timeit.repeat(lambda: decoder.decode(BODY_FLOATS), number=200, repeat=15)
    run = timeit.repeat(lambda: session.run(["y"], {"x": row}), number=200, repeat=15)
    return {"decode_us": median(decode) / 200 * 1e6, "run_us": median(run) / 200 * 1e6}
