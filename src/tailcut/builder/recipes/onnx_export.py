"""Export to ONNX: the torch.export based exporter, with a dynamic batch and nothing of this machine in the file.

Pitfalls that it guards against: the exporter bakes in a dimension whose example has size 0 or 1 (pytorch issue
148629), drops dynamic dimensions silently (pytorch issues 149065, 148886), and by default writes weights to a second
file. So the example has two rows, the result's dimensions are checked, and weights stay inside.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.recipes.graph_names import rename
from tailcut.errors import BuildError, TailcutError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.torch_call import in_order

if TYPE_CHECKING:
    import torch

EXAMPLE_ROWS = 2
LARGEST_BYTES = 1_900_000_000
"""Protocol buffers end at 2 GiB; larger models need their weights in a second file, which the registry cannot hold."""

_INPUT, _OUTPUT = "tailcut.input.", "tailcut.output."
_MODULE = "model"
"""Of the module inside ``ordered``."""

_OPERATOR = re.compile(r"OpOverload\(op='([\w.:]+)'|torch\.ops\.([\w.]+?)(?:\.default)?[ )(]")
_FIXED = re.compile(
    r"You marked L\['given'\]\[(\d+)\]\.size\(\)\[(\d+)\] as dynamic but your code specialized it .*?\((\d+)\)"
)
_SHAPE_HINT = "derive shapes from the input tensors (x.shape[0], x.reshape(-1, ...)), not from Python numbers"
_PLACE = re.compile(r'File "([^"]+)", line (\d+), in (\w+)(?:\n\s+(.+))?')


def export(
    module: torch.nn.Module,
    holdout: Holdout,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
    path: Path,
) -> dict[str, object]:
    """Export ``module`` and write one .onnx file.

    Returns:
        opset, nodes, and the example's rows.

    Raises:
        BuildError: the model cannot be exported (names the operator and the line), is too large, or lost its batch.
    """
    import torch

    size_bytes = sum(value.numel() * value.element_size() for value in module.state_dict().values())
    if size_bytes > LARGEST_BYTES:
        raise BuildError(
            f"the model has {size_bytes / 2**30:.1f} GiB of weights, one ONNX file holds up to 2 GiB",
            hint="the torch variant is built and served without it; a smaller model can be exported",
        )
    rows = holdout.take(EXAMPLE_ROWS)
    example = tuple(torch.from_numpy(rows[tensor.name]) for tensor in inputs)
    program = _capture(module, example, inputs)
    try:
        made = torch.onnx.export(
            program,
            dynamo=True,
            input_names=[f"{_INPUT}{place}" for place in range(len(inputs))],
            output_names=[f"{_OUTPUT}{place}" for place in range(len(outputs))],
            external_data=False,
            optimize=True,
            verbose=False,
        )
    except Exception as error:
        raise _refused(error, program, inputs) from error
    assert made is not None
    return _write(_renamed(made.model_proto, inputs, outputs), inputs, outputs, path)


def copy(
    source: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], path: Path
) -> dict[str, object]:
    """Take an .onnx file as it is, where that is the source model.

    Raises:
        BuildError: unreadable, with weights in other files, or with a fixed batch.
    """
    import onnx

    try:
        model = onnx.load(str(source), load_external_data=False)
        onnx.checker.check_model(model)
    except Exception as error:
        raise BuildError(
            f"model.source {source} is not a valid ONNX file: {str(error).strip().partition(chr(10))[0]}",
            hint="check the path, and export the model again",
        ) from error
    if any(each.data_location == onnx.TensorProto.EXTERNAL for each in model.graph.initializer):
        raise BuildError(
            f"model.source {source} keeps weights in other files",
            hint="save it as one file: onnx.save(onnx.load(path), path)",
        )
    return _write(model, inputs, outputs, path)


def _capture(module: torch.nn.Module, example: tuple[Any, ...], inputs: tuple[TensorSpec, ...]) -> Any:
    """Trace the module with torch.export; every -1 of the manifest becomes a symbolic dimension."""
    import torch

    free = tuple(
        {place: torch.export.Dim.DYNAMIC for place, size in enumerate(tensor.shape) if size == -1} for tensor in inputs
    )
    try:
        called = ordered(module, [tensor.name for tensor in inputs])
        return torch.export.export(called, example, dynamic_shapes=(free,), strict=False)
    except TailcutError:
        raise
    except Exception as error:
        raise _refused(error, None, inputs) from error


def ordered(module: torch.nn.Module, names: list[str]) -> torch.nn.Module:
    """Return a module that takes the inputs ``names`` in their order, whatever forward calls its arguments.

    torch.export names its placeholders after forward's arguments and takes one for a submodule or buffer of the same
    name ("references nonexistent attribute"). The arguments here have names of their own, and the submodule as well.
    """
    import torch

    call = in_order(module, names)

    class Ordered(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.add_module(_MODULE, module)

        def forward(self, *given: torch.Tensor) -> Any:
            return call(*given)

    return Ordered().eval()


def _write(
    model: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], path: Path
) -> dict[str, object]:
    """Check the batch, leave out what names this machine's files, and write."""
    import onnx

    _check_batch(model.graph, inputs, outputs)
    strip(model)
    onnx.save(model, str(path))
    return {
        "opset": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "nodes": len(model.graph.node),
        "example_rows": EXAMPLE_ROWS,
    }


def _renamed(model: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> Any:
    """Give inputs and outputs their names; values inside that have one of these make room.

    The exporter names values after operators and parameters (a model with an embedding has a value "embedding") and
    does not see that an input or output is called the same.
    """
    own = {f"{_INPUT}{place}": tensor.name for place, tensor in enumerate(inputs)}
    own |= {f"{_OUTPUT}{place}": tensor.name for place, tensor in enumerate(outputs)}
    taken = set(own.values())

    def new(name: str) -> str:
        if name not in own:
            inside = name.removeprefix(f"{_MODULE}.")
            while inside in taken:
                inside += ".inside"
            taken.add(inside)
            own[name] = inside
        return own[name]

    rename(model.graph, new)
    return model


def _check_batch(graph: Any, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...]) -> None:
    wanted = {tensor.name: tensor for tensor in (*inputs, *outputs)}
    for value in (*graph.input, *graph.output):
        tensor = wanted.get(value.name)
        if tensor is None:
            continue  # opening the session names what is missing or extra
        dimensions = value.type.tensor_type.shape.dim
        for place, size in enumerate(tensor.shape[: len(dimensions)]):
            if size == -1 and dimensions[place].HasField("dim_value"):
                raise BuildError(
                    f"dimension {place} of {value.name!r} is fixed to {dimensions[place].dim_value} in the ONNX model, "
                    "but free in the manifest",
                    hint=_SHAPE_HINT,
                )


def strip(model: Any) -> None:
    """Drop the exporter's stack traces: they hold paths of this machine and change with every build."""
    graphs = [model.graph, *model.functions]
    for graph in graphs:
        for item in (
            graph,
            *graph.node,
            *graph.value_info,
            *getattr(graph, "input", ()),
            *getattr(graph, "output", ()),
        ):
            if hasattr(item, "metadata_props"):
                del item.metadata_props[:]
        for node in graph.node:
            node.doc_string = ""
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
    del model.metadata_props[:]


def _refused(error: Exception, program: Any, inputs: tuple[TensorSpec, ...]) -> BuildError:
    """Turn an exporter's error into one that names the operator and the line of the model's code."""
    chain = _chain(error)
    if fixed := _FIXED.search(chain[0]):
        number, place, size = fixed.groups()
        name = inputs[int(number)].name
        return BuildError(
            f"the model cannot be exported to ONNX: its Python code fixes dimension {place} of {name!r} to {size}, "
            "the size of the example",
            hint=_SHAPE_HINT,
        )
    operators = [match.group(1) or match.group(2) for text in chain for match in _OPERATOR.finditer(text)]
    text = "\n".join(chain)
    where = _place(text) or _place_of(operators[0] if operators else "", program)
    reason = chain[-1].strip().partition("\n")[0]
    what = f"operator {operators[0]}" if operators else "its Python code"
    return BuildError(
        f"the model cannot be exported to ONNX: {what}{f' at {where}' if where else ''}: {reason}",
        hint="write this part with other torch operators (torch.where for an `if` on a value), "
        "or serve the torch variant",
    )


def _chain(error: BaseException) -> list[str]:
    """Texts of an error and of its causes, outermost first."""
    texts: list[str] = []
    current: BaseException | None = error
    while current is not None:
        texts.append(re.sub(r"\x1b\[\d+m", "", str(current)) or type(current).__name__)
        current = current.__cause__ or current.__context__
    return texts


def _place(text: str) -> str:
    found = [match for match in _PLACE.finditer(text) if "/torch/" not in match.group(1)]
    if not found:
        return ""
    file, line, function, code = found[-1].groups()
    return f"{Path(file).name}:{line} in {function}" + (f" ({code.strip()})" if code else "")


def _place_of(operator: str, program: Any) -> str:
    """Find the line that called an operator in the traced program; decomposition keeps the last part of its name."""
    name = operator.rpartition(".")[2]
    if not name or program is None:
        return ""
    nodes = [node for node in program.graph.nodes if name in str(node.target) or name in node.name]
    return _place(nodes[0].meta.get("stack_trace") or "") if nodes else ""
