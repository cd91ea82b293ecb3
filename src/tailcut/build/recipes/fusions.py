"""Transformer fusions: attention, skip connection with layer norm, and bias with GELU as one operator each.

onnxruntime fuses by pattern, and patterns depend on who exported the model: the torch.export based exporter's BERT
matches hardly any (2.13), the older TorchScript exporter's matches all. So both are tried; a candidate counts as fused
only where the number of fused operators says so, and it is kept only where it answers as the source does and is faster
here, in turns, by more than noise. onnxruntime fuses part of a plain export by itself when it opens it: the gain is
often nothing.
"""

from __future__ import annotations

import logging
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tailcut.build import parity
from tailcut.build.recipes import onnx_export
from tailcut.build.recipes.base import Work
from tailcut.errors import BuildError
from tailcut.runtimes import Runtime

ROUNDS = 9
_CALLS = 8
GAIN = 0.97
"""A fused model is kept where its median ratio of times is below this."""

_SKIPS = ("SkipLayerNormalization", "EmbedLayerNormalization")
OPSET = 17


def attention_layers(model: Any) -> int:
    """Count the attention layers of an onnx.ModelProto: a softmax whose result goes into a product."""
    graph = model.graph
    if not any(node.op_type == "LayerNormalization" for node in graph.node):
        return 0
    factors = {name for node in graph.node if node.op_type == "MatMul" for name in node.input}
    return sum(node.op_type == "Softmax" and node.output[0] in factors for node in graph.node)


def improve(work: Work, module: Any, answers: Callable[[Runtime], parity.Run]) -> dict[str, Any]:
    """Try fused forms of the model at ``work.path`` and replace the file by the one that is faster, if any.

    Args:
        work: the recipe's; ``work.path`` holds the checked export.
        module: the torch module that it was exported from.
        answers: turns an opened variant into what ``parity.check`` compares.

    Returns:
        evidence: status, the layers found, every candidate with its counts and times, and which one was kept.
    """
    import onnx

    layers = attention_layers(onnx.load(str(work.path)))
    if not layers:
        return {"status": "nothing to fuse", "layers": 0}
    heads, width = shape_of(module)
    if not heads:
        return {"status": "unfused", "layers": layers, "reason": "no part of the module says how many heads it has"}
    source = answers(work.open(work.base))

    def candidate(name: str, plain: Callable[[], Path]) -> dict[str, Any]:
        return _candidate(work, name, lambda file: fuse(plain(), file, heads, width), layers, source, answers)

    candidates = [
        candidate("exported", lambda: work.path),
        candidate("scripted", lambda: _scripted(work, module)),
    ]
    fused = {each["name"]: each["file"] for each in candidates if each["fused"]}
    timed = _race(work, {"plain": work.path, **fused}) if fused else {}
    kept = min(timed, key=lambda name: timed[name]["ratio"], default="plain")
    if kept != "plain" and timed[kept]["ratio"] < GAIN:
        fused[kept].replace(work.path)
    else:
        kept = "plain"
    return {
        "status": "unfused" if kept == "plain" else "fused",
        "layers": layers,
        "kept": kept,
        "candidates": [{name: value for name, value in each.items() if name != "file"} for each in candidates],
        "times": timed,
    }


def _candidate(
    work: Work,
    name: str,
    make: Callable[[Path], dict[str, int]],
    layers: int,
    source: parity.Run,
    answers: Callable[[Runtime], parity.Run],
) -> dict[str, Any]:
    """Fuse one export, count, and compare with the source; what fails is recorded, not raised."""
    file = work.folder / f"{work.path.stem}.{name}.fused.onnx"
    made: dict[str, Any] = {"name": name, "fused": False}
    try:
        made["operators"] = counts = make(file)
        if counts["Attention"] != layers or sum(counts[kind] for kind in _SKIPS) < 2 * layers:
            return made
        parity.check(source, answers(work.open_file(file, "onnxruntime")), work.selection, _outputs(work))
        return {**made, "fused": True, "file": file}
    except Exception as error:  # exporters and fusions raise whatever their passes raise
        return {**made, "failed": f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"}


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

    loud = logging.root.level
    logging.root.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # Level 1 leaves what depends on the machine to the session.
            model = optimizer.optimize_model(
                str(plain), model_type="bert", num_heads=heads, hidden_size=width, opt_level=1, use_gpu=False
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
            module,
            tuple(torch.from_numpy(rows[tensor.name]) for tensor in model.inputs),
            str(path),
            dynamo=False,
            input_names=[tensor.name for tensor in model.inputs],
            output_names=[tensor.name for tensor in model.outputs],
            dynamic_axes=free,
            opset_version=OPSET,
        )
    if path.stat().st_size > onnx_export.LARGEST_BYTES:
        raise BuildError(f"the model has {path.stat().st_size} bytes", hint="it is served unfused")
    return path


def _race(work: Work, files: Mapping[str, Path]) -> dict[str, dict[str, float]]:
    """Time single rows in turns: median milliseconds, and the median over rounds of the ratio to "plain"."""
    runtimes = {name: work.open_file(file, "onnxruntime") for name, file in files.items()}
    output = _outputs(work)[0].name
    rounds: dict[str, list[float]] = {name: [] for name in files}
    for turn in range(ROUNDS + 1):
        names = list(files)[turn % len(files) :] + list(files)[: turn % len(files)]
        for name in names:
            taken = [_timed(runtimes[name], work, place, output) for place in range(_CALLS)]
            if turn:  # the first turn warms up
                rounds[name].append(statistics.median(taken))
    return {
        name: {
            "ms": statistics.median(times),
            "ratio": statistics.median(mine / plain for mine, plain in zip(times, rounds["plain"], strict=True)),
        }
        for name, times in rounds.items()
    }


def _timed(runtime: Runtime, work: Work, place: int, output: str) -> float:
    inputs = work.selection.take(1, place)
    begun = time.perf_counter()
    runtime.run(inputs, [output])
    return (time.perf_counter() - begun) * 1000.0
