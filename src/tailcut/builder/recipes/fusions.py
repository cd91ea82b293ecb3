"""Transformer fusions: attention, skip connection with layer norm, and bias with GELU as one operator each.

onnxruntime fuses by pattern, and patterns depend on who exported the model: the torch.export based exporter's BERT
matches hardly any (2.13), the older TorchScript exporter's matches all. So both are tried; a candidate counts as fused
only where the number of fused operators says so, and it is kept only where it answers as the source does and is faster
here, in turns, by more than noise. onnxruntime fuses part of a plain export by itself when it opens it: the gain is
often nothing. The fusion of skip connections with layer norms loses on many processors, so every form is tried with
those apart, too (see ``kernels``).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tailcut.builder.quality import export_check
from tailcut.builder.recipes import kernels, onnx_export, racing
from tailcut.builder.recipes.base import Work
from tailcut.errors import BuildError
from tailcut.models.runtimes import Runtime

_SKIPS = ("SkipLayerNormalization", "EmbedLayerNormalization")
_APART = ", norms apart"
OPSET = 17


def attention_layers(model: Any) -> int:
    """Count the attention layers of an onnx.ModelProto: a softmax whose result goes into a product."""
    graph = model.graph
    if not any(node.op_type == "LayerNormalization" for node in graph.node):
        return 0
    factors = {name for node in graph.node if node.op_type == "MatMul" for name in node.input}
    return sum(node.op_type == "Softmax" and node.output[0] in factors for node in graph.node)


def improve(work: Work, module: Any, answers: Callable[[Runtime], export_check.Run]) -> dict[str, Any]:
    """Try fused forms of the model at ``work.path`` and replace the file by the one that is faster, if any.

    Args:
        work: the recipe's; ``work.path`` holds the checked export.
        module: the torch module that it was exported from.
        answers: turns an opened variant into what ``export_check.check`` compares.

    Returns:
        evidence: status, the layers found, every candidate with its counts, the times of the forms that were raced, and
        which one was kept.
    """
    import onnx

    layers = attention_layers(onnx.load(str(work.path)))
    if not layers:
        return {"status": "nothing to fuse", "layers": 0}
    source = answers(work.open(work.base))
    heads, width = shape_of(module)

    def usable(file: Path) -> None:
        export_check.check(source, answers(work.open_file(file, "onnxruntime")), work.selection, _outputs(work))

    candidates: list[dict[str, Any]] = []
    if heads:
        plain = {"exported": lambda: work.path, "scripted": lambda: _scripted(work, module)}
        candidates = [_fused(work, name, make, layers, (heads, width), usable) for name, make in plain.items()]
    forms = {"plain": work.path, **{each["name"]: each["file"] for each in candidates if each["fused"]}}
    undone = [_apart(work, name, file, usable) for name, file in forms.items()]
    forms |= {each["name"]: each["file"] for each in undone if "file" in each}
    timed = racing.race(work, forms) if len(forms) > 1 else {}
    kept = racing.fastest(timed) if timed else "plain"
    if kept != "plain":
        forms[kept].replace(work.path)
    return {
        "status": "unfused" if kept in {"plain", f"plain{_APART}"} else "fused",
        "layers": layers,
        "kept": kept,
        **({} if heads else {"reason": "no part of the module gives its number of attention heads"}),
        "candidates": [
            {name: value for name, value in each.items() if name != "file"} for each in (*candidates, *undone)
        ],
        "times": timed,
    }


def _fused(
    work: Work,
    name: str,
    make: Callable[[], Path],
    layers: int,
    shape: tuple[int, int],
    usable: Callable[[Path], None],
) -> dict[str, Any]:
    """Fuse one export, count, and compare with the source; what fails is recorded, not raised."""
    file = work.folder / f"{work.path.stem}.{name}.fused.onnx"
    made: dict[str, Any] = {"name": name, "fused": False}
    try:
        made["operators"] = counts = fuse(make(), file, *shape)
        if counts["Attention"] != layers or sum(counts[kind] for kind in _SKIPS) < 2 * layers:
            return made
        usable(file)
        return {**made, "fused": True, "file": file}
    except Exception as error:  # exporters and fusions raise whatever their passes raise
        return {**made, "failed": _text(error)}


def _apart(work: Work, name: str, form: Path, usable: Callable[[Path], None]) -> dict[str, Any]:
    """Undo the fusion of skip connections with layer norms in one form."""
    import onnx

    made: dict[str, Any] = {"name": f"{name}{_APART}"}
    file = work.folder / f"{form.stem}.apart.onnx"
    try:
        model = onnx.load(str(form))
        made["norms"] = kernels.norms_apart(model)
        if not made["norms"]:
            return made
        onnx.save(model, str(file))
        usable(file)
        return {**made, "file": file}
    except Exception as error:  # a session refuses what its own checks refuse
        return {**made, "failed": _text(error)}


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def _outputs(work: Work) -> Any:
    return work.manifest.deployment.model.outputs


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


def fuse(plain: Path, file: Path, heads: int, width: int) -> dict[str, int]:
    """Write ``plain`` with onnxruntime's fusions for BERT-like encoders, and count the fused operators."""
    import onnx
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
    counts = {name: int(count) for name, count in model.get_fused_operator_statistics().items()}
    onnx_export.strip(model.model)
    onnx.save(model.model, str(file))
    return {"Attention": 0, **dict.fromkeys(_SKIPS, 0), **{name: count for name, count in counts.items() if count}}


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
        raise BuildError(
            f"the fused model has {path.stat().st_size / 2**30:.1f} GiB, one ONNX file holds up to 2 GiB",
            hint="nothing to do: the variant is served without fused operators, a little slower",
        )
    return path
