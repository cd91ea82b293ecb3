"""An ONNX model's slow nodes, by onnxruntime's own profile."""

from __future__ import annotations

import tempfile
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tailcut.common.statistics import percentile
from tailcut.common.tensors import Arrays
from tailcut.errors import ProfileError
from tailcut.models.runtimes.checks import first_line
from tailcut.models.runtimes.telemetry import keep_off
from tailcut.profiler.attribution.layers import ModelLayers, layers_of, operators_of, quiet

_BUDGET_S = 1.0
_FEWEST, _MOST = 3, 200
_WARM_UP = 3
_KERNEL = "_kernel_time"


def of_onnx(
    model: Path | bytes,
    feeds: Arrays,
    name: str,
    *,
    threads: int = 0,
    providers: tuple[str, ...] = ("CPUExecutionProvider",),
    settings: Mapping[str, Any] | None = None,
) -> ModelLayers:
    """Run an ONNX model on one input, again and again for about a second, without and with the runtime's profile.

    Args:
        model: file, or its bytes.
        feeds: the inputs by name.
        name: of the model, for the report.
        threads: inside one operator; 0: onnxruntime's choice.
        providers: as the session has them that it stands for.
        settings: of the variant, see ``session_options``.

    Raises:
        ProfileError: the file cannot be opened, or the model fails on the inputs.
    """
    keep_off()
    import onnxruntime

    with tempfile.TemporaryDirectory(prefix="tailcut-layers-") as folder:
        try:
            plain = onnxruntime.InferenceSession(model, options_of(threads, settings), providers=list(providers))
            times = run_times_ms(lambda: plain.run(None, feeds))
            options = options_of(threads, settings)
            options.enable_profiling = True
            options.profile_file_prefix = str(Path(folder) / "profile")
            session = onnxruntime.InferenceSession(model, options, providers=list(providers))
            for _ in range(_WARM_UP + len(times)):
                session.run(None, feeds)
            events = msgspec.json.decode(Path(session.end_profiling()).read_bytes())
        except Exception as error:  # onnxruntime's own classes share no public base
            raise ProfileError(
                f"onnxruntime {onnxruntime.__version__} cannot profile {name}: {first_line(error)}",
                hint="is it an ONNX model, and are these inputs of its names, datatypes and shapes?",
            ) from error
    return _profile(events, name, f"onnxruntime {onnxruntime.__version__}", feeds, times)


def described(values: Iterable[tuple[str, Any]]) -> str:
    """Name what a model was run on: "ids INT64 [1, 128]"."""
    parts = []
    for name, value in values:
        shape = getattr(value, "shape", None)
        if shape is not None:
            dtype = str(value.dtype).removeprefix("torch.")
            parts.append(f"{name} {dtype} {list(shape)}".strip())
    return ", ".join(parts)


def run_times_ms(run: Callable[[], object]) -> list[float]:
    """Run a model again and again for about a second; milliseconds of each run."""
    for _ in range(_WARM_UP):
        run()
    times: list[float] = []
    end_s = time.monotonic() + _BUDGET_S
    while len(times) < _FEWEST or (len(times) < _MOST and time.monotonic() < end_s):
        began_ns = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - began_ns) / 1e6)
    return times


def options_of(threads: int, settings: Mapping[str, Any] | None = None) -> Any:
    """Return a session's options: those of a variant, or the runtime's own."""
    from tailcut.models.runtimes.onnxruntime import session_options

    if settings is not None:
        return session_options(threads or 1, settings)
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return options


def _profile(events: list[dict[str, Any]], name: str, runtime: str, feeds: Arrays, times: list[float]) -> ModelLayers:
    """Add up the events of the quieter runs; the durations of nodes are whole microseconds."""
    ends = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event.get("cat") == "Session" and event.get("name") == "model_run"
    ]
    runs = quiet(ends[_WARM_UP:])
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_KERNEL)]
    took: defaultdict[tuple[str, str], float] = defaultdict(float)
    calls: Counter[tuple[str, str]] = Counter()
    for event in nodes:
        if _within(event["ts"], runs):
            key = event["name"].removesuffix(_KERNEL), event["args"]["op_name"]
            took[key] += event["dur"] / 1e3 / len(runs)
            calls[key] += 1
    profiled_ms = sum(end - start for start, end in runs) / 1e3 / max(len(runs), 1)
    by_kind: defaultdict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for (node, kind), ms in took.items():
        by_kind[kind][0] += calls[node, kind] / len(runs)
        by_kind[kind][1] += ms
    return ModelLayers(
        model=name,
        runtime=runtime,
        inputs=described(feeds.items()),
        runs=len(runs),
        run_ms=percentile(times, 0.5),
        profiled_ms=profiled_ms,
        layers=layers_of((node, kind, calls[node, kind] / len(runs), ms, kind) for (node, kind), ms in took.items()),
        # What no node took is the writing of the profile for the most part, so there is no dispatch to speak of.
        operators=operators_of((kind, number, ms) for kind, (number, ms) in by_kind.items()),
        device_note=_device_note(nodes),
        notes=("onnxruntime times nodes in whole microseconds: those of a few are rounded",),
    )


def _within(at_us: float, runs: list[tuple[float, float]]) -> bool:
    place = bisect_right(runs, (at_us, float("inf"))) - 1
    return place >= 0 and at_us <= runs[place][1]


def _device_note(events: list[dict[str, Any]]) -> str:
    used = {str(event["args"].get("provider", "")) for event in events}
    if any("CUDA" in name or "Tensorrt" in name for name in used):
        return "on a GPU onnxruntime's profile holds the launching of kernels, not the kernels themselves"
    return "it runs on the CPU"
