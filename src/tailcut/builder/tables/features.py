"""Steps that make new columns from numbers, or leave some out."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tailcut.builder.tables import scalers
from tailcut.builder.tables.columns import (
    Block,
    ColumnTable,
    Unconvertible,
    floats,
    guard,
    matrix,
    one,
    select,
    takes_nan,
)
from tailcut.builder.tables.live import Live
from tailcut.builder.tables.nodes import DOUBLE, FLOAT, TEXT, Graph


def function(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """FunctionTransformer of None or of a NumPy function with an exact counterpart.

    Raises:
        Unconvertible: another function.
    """
    if step.func is None:
        return table
    if step.kw_args:
        raise Unconvertible(f"its function takes kw_args={step.kw_args!r}")
    if step.validate:
        name, dtype = floats(graph, table, nan=False)
        table = one(name, table.width, dtype, table)
    blocks = [_applied(graph, block, step.func) for block in _arrays(graph, table)]
    # Logarithms and roots make NaN of numbers.
    return replace(table, blocks=tuple(blocks), loose=True)


def apply(graph: Graph, name: str, function: Any) -> str:
    """Apply a NumPy function in double.

    Raises:
        Unconvertible: it has no exact counterpart.
    """
    known = next((build for each, build in _FUNCTIONS if each is function), None)
    if known is None:
        said = getattr(function, "__name__", repr(function))
        raise Unconvertible(f"its function {said!r} is Python code; {', '.join(_KNOWN)} are known")
    found: str = known(graph, name)
    return found


def polynomial(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """PolynomialFeatures: products in the order in which scikit-learn multiplies."""
    name, dtype = floats(graph, table, nan=False)
    terms = [tuple(np.repeat(np.arange(len(powers)), powers).tolist()) for powers in step.powers_]
    needed: dict[int, dict[tuple[int, ...], None]] = {}
    for term in terms:
        for cut in range(len(term)):
            needed.setdefault(len(term) - cut, {})[term[cut:]] = None
    parts: list[str] = []
    places: dict[tuple[int, ...], int] = {}
    if () in terms:
        first = graph.add("Gather", [name, graph.whole([0])], axis=1)
        zero = graph.add("Mul", [first, graph.constant(0.0, dtype)])
        parts.append(graph.add("Add", [zero, graph.constant(1.0, dtype)]))
        places[()] = 0
    below: dict[tuple[int, ...], int] = {}
    last = ""
    for degree in sorted(needed):
        every = list(needed[degree])
        made = graph.add("Gather", [name, graph.whole([term[0] for term in every])], axis=1)
        if degree > 1:
            rest = graph.add("Gather", [last, graph.whole([below[term[1:]] for term in every])], axis=1)
            made = graph.add("Mul", [made, rest])
        places |= {term: len(places) + number for number, term in enumerate(every)}
        parts.append(made)
        last, below = made, {term: number for number, term in enumerate(every)}
    found = graph.concat(parts)
    # Products of float32 leave its range sooner than their factors.
    wide = replace(one(found, len(places), dtype, table), loose=True)
    return select(graph, wide, [places[term] for term in terms])


def power(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """PowerTransformer: SciPy's yeojohnson or boxcox, computed in double, then the scaler's steps."""
    name, dtype = floats(graph, table)
    wide = graph.cast(name, dtype, DOUBLE)
    powers = np.asarray(step.lambdas_, dtype=np.float64)[None, :]
    if step.method == "box-cox":
        # Refused: what is not positive.
        positive = graph.add("Greater", [wide, graph.constant(0.0, DOUBLE)])
        taken = graph.add("Or", [positive, graph.add("IsNaN", [wide])])
        zero, missing = graph.constant(0.0, DOUBLE), graph.constant(np.nan, DOUBLE)
        guard(graph, graph.add("Where", [taken, zero, missing]), DOUBLE, nan=False)
        found = _powered(graph, graph.add("Log", [wide]), powers)
    else:
        zero = graph.constant(0.0, DOUBLE)
        above = _powered(graph, _log1p(graph, graph.add("Where", [_less(graph, wide), zero, wide])), powers)
        under = graph.add("Neg", [graph.add("Where", [_less(graph, wide), wide, zero])])
        below = graph.add("Neg", [_powered(graph, _log1p(graph, under), 2.0 - powers)])
        found = graph.add("Where", [_less(graph, wide), below, above])
    graph.single |= dtype == FLOAT
    made = one(graph.cast(found, DOUBLE, dtype), table.width, dtype, table)
    if not step.standardize:
        return made
    return scalers.standard(graph, step._scaler, made, Live(np.zeros((1, table.width), dtype), None))


def _powered(graph: Graph, logarithm: str, powers: Any) -> str:
    """Return (exp(power x) - 1) / power, x itself where the power is 0."""
    flat = np.abs(powers) < np.spacing(1.0)
    safe = graph.constant(np.where(flat, 1.0, powers), DOUBLE)
    curved = graph.add("Div", [_expm1(graph, graph.add("Mul", [logarithm, safe])), safe])
    return graph.add("Where", [graph.constant(flat, np.bool_), logarithm, curved])


def _less(graph: Graph, name: str) -> str:
    return graph.add("Less", [name, graph.constant(0.0, DOUBLE)])


def pca(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """PCA: projected, then centred."""
    components = step.components_
    if step.whiten:
        least = np.finfo(np.asarray(step.explained_variance_).dtype).eps
        components = components / np.sqrt(np.maximum(step.explained_variance_, least))[:, None]
    found = projected(graph, table, components.T, None if step.mean_ is None else -(step.mean_ @ components.T))
    return replace(found, loose=False)


def projected(graph: Graph, table: ColumnTable, weights: Any, bias: Any) -> ColumnTable:
    """Multiply by a matrix and add a vector, in the dtype that NumPy takes."""
    name, dtype = floats(graph, table, nan=False)
    wide = np.result_type(dtype, np.asarray(weights).dtype)
    graph.single |= wide == FLOAT
    found = graph.add("MatMul", [graph.cast(name, dtype, wide), graph.constant(weights, wide)])
    if bias is not None:
        found = graph.add("Add", [found, graph.constant(bias, wide)])
    return one(found, np.shape(weights)[1], wide, table)


def selected(graph: Graph, step: Any, table: ColumnTable, live: Live) -> ColumnTable:
    """Return the columns that a selector of features keeps."""
    if table.loose and not table.text:
        dtype = table.dtype if table.dtype.kind == "f" else DOUBLE
        guard(graph, matrix(graph, table, dtype), dtype, nan=takes_nan(step))
    if table.names is None and not table.mixed and not table.text:
        table = one(matrix(graph, table, table.dtype), table.width, table.dtype, table)
    return select(graph, table, np.flatnonzero(step.get_support()).tolist())


def _arrays(graph: Graph, table: ColumnTable) -> list[Block]:
    """Return blocks of the dtypes that a function is applied to: of a DataFrame each column's, else one."""
    if table.text or table.mixed:
        raise Unconvertible("its function is given text")
    if table.names is not None:
        return list(table.blocks)
    return [Block(matrix(graph, table, table.dtype), table.width, table.dtype)]


def _applied(graph: Graph, block: Block, function: Any) -> Block:
    if block.dtype == TEXT or block.dtype.itemsize < 4:
        raise Unconvertible(f"its function is given {block.dtype}, of which NumPy makes float16: declare it INT64")
    dtype = FLOAT if block.dtype == FLOAT else DOUBLE
    graph.single |= dtype == FLOAT
    name = apply(graph, graph.cast(block.name, block.dtype, DOUBLE), function)
    return replace(block, name=graph.cast(name, DOUBLE, dtype), dtype=dtype)


def _log1p(graph: Graph, name: str) -> str:
    """Kahan: log(u) x / (u - 1) with u = 1 + x loses no digits near zero, as log(1 + x) does."""
    one_ = graph.constant(1.0, DOUBLE)
    wide = graph.add("Add", [name, one_])
    step = graph.add("Sub", [wide, one_])
    exact = graph.add("Mul", [graph.add("Log", [wide]), graph.add("Div", [name, step])])
    tiny = graph.add("Equal", [wide, one_])
    limit = graph.add("Equal", [name, graph.constant(np.inf, DOUBLE)])
    found = graph.add("Where", [tiny, name, exact])
    return graph.add("Where", [limit, name, found])


def _expm1(graph: Graph, name: str) -> str:
    """Kahan: (u - 1) x / log(u) with u = exp(x)."""
    one_ = graph.constant(1.0, DOUBLE)
    wide = graph.add("Exp", [name])
    step = graph.add("Sub", [wide, one_])
    exact = graph.add("Mul", [step, graph.add("Div", [name, graph.add("Log", [wide])])])
    near = graph.add("Less", [graph.add("Abs", [name]), one_])
    tiny = graph.add("Equal", [wide, one_])
    found = graph.add("Where", [near, exact, step])
    return graph.add("Where", [tiny, name, found])


def _operator(operator: str) -> Any:
    return lambda graph, name: graph.add(operator, [name])


def _log(base: float) -> Any:
    return lambda graph, name: graph.add("Div", [graph.add("Log", [name]), graph.constant(np.log(base), DOUBLE)])


_FUNCTIONS: tuple[tuple[Any, Any], ...] = (
    (np.log1p, _log1p),
    (np.expm1, _expm1),
    (np.log, _operator("Log")),
    (np.exp, _operator("Exp")),
    (np.log2, _log(2.0)),
    (np.log10, _log(10.0)),
    (np.sqrt, _operator("Sqrt")),
    (np.absolute, _operator("Abs")),
    (np.square, lambda graph, name: graph.add("Mul", [name, name])),
    (np.negative, _operator("Neg")),
    (np.floor, _operator("Floor")),
    (np.ceil, _operator("Ceil")),
    (np.sign, _operator("Sign")),
)
_KNOWN = tuple(f"np.{each.__name__}" for each, _ in _FUNCTIONS)
