"""A torch module's slow layers: time per module by the clock, time per operator by torch's profiler.

Four passes over one input, because each way of looking disturbs what the others see: the clock alone, a clock around
every module, torch's profiler, and the profiler with a mark around every module, which says whose the operators are.
Hooks are torch's global ones: hooks on the modules themselves switch off the fast path of its transformer layers, and
another model than the served one would be measured.
"""

from __future__ import annotations

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from tailcut.common.statistics import percentile
from tailcut.errors import ProfileError
from tailcut.profiler.attribution.layers import (
    DISPATCH,
    DeviceUse,
    ModelLayers,
    device_use,
    layers_of,
    operators_of,
    quiet,
)
from tailcut.profiler.layers.onnx import described

_BUDGET_S = 0.7
_FEWEST, _MOST, _PROFILED = 3, 100, 20
_MARK = "tailcut.layer:"
_RUN = "tailcut.run"
_WHOLE = "(the model itself)"


def of_torch(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> ModelLayers:
    """Run a module on one input, again and again for about three seconds, and say where its time goes.

    Nothing else may call the module meanwhile.

    Args:
        module: a torch.nn.Module, as it is (training mode, device and number of threads are left alone).
        args, kwargs: of one call.
        name: of the model, for the report.

    Raises:
        ProfileError: the module fails on the input.
    """
    import torch

    gpu = next((each.device for each in module.parameters() if each.is_cuda), None)
    on_gpu = gpu is not None

    def run() -> None:
        module(*args, **kwargs)
        if on_gpu:
            torch.cuda.synchronize(gpu)

    try:
        with torch.inference_mode():
            times = _timed(run)
            owned = _by_module(torch, module, run, len(times))
            plain = _profiled(torch, run, min(len(times), _PROFILED), on_gpu)
            with _marked(torch, module):
                marked = _profiled(torch, run, min(len(times), _PROFILED), on_gpu)
            device, note = _device(torch, run, plain, gpu, percentile(times, 0.5))
    except Exception as error:
        raise ProfileError(
            f"{name} cannot be profiled on {described(_named(args, kwargs)) or 'no tensors'}:"
            f" {type(error).__name__}: {str(error).partition(chr(10))[0]}",
            hint="is this an input that the module takes?",
        ) from error
    runs = _ranges(plain)
    return ModelLayers(
        model=name,
        runtime=f"torch {torch.__version__.partition('+')[0]}",
        inputs=described(_named(args, kwargs)),
        runs=len(runs),
        run_ms=percentile(times, 0.5),
        profiled_ms=sum(end - start for start, end in runs) / max(len(runs), 1),
        layers=_layers(module, owned, marked, on_gpu),
        operators=_operators(plain, len(runs), on_gpu),
        device=device,
        device_note=note,
        notes=_notes(torch, module),
    )


def _named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for place, value in enumerate(args):
        if isinstance(value, Mapping):
            yield from value.items()
        else:
            yield f"#{place}", value
    yield from kwargs.items()


def _timed(run: Callable[[], None]) -> list[float]:
    """Milliseconds of each run."""
    run()
    run()
    times: list[float] = []
    end_s = time.monotonic() + _BUDGET_S
    while len(times) < _FEWEST or (len(times) < _MOST and time.monotonic() < end_s):
        began_ns = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - began_ns) / 1e6)
    return times


def _by_module(torch: Any, module: Any, run: Callable[[], None], runs: int) -> dict[int, tuple[float, float]]:
    """(calls, own milliseconds) a run by the id of each module, those inside it left out; the quieter half of runs."""
    seen: list[tuple[int, int, dict[int, list[int]]]] = []
    inside: list[list[int]] = []

    def enter(one: Any, _: Any) -> None:
        inside.append([id(one), time.perf_counter_ns(), 0])

    def leave(one: Any, *_: Any) -> None:
        whose, began_ns, below_ns = inside.pop()
        spent_ns = time.perf_counter_ns() - began_ns
        found = seen[-1][2].setdefault(whose, [0, 0])
        found[0] += 1
        found[1] += spent_ns - below_ns
        if inside:
            inside[-1][2] += spent_ns

    with _hooked(torch, enter, leave):
        for _ in range(runs):
            began_ns = time.perf_counter_ns()
            seen.append((began_ns, 0, {}))
            run()
            seen[-1] = began_ns, time.perf_counter_ns(), seen[-1][2]
    kept = set(quiet([(began, ended) for began, ended, _ in seen]))
    took: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for began, ended, found in seen:
        if (began, ended) in kept:
            for whose, (calls, own_ns) in found.items():
                took[whose][0] += calls / len(kept)
                took[whose][1] += own_ns / 1e6 / len(kept)
    return {whose: (calls, ms) for whose, (calls, ms) in took.items()}


@contextmanager
def _hooked(torch: Any, enter: Callable[..., None], leave: Callable[..., None]) -> Iterator[None]:
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    before = register_module_forward_pre_hook(enter)
    after = register_module_forward_hook(leave)
    try:
        yield
    finally:
        before.remove()
        after.remove()


@contextmanager
def _marked(torch: Any, module: Any) -> Iterator[None]:
    """Mark in torch's profile what each module takes, by its path in the model."""
    paths = {id(each): path for path, each in module.named_modules()}
    open_marks: list[Any] = []

    def enter(one: Any, _: Any) -> None:
        mark = torch.profiler.record_function(f"{_MARK}{paths.get(id(one), '')}")
        mark.__enter__()
        open_marks.append(mark)

    def leave(*_: Any) -> None:
        open_marks.pop().__exit__(None, None, None)

    with _hooked(torch, enter, leave):
        yield


def _profiled(torch: Any, run: Callable[[], None], runs: int, on_gpu: bool) -> list[Any]:
    """Events of torch's profiler over some runs, each under a mark of its own."""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with _quiet(), profile(activities=activities) as seen:
        for _ in range(runs):
            with record_function(_RUN):
                run()
    events = list(seen.events())
    kept = quiet([(event.time_range.start, event.time_range.end) for event in events if _is_run(event)])
    return [event for event in events if any(start <= event.time_range.start < end for start, end in kept)]


def _is_run(event: Any) -> bool:
    return event.name == _RUN and "CPU" in str(event.device_type)


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what the profiler's native part says on stderr from the terminal."""
    with ExitStack() as stack:
        kept = os.dup(2)
        stack.callback(os.close, kept)
        nowhere = os.open(os.devnull, os.O_WRONLY)
        stack.callback(os.close, nowhere)
        os.dup2(nowhere, 2)
        stack.callback(os.dup2, kept, 2)
        yield


def _ranges(events: list[Any]) -> list[tuple[float, float]]:
    """(start, end) in milliseconds of each run."""
    return [(event.time_range.start / 1e3, event.time_range.end / 1e3) for event in events if _is_run(event)]


def _own_ms(event: Any, on_gpu: bool) -> float:
    """Own time of an operator: of its kernels where it has some."""
    if on_gpu:
        return float(sum(kernel.duration for kernel in event.kernels)) / 1e3
    return float(event.self_cpu_time_total) / 1e3


def _operators(events: list[Any], runs: int, on_gpu: bool) -> Any:
    took: defaultdict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    for event in events:
        if "CPU" not in str(event.device_type):
            continue
        ours = event.name == _RUN
        if ours and on_gpu:
            continue  # the gaps between kernels say it, and better
        name = DISPATCH if ours or not event.name.startswith(("aten::", "quantized::")) else event.name
        took[name] += _own_ms(event, on_gpu) / runs
        calls[name] += 1
    return operators_of((name, calls[name] / runs, ms) for name, ms in took.items() if ms > 0)


def _layers(module: Any, owned: dict[int, tuple[float, float]], events: list[Any], on_gpu: bool) -> Any:
    by_layer = _operators_by_layer(events, on_gpu)
    rows = []
    for path, each in module.named_modules():
        if id(each) not in owned:
            continue  # never called: a container, or a part of a fused layer
        calls, ms = owned[id(each)]
        inside = by_layer.get(path, {})
        if on_gpu:
            runs = len(_ranges(events)) or 1
            ms = sum(inside.values()) / runs
        most = max(inside, key=lambda name: inside[name]) if inside else ""
        rows.append((path or _WHOLE, type(each).__name__, calls, ms, most))
    return layers_of(rows)


def _operators_by_layer(events: list[Any], on_gpu: bool) -> dict[str, dict[str, float]]:
    """Milliseconds of each operator, by the path of the innermost module around it."""
    found: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in events:
        if not event.name.startswith(("aten::", "quantized::")):
            continue
        above = event.cpu_parent
        while above is not None and not above.name.startswith(_MARK):
            above = above.cpu_parent
        if above is not None:
            found[above.name.removeprefix(_MARK)][event.name] += _own_ms(event, on_gpu)
    return {path: dict(inside) for path, inside in found.items()}


def _device(
    torch: Any, run: Callable[[], None], events: list[Any], gpu: Any, run_ms: float
) -> tuple[DeviceUse | None, str]:
    if not torch.cuda.is_available():
        return None, "not here: no CUDA device"
    if gpu is None:
        return None, "the model's weights are on the CPU, although there is a CUDA device"
    torch.cuda.reset_peak_memory_stats(gpu)
    run()
    peak_bytes = int(torch.cuda.max_memory_allocated(gpu))
    name = torch.cuda.get_device_name(gpu)
    return device_use(name, _kernels(events), _ranges(events), peak_bytes, run_ms=run_ms), ""


def _kernels(events: list[Any]) -> list[tuple[float, float]]:
    """(start, end) in milliseconds of what the GPU did: marks that a profiler draws beside its kernels are none."""
    return [
        (event.time_range.start / 1e3, event.time_range.end / 1e3)
        for event in events
        if "CUDA" in str(event.device_type)
        and not event.name.startswith((_RUN, _MARK))
        and not getattr(event, "is_user_annotation", False)
    ]


def _notes(torch: Any, module: Any) -> tuple[str, ...]:
    notes = [f"torch runs on {_threads(torch.get_num_threads())} here"]
    if module.training:
        notes.append("the module is in training mode: dropout and batch statistics are computed; call .eval()")
    return tuple(notes)


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"
