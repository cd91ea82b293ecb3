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
from tailcut.builder.recipes import cuda, int8_static, onnx_export, qat_weights
from tailcut.builder.recipes.base import INT8, TREES, Result, Subject, Work, missing
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import BuildError, DoesNotApply, TailcutError
from tailcut.manifest import Manifest, resolve
from tailcut.models.runtimes.live import source_of
from tailcut.models.runtimes.torch_call import in_order

if TYPE_CHECKING:
    import torch

    from tailcut.builder.recipes.qat import Layer

NEEDS_TRAIN = "set build.train to a function that fine-tunes the module"
PARITY = 0.005
"""Mean difference of the exported graph from the trained module, as a share of the spread of its answers: integer
kernels round ties and sums otherwise, which moves single values by one step of the next layer."""

_SEED = 0
_CALIBRATION_BATCHES = 32
_BATCH_ROWS = 8
_TRAIN_HINT = "build.train is (module) -> None: it trains the module in place and returns nothing"


class Int8Qat:
    """INT8 weights and activations, the model fine-tuned to live with them."""

    name = "int8-qat"
    base = ("torch",)
    runtime = "onnxruntime"
    suffix = ".onnx"
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


def offer(why_not: str, refused_for_quality: Collection[str]) -> str:
    """Say that this recipe is the way on, where an INT8 variant lost too much; else ``why_not`` as it is.

    Args:
        why_not: of this recipe.
        refused_for_quality: variants that the gate refused for their quality.
    """
    lost = sorted((INT8 - {Int8Qat.name}) & set(refused_for_quality))
    if why_not != NEEDS_TRAIN or not lost:
        return why_not
    return f"{NEEDS_TRAIN}; offered because INT8 lost quality ({', '.join(lost)})"


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


def train_and_export(work: Work, train: Callable[[Any], None], bits: int) -> dict[str, Any]:
    """Write the quantised graph to ``work.path``; evidence of how.

    Args:
        train: fine-tunes the module in place.
        bits: of the weights, 8 or fewer.
    """
    import torch

    from tailcut.builder.recipes import qat

    module = _module(work)
    inputs = [tensor.name for tensor in work.manifest.deployment.model.inputs]
    rows = work.selection.take(min(cuda.COMPARED_ROWS, work.selection.rows))
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


def _export(work: Work, module: torch.nn.Module, layers: list[Layer], bits: int) -> dict[str, Any]:
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
        "layers_quantised": qat_weights.quantize(work.path, bits),
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
    _, run = cuda.answers(work)
    found = cuda.difference(trained, run(work.open_file(Path(work.path), Int8Qat.runtime)))
    spread = max(float(np.ptp(trained.astype(np.float64))), 1e-6)
    if not found["mean_abs"] <= PARITY * spread:
        raise BuildError(
            f"the exported INT8 graph differs from the trained module by {found['mean_abs']:.3g} on average, allowed "
            f"is {PARITY:g} of the spread of its answers, {spread:.3g}",
            hint="report the model's layers; int8-dynamic and openvino-int8 do not need this export",
        )
    return {**found, "spread": spread, "limit": PARITY * spread}
