"""Combinations that no single key forbids and that still cannot work. Pure: reads the deployment and nothing else."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import pairwise
from unicodedata import category
from urllib.parse import urlsplit

from tailcut.common.metric_names import AGREEMENT, METRIC_NAMES
from tailcut.common.units import Duration, format_duration, format_share, format_size
from tailcut.errors import ManifestError
from tailcut.manifest.checks.bounds import bounds_problems
from tailcut.manifest.checks.features import feature_problems
from tailcut.manifest.checks.rules import Rule, broken
from tailcut.manifest.keys import dotted, meant, repeated
from tailcut.manifest.schema import Alerts, Batching, Deployment, HistorySettings, PredictionCache, TensorSpec
from tailcut.system.public_address import is_public

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
        server_problems,
        _pool,
        batching_problems,
        feature_problems,
        cache_problems,
        _columns,
        _drift,
        bounds_problems,
        request_log_problems,
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
        for name in repeated(tensor.name for tensor in tensors):
            yield ManifestError(f"{path}: two tensors are named {name}", hint="give each its own name")
        for tensor in tensors:
            if tensor.columns and path == "model.outputs":
                yield ManifestError(
                    f"{path}.{tensor.name}.columns: an output has no columns",
                    hint="remove it; columns fill inputs only. To name the columns of an output use holdout.classes",
                )
            yield from _shape(f"{path}.{tensor.name}", tensor, vectors)
    for name in repeated(rung.name for rung in deployment.ladder.rungs):
        yield ManifestError(f"ladder.rungs: two rungs are named {name}", hint="give each its own name")
    names = [tensor.name for tensor in deployment.model.outputs]
    if deployment.judged not in names:
        yield ManifestError(
            f"holdout.output: the model has no output {deployment.judged}",
            hint=meant(deployment.judged, names, f"its outputs are: {', '.join(names)}"),
        )


def _shape(path: str, tensor: TensorSpec, vectors: Collection[str]) -> Iterator[ManifestError]:
    """Yield what is wrong with a tensor's shape; columns of ``vectors`` may have several values each."""
    shape, columns = list(tensor.shape), len(tensor.columns)
    width = 1 if len(shape) == 1 else shape[1]
    wider = width > columns and any(column in vectors for column in tensor.columns)
    return broken(
        (
            shape[0] != -1,
            f"{path}.shape: the first dimension of {shape} is {shape[0]}, not -1",
            f"the first dimension is the batch; write shape = {[-1, *shape[1:]]} or {[-1, *shape]}",
        ),
        (
            any(size != -1 and size < 1 for size in shape[1:]),
            f"{path}.shape: {shape} has a dimension below 1",
            "write -1 for a free dimension",
        ),
        (
            columns > 0 and (len(shape) > 2 or width not in (-1, columns)) and not wider,
            f"{path}.columns: {columns} columns do not fill the shape {shape}",
            f"write shape = [-1, {columns}], or fill the tensor in model.preprocess",
        ),
    )


def _quality(deployment: Deployment) -> Iterator[ManifestError]:
    known = (*METRIC_NAMES, AGREEMENT, *deployment.quality.metrics)
    for metric, budget in deployment.quality.budget.items():
        yield from broken(
            (
                metric not in known,
                f"quality.budget.{metric}: unknown metric",
                f"{meant(metric, known, '')} the metrics are {', '.join(known)}".strip(),
            ),
            (
                not budget > 0,
                f"quality.budget.{metric}: {budget} is not above 0; a budget is the maximum loss, and no number of "
                "rows can prove a loss of zero",
                "write a positive number, such as 0.001, also for metrics where less is better",
            ),
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
    return broken(
        (
            drift.window_s < _SHORTEST_DRIFT_S,
            f"drift.window: {format_duration(drift.window_s)} is below 1s: too few rows for a distribution",
            'write the period of your traffic\'s rhythm, such as "1d" or "7d"',
        ),
        (
            drift.min_effect >= 1,
            "drift.min_effect: 1 calls no change drift",
            'write a share below 1, or drift.mode = "off"',
        ),
    )


def _pool(deployment: Deployment) -> Iterator[ManifestError]:
    pool = deployment.pool
    counts = (("executors", pool.executors), ("max_executors", pool.max_executors))
    return broken(
        *(
            (
                count > _MOST_EXECUTORS,
                f"pool.{name}: {count} is more than {_MOST_EXECUTORS}; each executor holds a copy of the model and "
                "runs one batch at a time",
                f"set pool.{name} to about the number of cores, or to 0 for the default",
            )
            for name, count in counts
        ),
        (
            pool.executor == "inline" and pool.executors > 1,
            f"pool.executors: {pool.executors} inline executors cannot run in parallel; they share the event loop's "
            "thread",
            'set pool.executor = "thread", or pool.executors = 1',
        ),
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
                yield ManifestError(
                    f"{path}: no feature group yields {column}",
                    hint=meant(column, known, f"known columns are: {', '.join(known)}"),
                )


# -- The server, and what is observed ---------------------------------------------------------------------------------


_LEAST_KEPT_S, _LEAST_HISTORY_BYTES = 3600, 1024 * 1024
_GROWTHS = {
    "p95_growth": {"p95_growth"},
    "leak_growth": {"memory_leak", "descriptor_leak", "thread_leak", "gpu_memory_leak"},
}
"""Settings of a growth, and the alerts that they are of."""
_ORIGIN = re.compile(r"\*|https?://[^/\s@?#]+")
"""Source: RFC 6454, 6.2: a scheme, a host and a port or none; no path."""


def server_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield what cannot work of time limits, TLS, CORS, tokens, connections and what is observed."""
    server, timeout_s = deployment.server, deployment.slo.timeout_s
    timeout = format_duration(timeout_s)
    # The last request may come when the drain ends, and has its whole deadline then.
    least_s = Duration(round(server.drain_s + timeout_s, 9))
    window_s = deployment.observe.window_s
    given, missing = ("tls_cert", "tls_key") if server.tls_cert else ("tls_key", "tls_cert")
    return broken(
        (
            server.kill_s < least_s,
            f"server.kill: {format_duration(server.kill_s)} is less than server.drain = "
            f"{format_duration(server.drain_s)} plus slo.timeout = {timeout}; requests would be killed before their "
            "deadline",
            f"set server.kill to at least {format_duration(least_s)}",
        ),
        (
            server.max_timeout_s < timeout_s,
            f"server.max_timeout: {format_duration(server.max_timeout_s)} is below slo.timeout = {timeout}",
            f"raise server.max_timeout to at least {timeout}, or lower slo.timeout",
        ),
        (
            not server.idle_s,
            "server.idle is 0s, so no client could send a request",
            "leave it out, or set it above the idle timeout of your load balancer",
        ),
        (
            window_s < 1,
            f"observe.window is {format_duration(window_s)}, below 1s: too few requests for a p99",
            "leave it out, or set it to at least twice your scrape interval",
        ),
        *_history_rules(deployment.observe.history),
        *_alert_rules(deployment.observe.alerts),
        (
            not server.max_body_bytes,
            "server.max_body is 0 bytes: every prediction request would be refused",
            'leave it out, or set it to the largest body to accept, such as "16MiB"',
        ),
        (
            bool(server.tls_cert) != bool(server.tls_key),
            f"server.{given} is set but server.{missing} is not",
            f"set server.{missing} too, or remove server.{given}",
        ),
        *(
            (
                not _ORIGIN.fullmatch(origin),
                f'server.cors_origins: "{origin}" is not an origin',
                'write scheme, host and port as browsers send them, such as "https://app.example.com", or "*"',
            )
            for origin in server.cors_origins
        ),
        (
            bool(server.tokens) and server.tokens == server.management_tokens,
            f'server.management_tokens: "{server.tokens}" is also the file of server.tokens, so every client of the '
            "model could unload it",
            "put the management tokens in a separate file",
        ),
    )


def _history_rules(history: HistorySettings) -> tuple[Rule, ...]:
    return (
        (
            # A damaged history is renamed: no other file may be taken for one.
            history.path not in {"", "off"} and not history.path.endswith(".sqlite"),
            f'observe.history.path is "{history.path}", which does not end in .sqlite',
            'name a file such as "history.sqlite", or write "off"',
        ),
        (
            history.keep_s < _LEAST_KEPT_S,
            f"observe.history.keep is {format_duration(history.keep_s)}, below 1h",
            'write for example "5w", or set observe.history.path to "off"',
        ),
        (
            history.size_bytes < _LEAST_HISTORY_BYTES,
            f"observe.history.size is {format_size(history.size_bytes)}, below 1MiB",
            'write for example "1GiB", or set observe.history.path to "off"',
        ),
    )


def _alert_rules(alerts: Alerts) -> Iterator[Rule]:
    schemes = ("https://", "http://") if alerts.allow_private else ("https://",)
    host = _host(alerts.webhook)
    yield (
        bool(alerts.webhook) and not (alerts.webhook.startswith(schemes) and host),
        f'observe.alerts.webhook is "{alerts.webhook}", expected {" or ".join(schemes)}, a host, and '
        "perhaps a port up to 65535",
        "correct the URL; http is for receivers in your own network: observe.alerts.allow_private = true",
    )
    yield (
        bool(host) and not alerts.allow_private and _is_private(host),
        f"observe.alerts.webhook has the host {host}, which is not public",
        "set observe.alerts.allow_private = true for a receiver in your own network",
    )
    yield (
        bool(alerts.webhook) and bool(alerts.secret_file) == bool(alerts.secret_env),
        f"observe.alerts.webhook needs one secret, but {'two are' if alerts.secret_file else 'none is'} named",
        "set observe.alerts.secret_file or observe.alerts.secret_env",
    )
    yield (
        not 60 <= alerts.window_s <= 3600,
        f"observe.alerts.window is {format_duration(alerts.window_s)}; it must be between 1m and 1h",
        "leave it out for 15m",
    )
    for name, judged in _GROWTHS.items():
        yield (
            not getattr(alerts, name) and not judged <= set(alerts.off),
            f"observe.alerts.{name} is 0, which every fluctuation exceeds",
            "leave it out, write for example 0.1, or switch the alert off in observe.alerts.off",
        )


def _host(url: str) -> str:
    """Return the host of a URL; empty where it has none, or a port that is none."""
    try:
        parts = urlsplit(url)
        return parts.hostname if parts.hostname and parts.port != 0 else ""
    except ValueError:
        return ""


def _is_private(host: str) -> bool:
    """Whether a host is private by its text alone; the webhook judges every address when it is sent."""
    try:
        return not is_public(host)
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


# -- Batching ----------------------------------------------------------------------------------------------------------


def batching_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield every impossible combination."""
    batching = deployment.batching
    yield from broken(
        (
            batching.max_rows > batching.max_queue_rows,
            f"batching.max_rows: {batching.max_rows} is more than batching.max_queue_rows = {batching.max_queue_rows}; "
            "a full batch could never be queued",
            f"set batching.max_queue_rows to at least {batching.max_rows}",
        ),
        (
            not 0 < batching.tenant_share <= 1,
            f"batching.tenant_share: {format_share(batching.tenant_share)} is not above 0% and at most 100%",
            'write a share of the queue, such as "50%"',
        ),
    )
    yield from _fixed(deployment, batching)


def _fixed(deployment: Deployment, batching: Batching) -> Iterator[ManifestError]:
    delay_s, timeout_s = batching.max_queue_delay_s, deployment.slo.timeout_s
    if batching.mode != "fixed":
        for name, given in (("preferred_rows", batching.preferred_rows), ("max_queue_delay", delay_s)):
            if given:
                yield ManifestError(
                    f'batching.{name} has no effect with batching.mode = "{batching.mode}"',
                    hint=f'set batching.mode = "fixed", or leave batching.{name} out',
                )
        return
    for rows in batching.preferred_rows:
        if not 0 < rows <= batching.max_rows:
            yield ManifestError(
                f"batching.preferred_rows: {rows} is not from 1 to batching.max_rows = {batching.max_rows}",
                hint="give sizes from 1 to batching.max_rows",
            )
    if delay_s >= timeout_s:
        yield ManifestError(
            f"batching.max_queue_delay: {format_duration(delay_s)} is not below slo.timeout = "
            f"{format_duration(timeout_s)}; requests would miss their deadline while they wait for a batch to fill",
            hint="lower batching.max_queue_delay to a small part of slo.timeout",
        )


# -- Prediction caches -------------------------------------------------------------------------------------------------


_MOST_DIGITS = 15
"""A double has no more."""
STALE = "stale"


def cache_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield every impossible combination."""
    caches: dict[str, PredictionCache] = {"entity": deployment.cache.entity, "tensor": deployment.cache.tensor}
    for name, cache in caches.items():
        yield from broken(
            (
                cache.enabled and cache.shared and not deployment.features.redis,
                f"cache.{name}.shared: true, but features.redis is empty, so there is nothing to share through",
                'set redis = "redis://localhost:6379/0" in [features]',
            ),
            (
                not 0 <= cache.ttl_jitter < 1,
                f"cache.{name}.ttl_jitter: {format_share(cache.ttl_jitter)} is not from 0% to below 100%",
                'write a share of the TTL, such as "10%"',
            ),
        )
    yield from _digits(deployment)
    serve = deployment.serve
    if STALE in serve.fallback and not any(cache.enabled and cache.stale_for_s for cache in caches.values()):
        yield ManifestError(
            'serve.fallback: "stale" needs a prediction cache that keeps expired answers',
            hint='set enabled = true and stale_for = "1m" in [cache.entity] or [cache.tensor]',
        )
    for name in repeated(serve.fallback):
        yield ManifestError(f"serve.fallback: {name} is listed twice", hint="name each fallback once")


def _digits(deployment: Deployment) -> Iterator[ManifestError]:
    inputs = {tensor.name: tensor for tensor in deployment.model.inputs}
    for name, digits in deployment.cache.tensor.round_digits.items():
        path = f"cache.tensor.round_digits.{name}"
        if name not in inputs:
            hint = meant(name, inputs, f"its inputs are: {', '.join(inputs)}")
            yield ManifestError(f"{path}: the model has no such input", hint=hint)
        elif not inputs[name].datatype.startswith("FP"):
            yield ManifestError(
                f"{path}: the input is {inputs[name].datatype}, which has no decimals",
                hint="round float inputs only",
            )
        if not 0 <= digits <= _MOST_DIGITS:
            yield ManifestError(
                f"{path}: {digits} is not from 0 to {_MOST_DIGITS}", hint="write a number of decimals, such as 4"
            )


# -- Names -------------------------------------------------------------------------------------------------------------


LONGEST_NAME = 200
"""Of a deployment: folders of the registry are called like it, and file systems end at 255 bytes."""

_TAKEN = frozenset({"stats"})
"""Deployments of these names would have a path of the protocol: /v2/models/stats has the statistics of all models."""


def name_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield names that cannot be used."""
    name = deployment.name
    yield from broken(
        (
            name in _TAKEN,
            f'name: "{name}" is reserved: /v2/models/{name} is a path of the protocol',
            f'name it "{name}-model"',
        ),
        (
            len(name) > LONGEST_NAME,
            f"name: {len(name)} characters, the limit is {LONGEST_NAME}",
            "choose a shorter name; folders and paths contain it",
        ),
    )
    for path, one in _names(deployment):
        if not one:
            yield ManifestError(f"{path}: a name is empty", hint="give it a name")
        elif controls := [character for character in one if category(character) == "Cc"]:
            yield ManifestError(
                f"{path}: the name {one!r} holds the control character {controls[0]!r}",
                hint="names may hold letters, digits, spaces and punctuation of any script",
            )
    outputs = {tensor.name for tensor in deployment.model.outputs}
    for tensor in deployment.model.inputs:
        if tensor.name in outputs:
            yield ManifestError(
                f"{dotted(('model', 'outputs', tensor.name))}: an input has the same name; an ONNX file cannot have "
                "both",
                hint=f'rename the output, for example "{tensor.name}_out": a torch module or a table gives its '
                "outputs in the manifest's order; in an .onnx file rename it",
            )


def _names(deployment: Deployment) -> Iterator[tuple[str, str]]:
    """Yield the names that anything may be called, with where each stands."""
    model, features = deployment.model, deployment.features
    for path, tensors in (("model.inputs", model.inputs), ("model.outputs", model.outputs)):
        for tensor in tensors:
            yield path, tensor.name
            yield from ((f"{path}.{tensor.name}.columns", column) for column in tensor.columns)
    yield from (("model.fields", field.name) for field in model.fields)
    yield from (("features.entity", field) for field in features.entity)
    for group in features.groups:
        for key, columns in (("key", group.key), ("columns", group.columns)):
            yield from ((f"features.groups.{group.name}.{key}", column) for column in columns)


# -- The request log ---------------------------------------------------------------------------------------------------


_LEAST_BYTES = 64 * 1024
_LEAST_AGE_S = 1.0


def request_log_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield what cannot work of the request log."""
    log = deployment.request_log
    size, least_size = format_size(log.rotate_size_bytes), format_size(_LEAST_BYTES)
    examples = (("share", log.share, "1%"), ("rotate_size", log.rotate_size_bytes, "64MiB"))
    return broken(
        *(
            (
                not value,
                f"request_log.{key} is 0",
                f'write for example "{example}"; an empty request_log.path is off',
            )
            for key, value, example in (*examples, ("rotate_age", log.rotate_age_s, "1h"))
        ),
        (
            0 < log.rotate_size_bytes < _LEAST_BYTES,
            f"request_log.rotate_size is {size}, below {least_size}: few requests would fit into a file",
            'write for example "64MiB"',
        ),
        (
            0 < log.rotate_age_s < _LEAST_AGE_S,
            f"request_log.rotate_age is {format_duration(log.rotate_age_s)}, below {format_duration(_LEAST_AGE_S)}",
            'write for example "1h"',
        ),
        (
            bool(log.hash) and not log.hash_key,
            "request_log.hash names fields, but request_log.hash_key is empty",
            "name a file with at least 16 random bytes, or an environment variable as 'env:NAME'",
        ),
        (
            log.keep_bytes < 2 * log.rotate_size_bytes,
            f"request_log.keep is {format_size(log.keep_bytes)}, less than two files of request_log.rotate_size "
            f"({size}): the log would be deleted while it is written",
            "raise keep, or lower rotate_size",
        ),
        *(
            (
                name in log.drop,
                f"request_log: {name} is in hash and in drop",
                "name it in one: what is dropped has no hash",
            )
            for name in log.hash
        ),
    )
