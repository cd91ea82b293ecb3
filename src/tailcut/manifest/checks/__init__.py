"""Combinations that no single key forbids and that still cannot work. Pure: reads the deployment and nothing else."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise

from tailcut.common.metric_names import AGREEMENT, METRIC_NAMES
from tailcut.common.units import Duration, format_duration
from tailcut.errors import ManifestError
from tailcut.manifest.checks.batching import batching_problems
from tailcut.manifest.checks.bounds import bounds_problems
from tailcut.manifest.checks.cache import cache_problems
from tailcut.manifest.checks.features import feature_problems
from tailcut.manifest.checks.names import name_problems
from tailcut.manifest.checks.request_log import request_log_problems
from tailcut.manifest.checks.server import server_problems
from tailcut.manifest.keys import nearest
from tailcut.manifest.schema import Deployment, Tensor

REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
"""'package.module:callable'."""

_WRITE_REFERENCE = "write 'package.module:callable'"

_SHORTEST_DRIFT_S = 1.0
_MOST_EXECUTORS = 1024
"""More than any machine has cores for: a slip of the pen, which would open models until memory ends."""


def problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield every impossible combination, most basic first."""
    checks: tuple[Callable[[Deployment], Iterable[ManifestError]], ...] = (
        name_problems,
        _references,
        _tensors,
        _quality,
        _slo,
        _server,
        server_problems,
        _pool,
        batching_problems,
        feature_problems,
        cache_problems,
        _columns,
        _drift,
        bounds_problems,
        request_log_problems,
        _rung_names,
    )
    for check in checks:
        yield from check(deployment)


def _references(deployment: Deployment) -> Iterator[ManifestError]:
    source = deployment.model.source
    if not source.endswith(".onnx") and "/" not in source and not REFERENCE.fullmatch(source):
        yield ManifestError(
            f'model.source: "{source}" is neither a reference nor a path to an .onnx file',
            hint=f"{_WRITE_REFERENCE}, a path that ends in .onnx, or a Hugging Face folder as ./folder",
        )
    references = {
        "model.preprocess": deployment.model.preprocess,
        "model.postprocess": deployment.model.postprocess,
        "holdout.source": "" if deployment.holdout.is_file else deployment.holdout.source,
        "features.clock": deployment.features.clock,
        "ladder.setup": deployment.ladder.setup,
        "ladder.traffic": deployment.ladder.traffic,
    }
    references |= {f"model.trusted[{place}]": each for place, each in enumerate(deployment.model.trusted)}
    references |= {f"features.groups.{group.name}.function": group.function for group in deployment.features.groups}
    for path, reference in references.items():
        if reference and not REFERENCE.fullmatch(reference):
            yield ManifestError(f'{path}: "{reference}" is not a reference', hint=_WRITE_REFERENCE)


def _tensors(deployment: Deployment) -> Iterator[ManifestError]:
    vectors = {column for group in deployment.features.groups if group.model for column in group.columns}
    for path, tensors in (("model.inputs", deployment.model.inputs), ("model.outputs", deployment.model.outputs)):
        for name in _repeated(tensor.name for tensor in tensors):
            yield ManifestError(f"{path}: two tensors are named {name}", hint="give each its own name")
        for tensor in tensors:
            if tensor.columns and path == "model.outputs":
                yield ManifestError(
                    f"{path}.{tensor.name}.columns: an output has no columns",
                    hint="remove it; columns fill inputs only. To name the columns of an output use holdout.classes",
                )
            yield from _shape(f"{path}.{tensor.name}", tensor, vectors)
    names = [tensor.name for tensor in deployment.model.outputs]
    if deployment.judged not in names:
        close = nearest(deployment.judged, names)
        yield ManifestError(
            f"holdout.output: the model has no output {deployment.judged}",
            hint=f"did you mean {close}?" if close else f"its outputs are: {', '.join(names)}",
        )


def _shape(path: str, tensor: Tensor, vectors: Collection[str]) -> Iterator[ManifestError]:
    """Yield what is wrong with a tensor's shape; columns of ``vectors`` may have several values each."""
    shape, columns = list(tensor.shape), len(tensor.columns)
    if shape[0] != -1:
        hint = f"the first dimension is the batch; write shape = {[-1, *shape[1:]]} or {[-1, *shape]}"
        yield ManifestError(f"{path}.shape: the first dimension of {shape} is {shape[0]}, not -1", hint=hint)
    if any(size != -1 and size < 1 for size in shape[1:]):
        yield ManifestError(f"{path}.shape: {shape} has a dimension below 1", hint="write -1 for a free dimension")
    width = 1 if len(shape) == 1 else shape[1]
    wider = width > columns and any(column in vectors for column in tensor.columns)
    if columns and (len(shape) > 2 or width not in (-1, columns)) and not wider:
        yield ManifestError(
            f"{path}.columns: {columns} columns do not fill the shape {shape}",
            hint=f"write shape = [-1, {columns}], or fill the tensor in model.preprocess",
        )


def _quality(deployment: Deployment) -> Iterator[ManifestError]:
    known = (*METRIC_NAMES, AGREEMENT, *deployment.quality.metrics)
    for metric, budget in deployment.quality.budget.items():
        if metric not in known:
            close = nearest(metric, known)
            hint = f"did you mean {close}? " if close else ""
            yield ManifestError(
                f"quality.budget.{metric}: unknown metric", hint=f"{hint}the metrics are {', '.join(known)}"
            )
        if not budget > 0:
            yield ManifestError(
                f"quality.budget.{metric}: {budget} is not above 0; a budget is the maximum loss, and no number of "
                "rows can prove a loss of zero",
                hint="write a positive number, such as 0.001, also for metrics where less is better",
            )


def _slo(deployment: Deployment) -> Iterator[ManifestError]:
    slo = deployment.slo
    limits = [("p50", slo.p50_s), ("p95", slo.p95_s), ("p99", slo.p99_s), ("timeout", slo.timeout_s)]
    named = [(name, seconds) for name, seconds in limits if seconds is not None]
    for name, seconds in named:
        if seconds <= 0:
            yield ManifestError(f"slo.{name}: 0s can never be met", hint='write a time above zero, such as "25ms"')
    for (low, low_s), (high, high_s) in pairwise(named):
        if low_s > high_s:
            yield ManifestError(
                f"slo.{high}: {format_duration(high_s)} is below slo.{low} = {format_duration(low_s)}",
                hint=f"raise slo.{high} to at least {format_duration(low_s)}, or lower slo.{low}",
            )


def _drift(deployment: Deployment) -> Iterator[ManifestError]:
    drift = deployment.drift
    if drift.window_s < _SHORTEST_DRIFT_S:
        yield ManifestError(
            f"drift.window: {format_duration(drift.window_s)} is below 1s: too few rows for a distribution",
            hint='write the period of your traffic\'s rhythm, such as "1d" or "7d"',
        )
    if drift.min_effect >= 1:
        yield ManifestError(
            "drift.min_effect: 1 calls no change drift", hint='write a share below 1, or drift.mode = "off"'
        )


def _server(deployment: Deployment) -> Iterator[ManifestError]:
    server, timeout_s = deployment.server, deployment.slo.timeout_s
    timeout = format_duration(timeout_s)
    # The last request may come when the drain ends, and has its whole deadline then.
    least_s = Duration(round(server.drain_s + timeout_s, 9))
    if server.kill_s < least_s:
        drain, kill, least = format_duration(server.drain_s), format_duration(server.kill_s), format_duration(least_s)
        yield ManifestError(
            f"server.kill: {kill} is less than server.drain = {drain} plus slo.timeout = {timeout}; requests would be "
            "killed before their deadline",
            hint=f"set server.kill to at least {least}",
        )
    if server.max_timeout_s < timeout_s:
        yield ManifestError(
            f"server.max_timeout: {format_duration(server.max_timeout_s)} is below slo.timeout = {timeout}",
            hint=f"raise server.max_timeout to at least {timeout}, or lower slo.timeout",
        )


def _pool(deployment: Deployment) -> Iterator[ManifestError]:
    pool = deployment.pool
    for name, count in (("executors", pool.executors), ("max_executors", pool.max_executors)):
        if count > _MOST_EXECUTORS:
            yield ManifestError(
                f"pool.{name}: {count} is more than {_MOST_EXECUTORS}; each executor holds a copy of the model and "
                "runs one batch at a time",
                hint=f"set pool.{name} to about the number of cores, or to 0 for the default",
            )
    if pool.executor == "inline" and pool.executors > 1:
        yield ManifestError(
            f"pool.executors: {pool.executors} inline executors cannot run in parallel; they share the event loop's "
            "thread",
            hint='set pool.executor = "thread", or pool.executors = 1',
        )


def _columns(deployment: Deployment) -> Iterator[ManifestError]:
    """Where no hook fills the tensors, each must be filled by columns that something yields."""
    features = deployment.features
    if deployment.model.preprocess or not features.groups:
        return
    known = [*features.entity, *(column for group in features.groups for column in group.columns)]
    for tensor in deployment.model.inputs:
        path = f"model.inputs.{tensor.name}.columns"
        if not tensor.columns:
            yield ManifestError(
                f"{path} is empty and there is no model.preprocess, so nothing fills this tensor",
                hint=f"name columns, from: {', '.join(known)}",
            )
        for column in tensor.columns:
            if column not in known:
                close = nearest(column, known)
                yield ManifestError(
                    f"{path}: no feature group yields {column}",
                    hint=f"did you mean {close}?" if close else f"known columns are: {', '.join(known)}",
                )


def _rung_names(deployment: Deployment) -> Iterator[ManifestError]:
    for name in _repeated(rung.name for rung in deployment.ladder.rungs):
        yield ManifestError(f"ladder.rungs: two rungs are named {name}", hint="give each its own name")


def _repeated(names: Iterable[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]
