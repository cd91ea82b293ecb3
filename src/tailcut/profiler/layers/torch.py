"""A torch module's slow layers, by torch's profiler, which marks every module.

A pass without the profiler gives the time of a run. Hooks are torch's global ones: hooks on the modules themselves
switch off the fast path of its transformer layers, and another model than the served one would be measured.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tailcut.common.statistics import percentile
from tailcut.errors import ProfileError
from tailcut.models.runtimes.checks import first_line
from tailcut.profiler.attribution.layers import (
    DISPATCH,
    DeviceUse,
    ModelLayers,
    device_use,
    layers_of,
    operators_of,
    quiet,
)
from tailcut.profiler.layers.onnx import described, run_times_ms

_PROFILED = 20
_MARK = "tailcut.layer:"
_RUN = "tailcut.run"
_OPERATORS = ("aten::", "quantized::")
_WHOLE = "(the model itself)"


def of_torch(module: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any], name: str) -> ModelLayers:
    """Run a module on one input, again and again for about a second, and say where its time goes.

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
            times = run_times_ms(run)
            with _marked(torch, module):
                events = _profiled(torch, run, min(len(times), _PROFILED), on_gpu)
            device, note = _device(torch, run, events, gpu, percentile(times, 0.5))
    except Exception as error:
        raise ProfileError(
            f"{name} cannot be profiled on {described(_named(args, kwargs)) or 'no tensors'}:"
            f" {type(error).__name__}: {first_line(error)}",
            hint="is this an input that the module takes?",
        ) from error
    runs = _ranges(events)
    return ModelLayers(
        model=name,
        runtime=f"torch {torch.__version__.partition('+')[0]}",
        inputs=described(_named(args, kwargs)),
        runs=len(runs),
        run_ms=percentile(times, 0.5),
        profiled_ms=sum(end - start for start, end in runs) / max(len(runs), 1),
        layers=_layers(module, events, len(runs), on_gpu),
        operators=_operators(events, len(runs), on_gpu),
        device=device,
        device_note=note,
        notes=(
            f"torch runs with {torch.get_num_threads()} threads here",
            *(["the module is in training mode: call .eval()"] if module.training else []),
        ),
    )


def _named(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for place, value in enumerate(args):
        if isinstance(value, Mapping):
            yield from value.items()
        else:
            yield f"#{place}", value
    yield from kwargs.items()


@contextmanager
def _marked(torch: Any, module: Any) -> Iterator[None]:
    """Mark in torch's profile what each module takes, by its path in the model."""
    from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

    paths = {id(each): path for path, each in module.named_modules()}
    open_marks: list[Any] = []

    def enter(one: Any, _: Any) -> None:
        mark = torch.profiler.record_function(f"{_MARK}{paths.get(id(one), '')}")
        mark.__enter__()
        open_marks.append(mark)

    def leave(*_: Any) -> None:
        open_marks.pop().__exit__(None, None, None)

    with register_module_forward_pre_hook(enter), register_module_forward_hook(leave):
        yield


def _profiled(torch: Any, run: Callable[[], None], runs: int, on_gpu: bool) -> list[Any]:
    """Events of torch's profiler over some runs, each under a mark of its own."""
    from torch.profiler import ProfilerActivity, profile, record_function

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with profile(activities=activities) as seen:
        for _ in range(runs):
            with record_function(_RUN):
                run()
    events = list(seen.events())
    kept = quiet([(event.time_range.start, event.time_range.end) for event in events if _is_run(event)])
    return [event for event in events if any(start <= event.time_range.start < end for start, end in kept)]


def _is_run(event: Any) -> bool:
    return event.name == _RUN and "CPU" in str(event.device_type)


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
        name = DISPATCH if ours or not event.name.startswith(_OPERATORS) else event.name
        took[name] += _own_ms(event, on_gpu) / runs
        calls[name] += 1
    return operators_of((name, calls[name] / runs, ms) for name, ms in took.items() if ms > 0)


def _layers(module: Any, events: list[Any], runs: int, on_gpu: bool) -> Any:
    """Rank the modules that were called by their own time: what their marks leave out of those inside them."""
    took: defaultdict[str, float] = defaultdict(float)
    calls: Counter[str] = Counter()
    inside: defaultdict[str, defaultdict[str, float]] = defaultdict(lambda: defaultdict(float))
    for event in events:
        above = _mark_above(event)
        if event.name.startswith(_MARK) and "CPU" in str(event.device_type):
            path = event.name.removeprefix(_MARK)
            calls[path] += 1
            took_ms = (event.time_range.end - event.time_range.start) / 1e3
            took[path] += took_ms
            if above is not None:
                took[above] -= took_ms
        elif event.name.startswith(_OPERATORS) and above is not None:
            inside[above][event.name] += _own_ms(event, on_gpu)
    kinds = {path: type(each).__name__ for path, each in module.named_modules()}
    return layers_of(
        (
            path or _WHOLE,
            kinds[path],
            called / runs,
            (sum(inside[path].values()) if on_gpu else took[path]) / runs,
            max(inside[path], key=lambda name: inside[path][name], default=""),
        )
        for path, called in calls.items()
    )


def _mark_above(event: Any) -> str | None:
    """Find the path of the innermost module that encloses an event; None outside of all."""
    above = event.cpu_parent
    while above is not None and not above.name.startswith(_MARK):
        above = above.cpu_parent
    return above.name.removeprefix(_MARK) if above is not None else None


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
