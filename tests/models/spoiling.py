"""Variants that a build must refuse: a small classifier, its holdout, and what spoils the files made of it.

``spoil()`` stands between a build and its steps: the recipes run as they are, in processes of their own, and what
they wrote is damaged before it is scored. So the quantizers, the scores, the gate and the load are those of any build.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

CLASSES, WIDTH = 10, 32
RARE = CLASSES - 1
RARE_SHARE = 0.03
SIGMA = 0.3

FACTORS = {
    "int8-dynamic": np.where(np.arange(CLASSES) % 2, 0.85, 1.15),
    "int8-static": np.where(np.arange(CLASSES) == RARE, 0.7, 1.0),
}
"""What the scales of the last layer are multiplied by, one per class: all off by a little; one class hurt alone."""

SLOW = "openvino"
"""Made from a model that gives the same answers and takes many times as long."""


def classifier(path: Path, *, burnt: int = 0) -> Path:
    """x (batch, 32) FP32 -> p (batch, 10): the nearest of ten prototypes, as two linear layers and a softmax.

    Args:
        burnt: so many more products of matrices, which add nothing to the answer.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    turned, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(WIDTH, WIDTH)))
    second = turned.T @ prototypes().T / SIGMA**2
    # relu(x) - relu(-x) is x: nothing is lost between the layers.
    arrays = {"w0": np.hstack([turned, -turned]), "w1": np.vstack([second, -second]), "bias": np.zeros(CLASSES)}
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "w1"], ["z"]),
        helper.make_node("Add", ["z", "bias"], ["biased"]),
    ]
    last = "biased"
    if burnt:
        wide = 1024
        arrays |= {
            "spread": np.full((1, wide), 1e-3),
            "burn": np.random.default_rng(2).normal(size=(wide, wide)) / wide**0.5,
            "little": np.full((wide, CLASSES), 1e-12),
        }
        # Of the batch's mean, so that scoring many rows at once costs no more than one.
        nodes.append(helper.make_node("ReduceMean", ["r"], ["mean"], keepdims=1))
        nodes.append(helper.make_node("Mul", ["mean", "spread"], ["b0"]))
        nodes += [helper.make_node("MatMul", [f"b{n}", "burn"], [f"b{n + 1}"]) for n in range(burnt)]
        nodes.append(helper.make_node("MatMul", [f"b{burnt}", "little"], ["burnt"]))
        nodes.append(helper.make_node("Add", ["biased", "burnt"], ["all"]))
        last = "all"
    nodes.append(helper.make_node("Softmax", [last], ["p"], axis=1))
    graph = helper.make_graph(
        nodes,
        "classifier",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", WIDTH])],
        [helper.make_tensor_value_info("p", TensorProto.FLOAT, ["batch", CLASSES])],
        [numpy_helper.from_array(array.astype(np.float32), name) for name, array in arrays.items()],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def prototypes() -> np.ndarray:
    """(10, 32), each of length 1."""
    found = np.random.default_rng(0).normal(size=(CLASSES, WIDTH))
    return found / np.linalg.norm(found, axis=1, keepdims=True)


def holdout(path: Path, rows: int) -> Path:
    """Noisy prototypes in an .npz; the slice "kind" is the class, the last one rare."""
    random = np.random.default_rng(3)
    shares = np.append(np.full(CLASSES - 1, (1 - RARE_SHARE) / (CLASSES - 1)), RARE_SHARE)
    label = random.choice(CLASSES, size=rows, p=shares)
    label[:CLASSES] = np.arange(CLASSES)
    x = (prototypes()[label] + SIGMA * random.normal(size=(rows, WIDTH))).astype(np.float32)
    np.savez(path, x=x, label=label, kind=np.array([f"class {each}" for each in label]))
    return path


def spoil() -> None:
    """Damage what the recipes of every build in this process make."""
    from tailcut.builder.children import StepRunner

    run = StepRunner.run

    def spoiled(runner: StepRunner, spec: Any, result: Any, **limits: Any) -> Any:
        if spec.step != "make":
            return run(runner, spec, result, **limits)
        if spec.target == SLOW:
            spec = _from_slow(spec)
        found = run(runner, spec, result, **limits)
        if spec.target in FACTORS:
            _rescale(Path(spec.folder) / f"{spec.target}.onnx", FACTORS[spec.target])
        return found

    StepRunner.run = spoiled  # type: ignore[method-assign]


def _from_slow(spec: Any) -> Any:
    from msgspec.structs import replace

    slow = classifier(Path(spec.folder) / "slow.onnx", burnt=96)
    return replace(spec, made=[replace(each, path=str(slow)) if each.name == spec.base else each for each in spec.made])


def _rescale(path: Path, factors: np.ndarray) -> None:
    """Multiply the scales of the last layer's weights, of which there is one per class."""
    import onnx
    from onnx import numpy_helper

    model = onnx.load(str(path))
    scales = [each for each in model.graph.initializer if "scale" in each.name and list(each.dims) == [CLASSES]]
    assert scales, "the last layer has one scale per class"
    for each in scales:
        changed = (numpy_helper.to_array(each) * factors).astype(np.float32)
        each.CopyFrom(numpy_helper.from_array(changed, each.name))
    onnx.save(model, str(path))
