"""A whole ONNX model of a table: the manifest's inputs, the model's steps, and the manifest's output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.ensembles import is_booster
from tailcut.builder.tables import estimators
from tailcut.builder.tables.columns import Block, ColumnTable, matrix, select
from tailcut.builder.tables.estimators import Answer
from tailcut.builder.tables.nodes import DOUBLE, FLOAT, TEXT, Graph, model_of, value_info
from tailcut.builder.tables.reference import (
    array_dtype,
    as_given,
    column_names,
    column_order,
    tensor_columns,
)
from tailcut.common.tensors import NUMPY_OF, Arrays
from tailcut.errors import BuildError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes.sklearn import takes_documents


@dataclass(frozen=True)
class Written:
    """A model in ONNX form.

    Attributes:
        onnx: the model; None where a step cannot be converted.
        failures: steps that cannot be converted exactly, with the reasons.
        single: whether something computes in float32.
        nodes: number of nodes.
        opsets: by domain.
    """

    onnx: Any
    failures: tuple[str, ...]
    single: bool
    nodes: int = 0
    opsets: tuple[tuple[str, int], ...] = ()

    def save(self, path: Path) -> None:
        """Write the .onnx file."""
        from onnx import save

        save(self.onnx, str(path))


def convert(model: Any, tensors: Sequence[TensorSpec], output: TensorSpec, sample: Arrays) -> Written:
    """Convert a model.

    Args:
        model: an estimator, a Pipeline, or a booster of LightGBM or XGBoost.
        tensors: model.inputs.
        output: the first of model.outputs.
        sample: some rows, on which the live steps show what they give.

    Raises:
        ArtifactError: the model was fitted on other columns.
        BuildError: it gives another shape than the output's.
    """
    from onnx import helper

    graph = Graph([output.name, *(tensor.name for tensor in tensors)])
    table = table_of_inputs(graph, model, tensors)
    given = as_given(model, tensors)(sample)
    answer = estimators.answer(graph, model, table, given, double=output.datatype == "FP64")
    if answer is None or graph.failures:
        return Written(None, tuple(graph.failures), graph.single)
    name = _finish(graph, answer, output)
    graph.nodes.append(helper.make_node("Identity", [name], [output.name], name="answers"))
    inputs = [value_info(tensor.name, NUMPY_OF[tensor.datatype], tensor.shape) for tensor in tensors]
    made = model_of(graph, inputs, [value_info(output.name, NUMPY_OF[output.datatype], output.shape)])
    opsets = tuple((each.domain or "ai.onnx", each.version) for each in made.opset_import)
    return Written(made, (), graph.single, len(made.graph.node), opsets)


def table_of_inputs(graph: Graph, model: Any, tensors: Sequence[TensorSpec]) -> ColumnTable:
    """Return the inputs as the model is given them: a DataFrame's columns in its order, or one array.

    Raises:
        ArtifactError: the model was fitted on other columns.
    """
    names: list[str] = []
    blocks = []
    for tensor in tensors:
        dtype = TEXT if tensor.datatype == "BYTES" else NUMPY_OF[tensor.datatype]
        flat = len(tensor.shape) == 1
        name = graph.add("Reshape", [tensor.name, graph.whole([-1, 1])]) if flat else tensor.name
        missing = tensor.datatype == "BYTES" and tensor.allow_nan
        blocks.append(Block(name, 1 if flat else tensor.shape[1], np.dtype(dtype), missing))
        names += tensor_columns(tensor)
    loose = any(tensor.allow_nan and tensor.datatype.startswith("FP") for tensor in tensors)
    table = ColumnTable(tuple(blocks), tuple(names), loose=loose)
    order = column_order(model, tensors)
    if order is not None:
        table = select(graph, table, order)
    fitted = None if is_booster(model) else column_names(model, tensors)
    if fitted is not None:
        return table if order is not None else replace(table, names=tuple(fitted))
    table = replace(table, names=None)
    dtype = array_dtype(model, tensors)
    if dtype == TEXT:
        return replace(table, mixed=True, flat=takes_documents(model, tensors))
    return replace(table, blocks=(Block(matrix(graph, table, dtype), table.width, dtype),))


def _finish(graph: Graph, answer: Answer, output: TensorSpec) -> str:
    """Give answers the manifest's shape and datatype; rows that the source refuses become NaN."""
    name = graph.cast(answer.name, answer.dtype, DOUBLE if answer.dtype != FLOAT else FLOAT)
    dtype = DOUBLE if answer.dtype != FLOAT else FLOAT
    for guard in dict.fromkeys(graph.guards):
        name = graph.add("Add", [name, graph.cast(guard, DOUBLE, dtype)])
    columns = answer.columns
    wanted = output.shape[1] if len(output.shape) == 2 else 1
    if answer.classes == 2 and columns == 2 and len(output.shape) == 1:
        name, columns = graph.add("Gather", [name, graph.whole([1])], axis=1), 1
    elif answer.classes == 2 and columns == 1 and wanted == 2:
        first = graph.add("Sub", [graph.constant(1.0, dtype), name])
        name, columns = graph.add("Concat", [first, name], axis=1), 2
    if wanted not in {columns, -1}:
        raise BuildError(
            f"the model gives {columns} columns, model.outputs say {list(output.shape)} for {output.name!r}",
            hint="two classes give the probability of the second, [-1], or both, [-1, 2]; more give [-1, classes]",
        )
    name = graph.cast(name, dtype, NUMPY_OF[output.datatype])
    return graph.add("Reshape", [name, graph.whole([-1])]) if len(output.shape) == 1 else name
