"""An OpenVINO model's slow nodes, by the counters of its CPU plugin."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tailcut.common.statistics import percentile
from tailcut.common.tensors import Arrays
from tailcut.errors import ProfileError
from tailcut.profiler.attribution.layers import DISPATCH, ModelLayers, layers_of, operators_of, quiet
from tailcut.profiler.layers.onnx import described

_BUDGET_S = 1.0
_FEWEST, _MOST = 3, 200
_INT8 = ("_i8", "_u8")

Node = tuple[str, str, float]
"""Name, kind, milliseconds."""


def of_openvino(artifact: Path, feeds: Arrays, name: str, *, threads: int, settings: Mapping[str, Any]) -> ModelLayers:
    """Run an OpenVINO model on one input, again and again for about a second, without and with its counters.

    Args:
        artifact: .onnx, or tailcut's own .ovir file.
        feeds: the inputs by name.
        name: of the model, for the report.
        threads: inside one operator.
        settings: of the variant.

    Raises:
        ProfileError: the file cannot be opened, or the model fails on the inputs.
        MissingExtra: openvino is not installed.
    """
    from tailcut.models.runtimes.openvino import load_openvino, properties, read_model

    openvino = load_openvino()
    try:
        core = openvino.Core()
        model, _weights = read_model(openvino, core, artifact)
        options = properties(threads, settings)
        times = [each for each, _ in _runs(core.compile_model(model, "CPU", options), feeds, counting=False)]
        counted = core.compile_model(model, "CPU", {**options, "PERF_COUNT": True})
        runs = list(_runs(counted, feeds, counting=True))
    except Exception as error:  # openvino's own errors are RuntimeError with many lines
        raise ProfileError(
            f"openvino {openvino.__version__.partition('-')[0]} cannot profile {name}: {str(error).strip()[:200]}",
            hint="is it a model of OpenVINO, and are these inputs of its names, datatypes and shapes?",
        ) from error
    return _profile(runs, name, f"openvino {openvino.__version__.partition('-')[0]}", feeds, times)


def _runs(compiled: Any, feeds: Arrays, *, counting: bool) -> Iterable[tuple[float, list[Node]]]:
    """Milliseconds of each run, and its nodes where they are counted."""
    request = compiled.create_infer_request()
    for _ in range(_FEWEST):
        request.infer(feeds)
    count = 0
    end_s = time.monotonic() + _BUDGET_S
    while count < _FEWEST or (count < _MOST and time.monotonic() < end_s):
        count += 1
        began_ns = time.perf_counter_ns()
        request.infer(feeds)
        took_ms = (time.perf_counter_ns() - began_ns) / 1e6
        yield took_ms, [_node(one) for one in request.profiling_info] if counting else []


def _node(info: Any) -> Node:
    kind = info.node_type
    if info.exec_type.lower().endswith(_INT8):
        kind = f"{kind} (INT8)"
    return info.node_name, kind, info.real_time.total_seconds() * 1e3


def _profile(
    runs: list[tuple[float, list[Node]]], name: str, runtime: str, feeds: Arrays, times: list[float]
) -> ModelLayers:
    limit = quiet([(0.0, took_ms) for took_ms, _ in runs])
    longest = max(end for _, end in limit)
    kept = [(took_ms, nodes) for took_ms, nodes in runs if took_ms <= longest]
    took: defaultdict[tuple[str, str], float] = defaultdict(float)
    for _, nodes in kept:
        for node, kind, ms in nodes:
            took[node, kind] += ms / len(kept)
    spent = {key: ms for key, ms in took.items() if ms > 0}
    by_kind: defaultdict[str, float] = defaultdict(float)
    for (_, kind), ms in spent.items():
        by_kind[kind] += ms
    calls = Counter(kind for _, kind in spent)
    profiled_ms = sum(took_ms for took_ms, _ in kept) / len(kept)
    rest = max(profiled_ms - sum(spent.values()), 0.0)
    return ModelLayers(
        model=name,
        runtime=runtime,
        inputs=described(feeds.items()),
        runs=len(kept),
        run_ms=percentile(times, 0.5),
        profiled_ms=profiled_ms,
        layers=layers_of((node, kind, 1.0, ms, kind) for (node, kind), ms in spent.items()),
        operators=operators_of(
            [*((kind, float(calls[kind]), ms) for kind, ms in by_kind.items()), (DISPATCH, 1.0, rest)]
        ),
        device_note="it runs on the CPU",
        notes=("openvino times nodes in whole microseconds: those of a few are rounded",),
    )
