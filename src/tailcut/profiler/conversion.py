"""Try an estimator of the application as ONNX, as ``tailcut build`` converts it, and time both on a request's input.

Runs in the profiled process, once the recording is over.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from tailcut.common.statistics import percentile
from tailcut.errors import ProfileError
from tailcut.models.runtimes.checks import first_line
from tailcut.models.runtimes.telemetry import keep_off
from tailcut.profiler.attribution.layers import Conversion
from tailcut.profiler.layers.onnx import options_of, run_times_ms
from tailcut.profiler.recording.estimators import estimators

if TYPE_CHECKING:
    from tailcut.common.tensors import Arrays

_AROUND = ("best_estimator_", "estimator_")


def of_estimator(owner: Any, method: str, rows: Any, name: str) -> Conversion:
    """Convert an estimator and its last step, and time them.

    Args:
        owner: a fitted estimator, Pipeline or transformer.
        method: of it, that was called.
        rows: that it was called with.
        name: of the call, for the report.

    Raises:
        ProfileError: the packages that convert are not installed, or it fails on these rows.
    """
    try:
        import onnx  # noqa: F401  (what converts needs it)
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ProfileError(
            f"{name} was not tried as ONNX: {error.name} is not installed", hint="pip install 'tailcut[build]'"
        ) from error
    keep_off()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _try(owner, method, rows, name)
    except Exception as error:  # whatever a model raises that is called once more
        raise ProfileError(
            f"{name} was not tried as ONNX: {first_line(error)}", hint="`tailcut build` gives details"
        ) from error


def _try(owner: Any, method: str, rows: Any, name: str) -> Conversion:
    graph_ms, refused = _graph_ms(owner, method, rows)
    run_ms = _median_ms(lambda: getattr(owner, method)(rows))
    chain = _unwrapped(owner)
    steps = getattr(chain, "steps", None)
    whole = Conversion(
        model=name,
        steps=tuple(sorted(estimators.names_within(owner))),
        run_ms=run_ms,
        graph_ms=graph_ms,
        refused=refused,
    )
    if method == "transform" or not isinstance(steps, list) or len(steps) < 2:
        return whole
    last, given = steps[-1][1], chain[:-1].transform(rows)
    known = estimators.known(last)
    last_graph_ms, why = _graph_ms(last, method, given)
    return msgspec.structs.replace(
        whole,
        last=known.name(method) if known is not None else "",
        last_ms=_median_ms(lambda: getattr(last, method)(given)),
        last_graph_ms=last_graph_ms,
        refused=refused or why,
    )


def _unwrapped(owner: Any) -> Any:
    while (inner := next((held for one in _AROUND if (held := vars(owner).get(one)) is not None), None)) is not None:
        owner = inner
    return owner


def _graph_ms(owner: Any, method: str, rows: Any) -> tuple[float | None, tuple[str, ...]]:
    """Time it as ONNX; None, and why, where it has no exact form."""
    from tailcut.builder.tables import estimators as forms
    from tailcut.builder.tables.columns import Unconvertible
    from tailcut.builder.tables.live import table_of
    from tailcut.builder.tables.nodes import Graph, model_of, value_info
    from tailcut.builder.tables.steps import transform

    graph = Graph()
    try:
        table, feeds = table_of(rows)
        if method == "transform":
            made, _ = transform(graph, owner, table, rows, ())
            outputs = [(block.name, block.dtype) for block in made.blocks]
        else:
            answer = forms.answer(graph, owner, table, rows, double=False)
            outputs = [(answer.name, answer.dtype)] if answer is not None else []
    except Unconvertible as error:
        graph.fail((), owner, str(error))
    if graph.failures:
        return None, tuple(graph.failures)
    inputs = [value_info(block.name, block.dtype, [-1, block.width]) for block in table.blocks]
    ends = [value_info(graph.add("Identity", [block]), dtype, [-1, -1]) for block, dtype in outputs]
    return _run_ms(model_of(graph, inputs, ends).SerializeToString(), feeds), ()


def _run_ms(model: bytes, feeds: Arrays) -> float:
    import onnxruntime

    session = onnxruntime.InferenceSession(model, options_of(threads=1), providers=["CPUExecutionProvider"])
    return _median_ms(lambda: session.run(None, feeds))


def _median_ms(call: Callable[[], object]) -> float:
    return percentile(run_times_ms(call), 0.5)
