"""Recipe "onnx": the source model exported, checked against it at several batch sizes."""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.quality import export_check
from tailcut.builder.recipes import kernels, onnx_export, trees
from tailcut.builder.recipes.base import Precision, Recipe, Result, Subject, Work, missing
from tailcut.builder.speed.interleaving import take_turns
from tailcut.common.runtime_spec import spec_of
from tailcut.common.tensors import Arrays
from tailcut.errors import BuildError
from tailcut.models.runtimes import Runtime
from tailcut.models.runtimes.live import source_of
from tailcut.registry.evidence import RecipeEvidence


class Onnx(Recipe):
    """The source model in onnxruntime: a torch module exported, a model on tables by ``recipes.trees``."""

    name = "onnx"
    base = ("torch", "sklearn", "lightgbm", "xgboost")
    runtime = "onnxruntime"
    suffix = ".onnx"
    precision: Precision = "portable"
    summary = "exported to ONNX, fp32, graph-optimised by onnxruntime"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """An ONNX source is this variant already."""
        if subject.kind == "onnx":
            return "the source is already an ONNX file"
        if subject.kind in trees.KINDS:
            return trees.why_not(subject, here)
        torch = missing(here, "torch", "onnx", "onnxscript", extra="build")
        if subject.kind or not torch:
            return torch
        tables = trees.why_not(msgspec.structs.replace(subject, kind="sklearn"), here)
        return f"depends on the model: PyTorch {torch}; scikit-learn, LightGBM or XGBoost {tables or 'applies'}"

    def make(self, work: Work) -> Result:
        """Export and compare with the source.

        Raises:
            BuildError: it cannot be exported, or gives other answers.
        """
        if spec_of(work.base.runtime).tables:
            return trees.make(work)
        from tailcut.builder.records import openable
        from tailcut.models.runtimes.torch import load_module

        deployment = work.manifest.deployment
        model = deployment.model
        source = source_of(work.manifest, work.base.runtime)
        assert source is not None
        module = load_module(openable(work.base, deployment), source)
        found = onnx_export.export(module, work.selection, model.inputs, model.outputs, work.path)
        names = [tensor.name for tensor in model.outputs]

        def run(runtime: Runtime) -> Callable[[Arrays], Arrays]:
            return lambda inputs: runtime.run(inputs, names)

        compared = export_check.check(
            run(work.open(work.base)),
            run(work.open_file(work.path, self.runtime)),
            work.selection,
            model.outputs,
        )
        found |= {"parity": compared, "fusions": try_fusions(work, module, run)}
        return Result(found, evidence=RecipeEvidence(exact=True))


# -- Fusions -----------------------------------------------------------------------------------------------------------


# Transformer fusions: attention, and bias with GELU, as one operator each. onnxruntime fuses by pattern, and patterns
# depend on who exported the model: the torch.export based exporter's BERT matches hardly any (2.13), the older
# TorchScript exporter's matches all. Skip connections stay apart from layer norms (see ``kernels``). The fused form
# counts only where every attention layer was found in it. It is kept where it answers as the source does and is faster
# here, in turns, by more than noise; where it cannot be made, the plain export with its norms apart takes its place.

OPSET = 17
ROUNDS = 9
GAIN = 0.97
"""A form replaces the plain one where its median ratio of times is below this."""

_CALLS = 8
_SKIPS = ("SkipLayerNormalization", "EmbedLayerNormalization")


def attention_layers(model: Any) -> int:
    """Count the attention layers of an onnx.ModelProto: a softmax whose result goes into a product."""
    graph = model.graph
    if not any(node.op_type == "LayerNormalization" for node in graph.node):
        return 0
    factors = {name for node in graph.node if node.op_type == "MatMul" for name in node.input}
    return sum(node.op_type == "Softmax" and node.output[0] in factors for node in graph.node)


def try_fusions(work: Work, module: Any, answers: Callable[[Runtime], export_check.Run]) -> dict[str, object]:
    """Replace the file at ``work.path`` by a faster form of the model, if there is one.

    Args:
        work: the recipe's; ``work.path`` holds the checked export.
        module: the torch module that it was exported from.
        answers: turns an opened variant into what ``export_check.check`` compares.

    Returns:
        evidence: status, the layers found, the form that was tried, its time as a share of the plain one's, and why
        other forms could not be made.
    """
    import onnx

    layers = attention_layers(onnx.load(str(work.path)))
    if not layers:
        return {"status": "nothing to fuse", "layers": 0}
    source, outputs = answers(work.open(work.base)), work.manifest.deployment.model.outputs
    forms: dict[str, Callable[[], Any]] = {
        "fused": lambda: fused(work, module, layers),
        "norms apart": lambda: onnx.load(str(work.path)),
    }
    failed: dict[str, str] = {}
    for form, make in forms.items():
        file = work.folder / f"{work.path.stem}.{form.replace(' ', '-')}.onnx"
        try:
            model = make()
            norms = kernels.norms_apart(model)
            onnx.save(model, str(file))
            export_check.check(source, answers(work.open_file(file, "onnxruntime")), work.selection, outputs)
        except Exception as error:  # exporters, fusions and sessions raise whatever their passes raise
            failed[form] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            continue
        ratio = time_ratio(work, file)
        kept = form if ratio < GAIN else "plain"
        if kept != "plain":
            file.replace(work.path)
        status = "fused" if kept == "fused" else "unfused"
        return {"layers": layers, "failed": failed, "status": status, "kept": kept, "norms": norms, "ratio": ratio}
    return {"layers": layers, "failed": failed, "status": "unfused", "kept": "plain"}


def fused(work: Work, module: Any, layers: int) -> Any:
    """Export with the TorchScript based exporter, and fuse.

    Raises:
        BuildError: the module does not tell its heads, a layer was not found, or the file is too large.
    """
    heads, width = shape_of(module)
    if not heads:
        raise BuildError("no part of the module gives its number of attention heads")
    model, counts = fuse(_scripted(work, module), heads, width)
    if counts.get("Attention", 0) != layers or sum(counts.get(kind, 0) for kind in _SKIPS) < 2 * layers:
        raise BuildError(f"of {layers} attention layers the operators found are {counts}")
    onnx_export.strip(model)
    return model


def shape_of(module: Any) -> tuple[int, int]:
    """Find attention heads and width in the attributes of a torch module's parts; zeros where none has them.

    The fusion can read them from some graphs only, and leaves attention alone in the others.
    """
    for part in module.modules():
        found = getattr(part, "config", part)
        heads = getattr(found, "num_attention_heads", 0) or getattr(found, "num_heads", 0)
        width = getattr(found, "hidden_size", 0) or getattr(found, "embed_dim", 0)
        if isinstance(heads, int) and isinstance(width, int) and heads and width:
            return heads, width
    return 0, 0


def fuse(plain: Path, heads: int, width: int) -> tuple[Any, dict[str, int]]:
    """Return ``plain`` with onnxruntime's fusions for BERT-like encoders, and how many operators were fused."""
    from onnxruntime.transformers import optimizer
    from onnxruntime.transformers.fusion_options import FusionOptions

    options = FusionOptions("bert")
    # Its default counts the ones of a mask and takes them for a length: wrong where a mask has holes, or padding first.
    options.use_raw_attention_mask()
    loud = logging.root.level
    logging.root.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Level 1 leaves what depends on the machine to the session.
            model = optimizer.optimize_model(
                str(plain),
                model_type="bert",
                num_heads=heads,
                hidden_size=width,
                optimization_options=options,
                opt_level=1,
                use_gpu=False,
            )
    finally:
        logging.root.setLevel(loud)
    counts = {name: int(count) for name, count in model.get_fused_operator_statistics().items() if count}
    return model.model, counts


def _scripted(work: Work, module: Any) -> Path:
    """Export with the TorchScript based exporter."""
    import torch

    model = work.manifest.deployment.model
    rows = work.selection.take(onnx_export.EXAMPLE_ROWS)
    path = work.folder / f"{work.path.stem}.scripted.onnx"
    free = {
        tensor.name: {place: f"{tensor.name}.{place}" for place, size in enumerate(tensor.shape) if size == -1}
        for tensor in (*model.inputs, *model.outputs)
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated, and traces
        torch.onnx.export(
            onnx_export.ordered(module, [tensor.name for tensor in model.inputs]),
            tuple(torch.from_numpy(rows[tensor.name]) for tensor in model.inputs),
            str(path),
            dynamo=False,
            input_names=[tensor.name for tensor in model.inputs],
            output_names=[tensor.name for tensor in model.outputs],
            dynamic_axes=free,
            opset_version=OPSET,
        )
    if path.stat().st_size > onnx_export.LARGEST_BYTES:
        raise BuildError(f"the model has {path.stat().st_size / 2**30:.1f} GiB, one ONNX file holds up to 2 GiB")
    return path


def time_ratio(work: Work, file: Path) -> float:
    """Time a file beside the one at ``work.path``, in turns, on single rows with one thread; the rounds' median."""
    plain, other = (work.open_file(each, "onnxruntime") for each in (work.path, file))
    blocks = {each: partial(_block, each, work) for each in (plain, other)}
    taken_ms = take_turns(blocks, least=ROUNDS + 1, most=ROUNDS + 1, budget_s=0.0)
    for runtime in blocks:
        runtime.close()
    ratios = [mine / theirs for mine, theirs in zip(taken_ms[other], taken_ms[plain], strict=True)]
    return statistics.median(ratios[1:])  # the first round warms up


def _block(runtime: Runtime, work: Work) -> float:
    return statistics.median(timed(runtime, work, place) for place in range(_CALLS))


def timed(runtime: Runtime, work: Work, place: int) -> float:
    """Milliseconds of one call with the row at ``place``."""
    inputs = work.selection.take(1, place)
    begun_s = time.perf_counter()
    runtime.run(inputs, [work.manifest.deployment.judged])
    return (time.perf_counter() - begun_s) * 1000.0
