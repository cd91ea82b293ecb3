"""The table between two steps, as tensors of the graph: what the fitted step is given as an array or a DataFrame."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np

from tailcut.builder.tables.nodes import BOOL, DOUBLE, FLOAT, TEXT, Graph


class Unconvertible(Exception):
    """A step has no exact form in ONNX; the text says why."""


@dataclass(frozen=True)
class Block:
    """Neighbouring columns of one dtype.

    Attributes:
        name: of the tensor, (rows, width).
        width: columns.
        dtype: as NumPy has it; object is text.
        missing: of text, whether "" stands for a missing value.
    """

    name: str
    width: int
    dtype: np.dtype[Any]
    missing: bool = False


@dataclass(frozen=True)
class ColumnTable:
    """Columns side by side.

    Attributes:
        blocks: the columns.
        names: of the columns of a DataFrame; None for an array.
        mixed: whether it is an array of objects: numbers and text.
        sparse: whether it is a SciPy matrix, which keeps no zeros.
        loose: whether NaN or infinity can be in it.
        flat: whether it is one column of shape (rows,).
    """

    blocks: tuple[Block, ...]
    names: tuple[str, ...] | None = None
    mixed: bool = False
    sparse: bool = False
    loose: bool = False
    flat: bool = False

    @property
    def width(self) -> int:
        """Number of columns."""
        return sum(block.width for block in self.blocks)

    @property
    def text(self) -> bool:
        """Whether a column is text."""
        return any(block.dtype == TEXT for block in self.blocks)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype that NumPy finds for all columns together; object where there is text."""
        kinds = {block.dtype for block in self.blocks}
        if self.mixed or self.text:
            return TEXT
        if BOOL in kinds and len(kinds) > 1 and self.names is not None:
            return TEXT  # pandas makes objects of them
        return np.result_type(*kinds) if kinds else FLOAT


def one(name: str, width: int, dtype: Any, like: ColumnTable) -> ColumnTable:
    """Return the table of a step's result that is one block; an array, as loose as what it was made from."""
    return replace(like, blocks=(Block(name, width, np.dtype(dtype)),), names=None, mixed=False, sparse=False)


def select(graph: Graph, table: ColumnTable, columns: Sequence[int]) -> ColumnTable:
    """Return some columns, in the order given."""
    places = [(number, at) for number, block in enumerate(table.blocks) for at in range(block.width)]
    blocks = []
    for number, neighbours in groupby([places[column] for column in columns], key=itemgetter(0)):
        block, inside = table.blocks[number], [at for _, at in neighbours]
        if inside != list(range(block.width)):
            name = graph.add("Gather", [block.name, graph.whole(inside)], axis=1)
            block = replace(block, name=name, width=len(inside))
        blocks.append(block)
    names = None if table.names is None else tuple(table.names[column] for column in columns)
    return replace(table, blocks=tuple(blocks), names=names)


def single_columns(graph: Graph, table: ColumnTable) -> list[Block]:
    """Return the columns one by one."""
    return [select(graph, table, [column]).blocks[0] for column in range(table.width)]


def matrix(graph: Graph, table: ColumnTable, dtype: Any, *, through: Any = None) -> str:
    """Return all columns as one tensor (rows, width) of ``dtype``.

    Args:
        graph: to add to.
        table: of numbers.
        dtype: of the result.
        through: dtype that all columns take first, as NumPy does where they make one array; default: the table's.

    Raises:
        Unconvertible: text is among the columns.
    """
    if table.text:
        raise Unconvertible("it computes with numbers and is given text")
    if not table.blocks:
        raise Unconvertible("it is given no columns")
    common = np.dtype(through if through is not None else table.dtype)
    common = DOUBLE if common == TEXT else common
    parts = [graph.cast(graph.cast(block.name, block.dtype, common), common, dtype) for block in table.blocks]
    return graph.concat(parts)


def floats(graph: Graph, table: ColumnTable, *, nan: bool = True) -> tuple[str, np.dtype[Any]]:
    """Return the matrix that scikit-learn's check_array makes: float32 stays, all else becomes float64.

    Args:
        graph: to add to; rows that the check refuses are guarded.
        table: of numbers.
        nan: whether the step takes NaN; it never takes infinity.

    Raises:
        Unconvertible: text, or float16, in which NumPy computes and onnxruntime does not.
    """
    dtype = table.dtype
    if dtype == np.float16:
        raise Unconvertible("it computes in float16: declare the input FP32")
    dtype = FLOAT if dtype == FLOAT else DOUBLE
    name = matrix(graph, table, dtype)
    if table.loose:
        guard(graph, name, dtype, nan=nan)
    return name, dtype


def guard(graph: Graph, name: str, dtype: Any, *, nan: bool) -> None:
    """Make the answers of rows NaN that hold infinity, and NaN where ``nan`` is not taken: the source refuses them."""
    zero = graph.constant(0.0, dtype)
    held = graph.add("Where", [graph.add("IsNaN", [name]), zero, name]) if nan else name
    spoiled = graph.add("ReduceSum", [graph.add("Mul", [held, zero]), graph.whole([1])], keepdims=1)
    graph.guards.append(graph.cast(spoiled, dtype, DOUBLE))


def sklearn_kind(model: Any) -> str:
    """Name the class of an estimator or a step of scikit-learn; empty for those of other packages."""
    return type(model).__name__ if type(model).__module__.startswith("sklearn.") else ""


def takes_nan(model: Any) -> bool:
    """Tell whether an estimator or a step takes NaN; those of other packages than scikit-learn do."""
    if not sklearn_kind(model):
        return True
    from sklearn.utils import get_tags

    return bool(get_tags(model).input_tags.allow_nan)
