"""The same graph by other operators, where those have the faster kernels.

onnxruntime fuses a skip connection with its layer norm, and a bias with its GELU. Neither pays (1.31):
SkipLayerNormalization is scalar code, slower than Sum and LayerNormalization, which is vectorised (onnxruntime pull
request 31973); and a bias that a GELU has taken is one that the 8-bit product before it cannot add while it converts
its sums to float.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tailcut.builder.recipes.graph_names import free, name_nodes, taken

MICROSOFT = "com.microsoft"
LEAST_OPSET = 17
"""From which LayerNormalization is an operator."""

_GELUS = ("Gelu", "BiasGelu", "FastGelu")
_EPSILON = 1e-12
"""SkipLayerNormalization's own default."""

_MEAN, _DEVIATION, _SUM = 1, 2, 3
"""Places of SkipLayerNormalization's optional outputs."""

Rewrite = Callable[[Any, int], "list[Any] | None"]


def apart(source: Path, target: Path) -> dict[str, int]:
    """Write ``source`` with skip connections apart from layer norms and biases apart from GELUs; the sums are the same.

    Returns:
        how many of each were changed.
    """
    import onnx

    model = onnx.load(str(source))
    counts = {"norms": norms_apart(model), "gelus": gelus_apart(model)}
    onnx.save(model, str(target))
    return counts


def approximate(source: Path, target: Path) -> int:
    """Write ``source`` with every exact GELU replaced by its tanh approximation; return how many there were.

    0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), Hendrycks and Gimpel 2016 (https://arxiv.org/abs/1606.08415):
    at most 5e-4 from the exact one, and half its time. Nothing is written where there is none.
    """
    import onnx

    model = onnx.load(str(source))
    _name_gelus(model)
    exact = sum(_is_exact(node) for node in model.graph.node)
    if exact:
        gelus_apart(model, fast=True)
        onnx.save(model, str(target))
    return exact


def norms_apart(model: Any) -> int:
    """Take skip connections out of layer norms, in place; return how many.

    The addition becomes a Sum, which onnxruntime does not fuse again when it opens the model.
    """
    import onnx

    if max((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), default=0) < LEAST_OPSET:
        return 0
    names_taken = taken(model.graph)
    constants = {each.name for each in model.graph.initializer}
    normed = {node.input[0] for node in model.graph.node if node.op_type == "LayerNormalization"}
    found = 0
    for node in model.graph.node:
        if node.op_type == "Add" and node.output[0] in normed and not constants & set(node.input):
            node.op_type = "Sum"
            found += 1

    def rewrite(node: Any, place: int) -> list[Any] | None:
        outputs = [*node.output, "", "", ""]
        if node.op_type != "SkipLayerNormalization" or outputs[_MEAN] or outputs[_DEVIATION]:
            return None
        first, skip, scale = node.input[:3]
        shift, bias = [*node.input[3:5], "", ""][:2]
        made, total = [], outputs[_SUM] or free(f"{outputs[0]}.sum", names_taken)
        if bias:
            biased = free(f"{outputs[0]}.biased", names_taken)
            made.append(onnx.helper.make_node("Add", [first, bias], [biased], f"norm_{place}_bias"))
            first = biased
        epsilon = next((each.f for each in node.attribute if each.name == "epsilon"), _EPSILON)
        names = [total, scale, *([shift] if shift else [])]
        return [
            *made,
            onnx.helper.make_node("Sum", [first, skip], [total], f"norm_{place}_sum"),
            onnx.helper.make_node("LayerNormalization", names, [outputs[0]], f"norm_{place}", axis=-1, epsilon=epsilon),
        ]

    return found + _rewritten(model, rewrite)


def gelus_apart(model: Any, *, fast: bool = False) -> int:
    """Take biases out of GELUs, in place; return how many operators changed.

    Args:
        fast: replace exact ones by the tanh approximation as well.
    """
    import onnx

    names = taken(model.graph)

    def rewrite(node: Any, place: int) -> list[Any] | None:
        biased = node.op_type in _GELUS and len(node.input) == 2 and bool(node.input[1])
        if node.op_type not in _GELUS or not (biased or (fast and _is_exact(node))):
            return None
        kind = "FastGelu" if fast or node.op_type == "FastGelu" else "Gelu"
        value, made = node.input[0], []
        if biased:
            value = free(f"{node.output[0]}.biased", names)
            made.append(onnx.helper.make_node("Add", list(node.input), [value], f"gelu_{place}_bias"))
        return [*made, onnx.helper.make_node(kind, [value], list(node.output), f"gelu_{place}", domain=MICROSOFT)]

    found = _rewritten(model, rewrite)
    if found and MICROSOFT not in {each.domain for each in model.opset_import}:
        model.opset_import.append(onnx.helper.make_opsetid(MICROSOFT, 1))
    return found


def _is_exact(node: Any) -> bool:
    if node.op_type not in {"Gelu", "BiasGelu"}:
        return False
    return all(each.s != b"tanh" for each in node.attribute if each.name == "approximate")


def _name_gelus(model: Any) -> None:
    """Recognise GELUs that are written out with Erf, in place."""
    from tailcut.models.runtimes.telemetry import keep_off

    keep_off()
    import onnxruntime.transformers.optimizer  # noqa: F401  (its modules find each other once it is imported)
    from onnxruntime.transformers.fusion_gelu import FusionGelu
    from onnxruntime.transformers.onnx_model import OnnxModel

    wrapped = OnnxModel(model)
    FusionGelu(wrapped).apply()
    wrapped.topological_sort()


def _rewritten(model: Any, rewrite: Rewrite) -> int:
    """Replace the nodes that ``rewrite`` gives others for, in place."""
    graph, found = model.graph, 0

    def nodes() -> Iterator[Any]:
        nonlocal found
        for place, node in enumerate(list(graph.node)):
            others = rewrite(node, place)
            found += others is not None
            yield from [node] if others is None else others

    changed = list(nodes())
    if found:
        kept = [type(node).FromString(node.SerializeToString()) for node in changed]
        del graph.node[:]
        graph.node.extend(kept)
        name_nodes(graph)
        # Shapes of values that are gone, or have another source, would contradict the graph.
        del graph.value_info[:]
    return found
