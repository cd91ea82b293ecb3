"""The bounds of a source model, whatever its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from tailcut.builder.bounds import categories, indices, lengths, ranges
from tailcut.builder.bounds.indices import Index, Seen
from tailcut.builder.bounds.trials import MOST_COLUMNS, OutOfTime, Trials
from tailcut.builder.objects import is_module
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Array, Arrays
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.torch_call import in_order


class FoundBounds(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds and table sizes of a source model.

    Attributes:
        bounds: that it proves, in no particular order; enforced for every variant of the version.
        sizes: of tables in the model, in ascending order; values around them are tried. Models of tables have none.
    """

    bounds: list[Bound] = []
    sizes: list[int] = []


def of_source(
    model: Any,
    call: Callable[[Arrays], Arrays],
    inputs: Sequence[TensorSpec],
    rows: Arrays,
    *,
    path: Path | None = None,
    strict: bool = False,
) -> FoundBounds:
    """Return the limits of the inputs that the source model proves by itself, and the sizes of its tables.

    Args:
        model: the user's object (a nn.Module, an estimator, a booster); None for a file or folder.
        call: runs the user's object as the user calls it, on CPUs: input arrays by name -> output arrays by name.
            Raises where the object raises.
        inputs: the tensors of ``model.inputs``.
        rows: a few holdout rows, three for instance; the first and the last serve as examples.
        path: of an .onnx file or a Hugging Face folder, where there is no ``model``.
        strict: raise what goes wrong in the analysis itself, for tests.

    Returns:
        no bounds where the model proves none, cannot be analysed or does not answer the rows.
    """
    trials = Trials(call, inputs, rows)
    sizes: list[int] = []
    try:
        seen = _seen(model, trials, path)
        sizes = sorted(seen.sizes | seen.lengths) if seen is not None else []
        if not trials.answers(trials.rows):
            return FoundBounds(sizes=sizes)
        if seen is None:
            return FoundBounds(bounds=_in_time(_of_columns(model, trials)))
        proven = chain(indices.bounds_of(seen.indices, trials), lengths.bounds_of(seen.lengths, trials))
        return FoundBounds(bounds=_in_time(proven), sizes=sizes)
    except Exception:
        # Bounds are optional: without them serving refuses less, and the trials at the edges still compare variants.
        if strict:
            raise
        return FoundBounds(sizes=sizes)


def _in_time(found: Iterator[Bound]) -> list[Bound]:
    """Return the bounds that are proven before there is no time left for trials."""
    bounds: list[Bound] = []
    with suppress(OutOfTime):
        for bound in found:
            bounds.append(bound)  # noqa: PERF402  # a list made in one call would be lost with the exception
    return bounds


def _seen(model: Any, trials: Trials, path: Path | None) -> Seen | None:
    """Return the indices and tables of a torch module, an .onnx file or a Hugging Face folder; None of other kinds."""
    if is_module(model):
        return _seen_in_run(model, trials)
    if path is not None and path.suffix == ".onnx":
        return _seen_in_graph(path, trials)
    if path is not None and path.is_dir():
        from tailcut.models.runtimes import huggingface

        return _seen_in_run(huggingface.module(path, tuple(tensor.name for tensor in trials.inputs)), trials)
    return None


# -- Models of tables --------------------------------------------------------------------------------------------------


_FEW_COLUMNS = 3
"""Columns that are tried of an estimator without steps: it looks at the table as a whole."""


def _of_columns(model: Any, trials: Trials) -> Iterator[Bound]:
    """Yield the values that the model's encoders know, and the limits of its numbers.

    Args:
        model: the user's object, for the categories of the encoders inside it.
        trials: of that object.
    """
    lists = categories.known(model)
    # Code of the user's may bring other values to an encoder than those that come in: "A" as "a".
    unchanged = not categories.has_own_code(model)
    for tensor in trials.inputs:
        closed = categories.closed(trials, tensor, lists)
        if unchanged:
            yield from categories.bounds_of(trials, tensor, closed, lists)
        others = [place for place in range(trials.columns(tensor)) if place not in closed]
        # Columns may go different ways in a pipeline, and in code of the user's.
        apart = hasattr(model, "steps") or not unchanged
        yield from ranges.bounds_of(trials, tensor, others, MOST_COLUMNS if apart else _FEW_COLUMNS)


# -- Torch modules -----------------------------------------------------------------------------------------------------


# Indices of a torch module: one run on a few holdout rows, with every input value followed.


def _seen_in_run(module: Any, trials: Trials) -> Seen:
    """Return what a run of the module on the trials' rows shows; empty where the module cannot be run so."""
    import torch

    from tailcut.builder.bounds.tracking import OneHot, Tracking

    named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    module.eval()
    call = in_order(module, [tensor.name for tensor in trials.inputs])
    free = any(-1 in tensor.shape[1:] for tensor in trials.inputs)
    tracking = Tracking(named, free=free, rows=trials.count)
    with torch.inference_mode():
        tensors = []
        for tensor in trials.inputs:
            tensors.append(torch.from_numpy(np.array(trials.rows[tensor.name])))
            tracking.follow(tensor.name, tensors[-1])
        try:
            with tracking, OneHot(tracking):
                call(*tensors)
        except Exception:
            # The user's code, on tensors that are followed: what does not run so is not analysed.
            return Seen()
    return tracking.seen


# -- ONNX graphs -------------------------------------------------------------------------------------------------------


# Indices of an ONNX graph: which inputs reach a table over operators that only move values. The part of the graph that
# makes an index is run by onnx's reference evaluator on column numbers instead of values, so that it tells by itself
# which column ends where.

_MOVES = frozenset(
    {
        "Cast",
        "Concat",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "Reshape",
        "Slice",
        "Split",
        "Squeeze",
        "Tile",
        "Transpose",
        "Unsqueeze",
    }
)
"""Operators whose result holds values of their first input (Concat: of all), moved or repeated."""

_SAME_SIZE = frozenset({"Cast", "DequantizeLinear", "Identity"})
_SHAPES = frozenset({"Shape", "Size"})

_COLUMN = 2**40
"""Column numbers begin here, so that no constant of the graph looks like one. float64 holds them exactly."""


def _seen_in_graph(path: Path, trials: Trials) -> Seen:
    """Return what the graph of an .onnx file shows; empty where it is no ONNX model."""
    import onnx
    from google.protobuf.message import DecodeError

    try:
        graph = OnnxGraph(onnx.load(str(path), load_external_data=False))
    except DecodeError:
        return Seen()
    found = Seen()
    for table in graph.tables():
        found.sizes.add(table.size)
        columns = graph.columns(table.indexed_by, trials, table.part)
        if not columns:
            found.lengths.add(table.size)
        for name, column in columns:
            found.indices.append(
                Index(input=name, column=column, size=table.size, table=f"table {table.name}", wraps=True)
            )
    found.lengths |= graph.sliced()
    return found


class IndexTable(NamedTuple):
    """A constant that a node indexes.

    Attributes:
        name: of the constant.
        size: of the indexed dimension.
        indexed_by: name of the tensor that holds the index.
        part: place in the index's last dimension, of GatherND; else None.
    """

    name: str
    size: int
    indexed_by: str
    part: int | None = None


class OnnxGraph:
    """The main graph of an ONNX model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._graph: Any = model.graph
        self._made_by = {name: node for node in self._graph.node for name in node.output if name}
        self._constants: dict[str, Any] = {each.name: each for each in self._graph.initializer}
        for node in self._graph.node:
            value = next((each.t for each in node.attribute if each.name == "value"), None)
            if node.op_type == "Constant" and value is not None:
                self._constants[node.output[0]] = value
        self._inputs = {each.name for each in self._graph.input} - set(self._constants)

    def tables(self) -> Iterator[IndexTable]:
        """Yield every constant that a node indexes."""
        for node in self._graph.node:
            if node.op_type not in {"Gather", "GatherElements", "GatherND"}:
                continue
            constant = self._constant(node.input[0])
            if constant is None or not constant.dims:
                continue
            name = node.input[0] if constant.name == "" else constant.name
            if node.op_type != "GatherND":
                yield IndexTable(name, constant.dims[_attribute(node, "axis", 0)], node.input[1])
            elif not _attribute(node, "batch_dims", 0):
                for part, size in enumerate(constant.dims):
                    yield IndexTable(name, size, node.input[1], part)

    def sliced(self) -> set[int]:
        """Return the sizes of the dimensions of constants that a Slice takes a part of."""
        constants = [self._constant(node.input[0]) for node in self._graph.node if node.op_type == "Slice"]
        return {size for constant in constants if constant is not None for size in constant.dims}

    def columns(self, index: str, trials: Trials, part: int | None) -> set[tuple[str, int]]:
        """Return the inputs and columns whose values an index holds unchanged."""
        path = self._path(index)
        names = sorted({name for name in path if name in self._inputs and name in trials.rows})
        if not names or not self._moves_by_shapes_only(path):
            return set()
        bases = {name: (place + 1) * _COLUMN for place, name in enumerate(names)}
        origins = self._run(index, path, bases, trials)
        if origins is None or (part is not None and part >= origins.shape[-1]):
            return set()
        values = np.unique(origins if part is None else origins[..., part]).astype(np.int64).tolist()
        return {(names[value // _COLUMN - 1], value % _COLUMN) for value in values if value >= _COLUMN}

    def _constant(self, name: str) -> Any:
        while name not in self._constants and name in self._made_by and self._made_by[name].op_type in _SAME_SIZE:
            name = self._made_by[name].input[0]
        return self._constants.get(name)

    def _path(self, name: str) -> set[str]:
        """Return the tensors that hold the same values as a tensor, itself among them."""

        def moved(node: Any) -> Sequence[str]:
            if node.op_type not in _MOVES:
                return ()
            given: Sequence[str] = node.input if node.op_type == "Concat" else node.input[:1]
            return given

        return self._walk([name], moved)

    def _moves_by_shapes_only(self, path: set[str]) -> bool:
        """Tell whether no value of an input decides where values go: shapes of inputs may."""
        places = [
            name
            for node in self._nodes(path)
            if node.op_type in _MOVES and node.op_type != "Concat"
            for name in node.input[1:]
        ]
        known = self._walk(places, lambda node: () if node.op_type in _SHAPES else node.input)
        has_graph = any(each.HasField("g") for node in self._nodes(known) for each in node.attribute)
        return not has_graph and known.isdisjoint(self._inputs)

    def _walk(self, names: Iterable[str], before: Callable[[Any], Iterable[str]]) -> set[str]:
        """Return tensors and those before them, each once; ``before`` names the inputs of a node to go on with."""
        found: set[str] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name in found:
                continue
            found.add(name)
            if name in self._made_by:
                waiting += before(self._made_by[name])
        return found

    def _nodes(self, names: set[str]) -> list[Any]:
        return [node for node in self._graph.node if names & set(node.output)]

    def _run(self, index: str, path: set[str], bases: Mapping[str, int], trials: Trials) -> Array | None:
        """Run the part of the graph that makes an index on column numbers; None where that cannot be run."""
        from onnx.reference import ReferenceEvaluator

        inputs = {name: array for name, array in trials.rows.items() if name in self._inputs}
        for name, base in bases.items():
            array = trials.rows[name]
            row = base + np.arange(array[0].size, dtype=np.int64)
            inputs[name] = np.broadcast_to(row.reshape(array.shape[1:]), array.shape).copy()
        model = self._part(index, path, list(inputs))
        try:
            return np.asarray(ReferenceEvaluator(model).run(None, inputs)[0])
        except Exception:
            # Casts are left out, so that types may no longer fit: such an index is not analysed.
            return None

    def _part(self, index: str, path: set[str], inputs: Sequence[str]) -> Any:
        from onnx import TensorProto, helper

        wanted = self._walk([index], lambda node: node.input)
        nodes = [
            helper.make_node("Identity", node.input, node.output)
            if node.op_type == "Cast" and node.output[0] in path
            else node
            for node in self._nodes(wanted)
        ]
        initializers = [each for each in self._graph.initializer if each.name in wanted]
        given = [helper.make_tensor_value_info(name, TensorProto.INT64, None) for name in inputs]
        outputs = [helper.make_tensor_value_info(index, TensorProto.INT64, None)]
        graph = helper.make_graph(nodes, "origins", given, outputs, initializers)
        return helper.make_model(graph, opset_imports=self._model.opset_import)


def _attribute(node: Any, name: str, default: int) -> int:
    return next((each.i for each in node.attribute if each.name == name), default)
