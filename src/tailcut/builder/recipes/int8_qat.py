"""Recipe "int8-qat": fine-tuning with fake quantisation, by the manifest's own training function.

For models that lose too much when they are quantised after training. ``build.train`` gets the module with rounding in
every linear layer and convolution and trains it in place, as it would train the plain one; what comes out is an ONNX
graph with the learned weights and the learned ranges, compared with the module that was trained.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes import calibration, cuda, int8_static, onnx_export
from tailcut.builder.recipes.base import TREES, Precision, Recipe, Result, Subject, Work, missing
from tailcut.builder.recipes.graph_names import free, taken
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import BuildError, DoesNotApply, TailcutError
from tailcut.manifest import Manifest, resolve
from tailcut.models.runtimes.live import source_of
from tailcut.models.runtimes.torch_call import in_order

if TYPE_CHECKING:
    import torch

    from tailcut.builder.recipes.qat import QuantisedLayer


NEEDS_TRAIN = "set build.train to a function that fine-tunes the module"
PARITY = 0.005
"""Mean difference of the exported graph from the trained module, as a share of the spread of its answers: integer
kernels round ties and sums otherwise, which moves single values by one step of the next layer."""

_SEED = 0
_CALIBRATION_BATCHES = 32
_BATCH_ROWS = 8
_TRAIN_HINT = "build.train is (module) -> None: it trains the module in place and returns nothing"


class Int8Qat(Recipe):
    """INT8 weights and activations, the model fine-tuned to live with them."""

    name = "int8-qat"
    base = ("torch",)
    runtime = "onnxruntime"
    suffix = ".onnx"
    precision: Precision = "int8"
    summary = "INT8, fine-tuned with fake quantisation by build.train, for models that otherwise lose quality"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """A torch module and a function that trains it."""
        if subject.trees:
            return TREES
        if subject.kind not in {"", "torch", "huggingface"}:
            return f"needs a torch module to fine-tune, the source is {subject.kind}"
        if why := missing(here, "torch", "onnx", "onnxscript", extra="build"):
            return why
        return "" if subject.deployment.build.train else NEEDS_TRAIN

    def make(self, work: Work) -> Result:
        """Insert rounding, train, export, round the weights, compare.

        Raises:
            BuildError: the training function fails or gives NaN, or the exported graph answers otherwise.
        """
        bits = 7 if work.here.saturates else 8
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the user's training and the exporter; what matters is in the evidence
            return Result(train_and_export(work, _train(work.manifest), bits))


def offer(why_not: str, lost: Collection[str]) -> str:
    """Say that this recipe is the way on, where an INT8 variant lost too much; else ``why_not`` as it is.

    Args:
        why_not: of this recipe.
        lost: INT8 variants that the gate refused.
    """
    if why_not != NEEDS_TRAIN or not lost:
        return why_not
    return f"{NEEDS_TRAIN}; offered because INT8 lost quality ({', '.join(sorted(lost))})"


def _train(manifest: Manifest) -> Callable[[Any], None]:
    reference = manifest.deployment.build.train
    function = resolve(reference, manifest)

    def train(module: Any) -> None:
        try:
            given = function(module)
        except TailcutError:
            raise
        except Exception as error:
            raise BuildError(
                f"build.train {reference} raised {type(error).__name__}", hint=_TRAIN_HINT, detail=str(error)
            ) from error
        if given is not None:
            raise BuildError(f"build.train {reference} returned a {type(given).__name__}", hint=_TRAIN_HINT)

    return train


def train_and_export(work: Work, train: Callable[[Any], None], bits: int) -> dict[str, object]:
    """Write the quantised graph to ``work.path``; evidence of how.

    Args:
        train: fine-tunes the module in place.
        bits: of the weights, 8 or fewer.
    """
    import torch

    from tailcut.builder.recipes import qat

    module = _module(work)
    inputs = [tensor.name for tensor in work.manifest.deployment.model.inputs]
    rows = work.selection.take(min(calibration.COMPARED_ROWS, work.selection.rows))
    plain = _answers(module, rows, inputs)
    torch.manual_seed(_SEED)
    layers = qat.calibrate(module, qat.insert(module, bits), _batches(work, inputs), in_order(module, inputs))
    if not layers:
        raise DoesNotApply(
            "there is nothing to quantise: no linear layer or convolution of the module is called",
            hint="leave int8-qat out with build.recipes",
        )
    before = _answers(module, rows, inputs)
    train(module)
    module.eval()
    for layer in layers:
        layer.rounding.fix()
    trained = _answers(module, rows, inputs)
    # The answers alone do not tell: rounding makes numbers of NaN.
    if not (np.isfinite(trained).all() and all(bool(each.isfinite().all()) for each in module.parameters())):
        raise BuildError(
            "the fine-tuned module holds or gives NaN or infinity", hint="lower the learning rate in build.train"
        )
    return {
        **_export(work, module, layers, bits),
        "seed": _SEED,
        "before_training": cuda.difference(plain, before),
        "after_training": cuda.difference(plain, trained),
        "parity": _parity(work, trained),
        "operators": int8_static.operators(work.path),
    }


def _export(work: Work, module: torch.nn.Module, layers: list[QuantisedLayer], bits: int) -> dict[str, object]:
    """Export with the learned ranges; batch normalisation is folded into float weights, which are rounded then."""
    from tailcut.builder.recipes import qat

    for layer in layers:
        qat.remove_weight(layer)
        layer.rounding.exporting = True
    model = work.manifest.deployment.model
    exported = onnx_export.export(module, work.selection, model.inputs, model.outputs, work.path)
    return {
        **exported,
        "weight_bits": bits,
        "layers": [layer.name for layer in layers],
        "layers_quantised": quantize_weights(work.path, bits),
    }


def _module(work: Work) -> torch.nn.Module:
    from tailcut.builder.records import openable
    from tailcut.models.runtimes.torch import load_module

    source = source_of(work.manifest, work.base.runtime)
    assert source is not None
    module: torch.nn.Module = load_module(openable(work.base, work.manifest.deployment), source)
    return module


def _batches(work: Work, inputs: list[str]) -> Iterator[tuple[torch.Tensor, ...]]:
    import torch

    for batch in range(min(_CALIBRATION_BATCHES, -(-work.selection.rows // _BATCH_ROWS))):
        rows = work.selection.take(min(_BATCH_ROWS, work.selection.rows), batch * _BATCH_ROWS)
        yield tuple(torch.from_numpy(rows[name]) for name in inputs)


def _answers(module: torch.nn.Module, rows: Arrays, inputs: list[str]) -> Array:
    import torch

    module.eval()
    with torch.no_grad():
        given = in_order(module, inputs)(*(torch.tensor(rows[name]) for name in inputs))  # it may change them
    first = given[0] if isinstance(given, (tuple, list)) else given
    array: Array = first.numpy().copy()
    return array


def _parity(work: Work, trained: Array) -> dict[str, float]:
    """Compare the graph's integer kernels with the module that was trained.

    Raises:
        BuildError: they differ by more than rounding.
    """
    found = cuda.difference(trained, cuda.answers(work, work.open_file(work.path, Int8Qat.runtime)))
    spread = max(float(np.ptp(trained.astype(np.float64))), 1e-6)
    if not found["mean_abs"] <= PARITY * spread:
        raise BuildError(
            f"the exported INT8 graph differs from the trained module by {found['mean_abs']:.3g} on average, allowed "
            f"is {PARITY:g} of the spread of its answers, {spread:.3g}",
            hint="report the model's layers; int8-dynamic and openvino-int8 do not need this export",
        )
    return {**found, "spread": spread, "limit": PARITY * spread}


# -- Weights in the graph ----------------------------------------------------------------------------------------------


_LAYERS = {"Conv": 0, "Gemm": 1, "MatMul": 1}
"""Operators with the axis of their weight's output channels; a Gemm with transB has it on axis 0."""

_LEAST_SCALE = 1e-9
_LARGEST_BIAS = 2**30


def quantize_weights(path: Path, bits: int) -> int:
    """Round the constant weights of layers whose input is rounded already, per output channel, in place.

    Biases are rounded to 32 bits at the scale of the layer's sums, as the kernels want them.

    Args:
        path: an .onnx file with QuantizeLinear and DequantizeLinear before its layers.
        bits: of the weights; they are stored as 8-bit integers.

    Returns:
        the number of layers.
    """
    import onnx

    model = onnx.load(str(path))
    graph = model.graph
    constants = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
    rounded = {node.output[0]: node for node in graph.node if node.op_type == "DequantizeLinear"}
    found, names = 0, taken(graph)
    for node in list(graph.node):
        source, weight = rounded.get(node.input[0]), constants.get(node.input[1] if len(node.input) > 1 else "")
        if node.op_type not in _LAYERS or source is None or weight is None or weight.ndim < 2:
            continue
        if node.op_type == "MatMul" and weight.ndim != 2:
            continue
        bias = constants.get(node.input[2]) if len(node.input) > 2 else None
        _round_layer(graph, node, weight, bias, float(constants[source.input[1]]), 2 ** (bits - 1) - 1, names)
        found += 1
    used = {name for node in graph.node for name in node.input} | {output.name for output in graph.output}
    for tensor in list(graph.initializer):
        if tensor.name not in used:
            graph.initializer.remove(tensor)
    _sort(graph)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
    return found


def _round_layer(graph: Any, node: Any, weight: Any, bias: Any, input_scale: float, most: int, names: set[str]) -> None:
    axis = _axis(node)
    others = tuple(place for place in range(weight.ndim) if place != axis)
    scale = np.maximum(np.abs(weight).max(axis=others) / most, _LEAST_SCALE)
    fits = bias is not None and bias.shape == scale.shape
    if fits:
        # The bias must fit into 32 bits at the scale of the sums: channels of tiny weights get coarser ones.
        scale = np.maximum(scale, np.abs(bias) / (input_scale * _LARGEST_BIAS))
    scale = scale.astype(np.float32)
    along = scale.reshape([-1 if place == axis else 1 for place in range(weight.ndim)])
    values = np.rint(weight / along).clip(-most, most).astype(np.int8)
    node.input[1] = _constant(graph, node.input[1], values, scale, axis, names)
    if fits:
        sums = (scale * np.float32(input_scale)).astype(np.float32)
        integers = np.rint(bias / sums.astype(np.float64)).astype(np.int32)
        node.input[2] = _constant(graph, node.input[2], integers, sums, 0, names)


def _axis(node: Any) -> int:
    turned = any(attribute.name == "transB" and attribute.i for attribute in node.attribute)
    return 0 if turned else _LAYERS[node.op_type]


def _constant(graph: Any, of: str, values: Any, scale: Any, axis: int, names: set[str]) -> str:
    """Add an integer constant with the node that makes floats of it; return the floats' name."""
    import onnx

    name = free(f"{of}/0", names)
    parts = [free(f"{name}/{suffix}", names) for suffix in ("integer", "scale", "zero")]
    zeros = np.zeros(scale.shape, values.dtype)
    for part, array in zip(parts, (values, scale, zeros), strict=True):
        graph.initializer.append(onnx.numpy_helper.from_array(array, part))
    graph.node.append(onnx.helper.make_node("DequantizeLinear", parts, [name], name=name, axis=axis))
    return name


def _sort(graph: Any) -> None:
    """Constants' nodes first: a graph lists producers before consumers."""
    made = [node for node in graph.node if node.op_type == "DequantizeLinear" and node.name == node.output[0]]
    others = [node for node in graph.node if not any(node is each for each in made)]
    ordered = [*made, *others]
    copies = [type(node).FromString(node.SerializeToString()) for node in ordered]
    del graph.node[:]
    graph.node.extend(copies)
