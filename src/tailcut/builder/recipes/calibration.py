"""Calibration: ranges of activations, from rows fed in small batches and forgotten at once.

onnxruntime's own calibrators keep every activation of every row until the end (its histograms) or lose data when told
not to (CalibMaxIntermediateOutputs, onnxruntime issues 18893 and 32577). Here one histogram of fixed size per tensor is
all that is kept, so that memory does not grow with the rows; every method's range is read from the same histogram.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.recipes.graph_names import free, taken
from tailcut.common.tensors import Array, Arrays
from tailcut.errors import BuildError
from tailcut.models.runtimes import Runtime

CHUNK_ROWS = 8
COMPARED_ROWS = 256
"""Rows whose answers tell how close a candidate is."""

BINS = 2048
Range = tuple[float, float]
METHODS = ("min-max", "percentile 99.9", "percentile 99.99", "percentile 99.999")


class Attempt(NamedTuple):
    """One way to quantise a model.

    Attributes:
        choice: what distinguishes it, for people.
        file: the candidate.
        error: mean absolute difference of its answers; infinite where there is none.
        failed: why there is none.
    """

    choice: Mapping[str, object]
    file: Path
    error: float = np.inf
    failed: str = ""

    @property
    def shown(self) -> dict[str, object]:
        """The choice, and what came of it."""
        return {**self.choice, **({"failed": self.failed} if self.failed else {"mean_abs_error": self.error})}


def attempt(
    choice: Mapping[str, object], file: Path, write: Callable[[], object], error_of: Callable[[Path], float]
) -> Attempt:
    """Build one candidate and measure it; a failure of the quantizer is recorded, not raised.

    Raises:
        BuildError: tailcut refuses the model.
    """
    try:
        write()
        return Attempt(choice, file, error_of(file))
    except BuildError:
        raise
    except Exception as error:  # onnxruntime's quantizer raises whatever its passes raise
        return Attempt(choice, file, failed=f"{type(error).__name__}: {error}")


class TensorHistogram:
    """What is remembered of one tensor: extremes, and a histogram that widens by halving."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.batches = 0
        self.counts: npt.NDArray[np.int64] = np.zeros(BINS, np.int64)
        self.limit = 0.0

    def add(self, values: Array) -> None:
        """Take in one batch's values, any shape; an empty batch changes nothing.

        Raises:
            ValueError: NaN or infinity.
        """
        flat = np.asarray(values, np.float32).reshape(-1)
        if not flat.size:
            return
        low, high = float(flat.min()), float(flat.max())
        if not (np.isfinite(low) and np.isfinite(high)):
            raise ValueError("NaN or infinity")
        self.low, self.high = min(self.low, low), max(self.high, high)
        self.batches += 1
        self._widen(max(-low, high))
        self.counts += np.histogram(flat, BINS, range=(-self.limit, self.limit))[0]

    def _widen(self, reach: float) -> None:
        if not self.limit:
            self.limit = max(reach, float(np.finfo(np.float32).tiny))
        while self.limit < reach:
            self.limit *= 2.0
            counts = np.zeros_like(self.counts)
            counts[BINS // 4 : 3 * BINS // 4] = self.counts.reshape(-1, 2).sum(axis=1)
            self.counts = counts

    def range(self, method: str) -> Range:
        """Return the lowest and highest value that ``method`` (of ``METHODS``) keeps apart; always holds 0.

        Raises:
            KeyError: no such method.
        """
        if method == "min-max":
            low, high = self.low, self.high
        elif method.startswith("percentile ") and method in METHODS:
            low, high = self._percentile(float(method.rpartition(" ")[2]))
        else:
            raise KeyError(method)
        return min(0.0, max(low, self.low)), max(0.0, min(high, self.high))

    def _percentile(self, percent: float) -> Range:
        """Cut the same share on both sides."""
        edges = np.linspace(-self.limit, self.limit, BINS + 1)
        below = np.cumsum(self.counts) / self.counts.sum()
        cut = (100.0 - percent) / 200.0
        first, last = (int(place) for place in np.searchsorted(below, [cut, 1.0 - cut]))
        return float(edges[first]), float(edges[min(last, BINS - 1) + 1])


def batches(selection: Holdout, rows: int, chunk_rows: int = CHUNK_ROWS) -> Iterator[Arrays]:
    """Yield the first ``rows`` rows in small batches."""
    most = min(rows, selection.rows)
    for start in range(0, most, chunk_rows):
        yield selection.take(min(chunk_rows, most - start), start)


def answers(runtime: Runtime, selection: Holdout, output: str, chunk_rows: int = CHUNK_ROWS) -> Array:
    """Run ``COMPARED_ROWS`` rows one batch at a time, so that memory does not depend on their number; close it."""
    try:
        parts = [runtime.run(rows, [output])[output] for rows in batches(selection, COMPARED_ROWS, chunk_rows)]
    finally:
        runtime.close()
    if all(part.shape[1:] == parts[0].shape[1:] for part in parts):
        return np.concatenate(parts)
    return np.concatenate([part.reshape(-1) for part in parts])


def observe(model: Path, tensors: Iterable[str], rows: Iterable[Arrays], folder: Path) -> dict[str, TensorHistogram]:
    """Run ``model`` on every batch and take in the values of its ``tensors``, FP32 intermediates.

    Raises:
        BuildError: no rows, or a tensor that is NaN or infinite on them.
    """
    spreads = {name: TensorHistogram() for name in tensors}
    session = _opened(model, list(spreads), folder / "observed.onnx")
    for inputs in rows:
        for name, values in zip(spreads, session.run(None, inputs), strict=True):
            try:
                spreads[name].add(values)
            except ValueError as error:
                raise BuildError(
                    f"{error} in the intermediate tensor {name!r} on calibration rows",
                    hint="look for overflow in the model, or leave the static INT8 recipe out",
                ) from error
    empty = [name for name, spread in spreads.items() if not spread.batches]
    if empty or not spreads:
        raise BuildError("no calibration rows reached the model", hint="give the holdout more rows")
    return spreads


def _opened(model: Path, tensors: list[str], path: Path) -> Any:
    """Open the model with ``tensors`` as outputs."""
    import onnx

    from tailcut.models.runtimes.telemetry import keep_off

    keep_off()
    import onnxruntime

    from tailcut.models.runtimes.onnxruntime import session_options

    graph = onnx.load(str(model))
    del graph.graph.output[:]
    # An input of the model can be observed too, but only by a node of its own.
    given = {value.name for value in graph.graph.input}
    names = taken(graph.graph)
    for name in tensors:
        shown = name
        if name in given:
            shown = free(f"{name}/observed", names)
            graph.graph.node.append(onnx.helper.make_node("Identity", [name], [shown]))
        graph.graph.output.append(onnx.helper.make_tensor_value_info(shown, onnx.TensorProto.FLOAT, None))
    onnx.save(graph, str(path))
    return onnxruntime.InferenceSession(str(path), session_options(1), providers=["CPUExecutionProvider"])


def ranges(spreads: Mapping[str, TensorHistogram], method: str) -> dict[str, Range]:
    """Range of every tensor by one method."""
    return {name: spread.range(method) for name, spread in spreads.items()}
