"""Speed under load: every variant in a ``tailcut serve`` process of its own, over the socket, in turn.

Requests arrive at random (Poisson) at the SLO's rate whatever the answers do, and are counted from their intended send
time. All servers run from the start; each round sends the same traffic to one after the other, beginning with another
one each time, so that a slow spell of the machine meets all of them. Features and caches are off: a variant is compared
with a variant, not with a cache.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tailcut.build import keeping, verdicts
from tailcut.build.device_time import device_seconds
from tailcut.build.holdout import Holdout
from tailcut.build.progress import Event, Progress
from tailcut.build.records import Made, to_add
from tailcut.build.verdicts import Cost, SpeedVerdict
from tailcut.core.fingerprint import uses_gpu
from tailcut.core.slo import LatencyObjective
from tailcut.core.tensors import Arrays
from tailcut.errors import BuildError, TailcutError
from tailcut.ladder.machine import choose_cores, pinned
from tailcut.ladder.process import ServerProcess, free_port
from tailcut.load import LoadPlan, measure, summarise_run
from tailcut.load.samples import Samples
from tailcut.manifest import Cost as Prices
from tailcut.manifest import Deployment, Manifest
from tailcut.manifest.keys import to_plain, to_toml
from tailcut.registry import Registry

_PAYLOADS = 512
_READY_S = 120.0
_WARMUP_S = 0.5
"""Before each round; no longer than the round itself."""

SEED = 0


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """One variant in one round.

    Attributes:
        latency_ms: at the SLO's percentile; a request without an answer counts as long as its deadline.
        p50_ms: median of the same.
        errors: share of requests without an answer.
        cpu_ms: of the server, per request.
        gpu_ms: that the variant's executors held the GPU, per request; None where it runs on none.
    """

    latency_ms: float
    p50_ms: float
    errors: float
    cpu_ms: float
    gpu_ms: float | None = None


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """One variant under load; ``failed`` says why there are no rounds."""

    rounds: list[Round] = []
    failed: str = ""


def objective(deployment: Deployment) -> LatencyObjective:
    """Return the SLO's latency objective that variants are compared at: the strictest percentile that it names."""
    slo = deployment.slo
    named = ((0.99, slo.p99_s), (0.95, slo.p95_s), (0.5, slo.p50_s))
    share, limit_s = next(((share, limit) for share, limit in named if limit is not None), (0.95, slo.timeout_s))
    return LatencyObjective(share=share, limit_s=float(limit_s))


def run(
    manifest: Manifest,
    made: Sequence[Made],
    holdout: Holdout,
    folder: Path,
    tell: Progress,
    bounds: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Trial]:
    """Measure every variant under load.

    Args:
        manifest: names the SLO, its rate, the rounds and the executors.
        made: variants to compare.
        holdout: whose rows are sent, one per request.
        folder: for the servers' manifest, registry and logs.
        tell: told of every round as it starts.
        bounds: of the inputs, as they will be served with.
    """
    deployment = manifest.deployment
    served = _prepare(manifest, made, folder, bounds)
    payloads = _write_payloads(holdout, folder / "payloads.jsonl", deployment)
    rounds: dict[str, list[Round]] = {each.name: [] for each in made}
    failed: dict[str, str] = {}
    cores = choose_cores()
    # A variant with threads of its own has all cores, and the load beside it: pinned to one it would be misjudged.
    alone = all(deployment.pool.threads_of(each.settings) == 1 for each in made)
    core = cores.server if alone else None
    on_gpu = {each.name for each in made if uses_gpu(each.runtime, each.settings)}
    with ExitStack() as stack:
        servers: dict[str, ServerProcess] = {}
        for each in made:
            try:
                servers[each.name] = stack.enter_context(_server(served, each.name, folder, core))
            except TailcutError as error:
                failed[each.name] = f"{error.message}: {error.hint}"
        stack.enter_context(pinned(cores.load if alone else None))
        for number in range(deployment.build.rounds):
            for name in _turn(list(servers), number):
                tell(_started(deployment, name, number))
                try:
                    rounds[name].append(_measure(deployment, servers[name], payloads, number, name in on_gpu))
                    servers[name].check_alive("under load")
                except TailcutError as error:
                    failed.setdefault(name, f"{error.message}: {servers[name].last_lines()}")
    return {
        each.name: Trial(failed=failed[each.name]) if each.name in failed else Trial(rounds=rounds[each.name])
        for each in made
    }


def judge(trial: Trial, reference: Trial, name: str, slo: LatencyObjective, errors: float) -> SpeedVerdict:
    """Compare two variants' rounds; see ``verdicts.speed``."""
    return verdicts.speed(
        name,
        [each.latency_ms for each in trial.rounds],
        [each.latency_ms for each in reference.rounds],
        [each.errors for each in trial.rounds],
        slo,
        errors,
    )


def price(trial: Trial, prices: Prices) -> Cost:
    """Price a million requests; see ``verdicts.cost``."""
    held_ms = [each.gpu_ms for each in trial.rounds if each.gpu_ms is not None]
    gpu_ms = float(np.mean(held_ms)) if held_ms else None
    return verdicts.cost(
        [each.cpu_ms for each in trial.rounds], gpu_ms, prices.core_hour, prices.gpu_hour, prices.currency
    )


def _started(deployment: Deployment, name: str, number: int) -> Event:
    return Event(state="started", step="load", variant=name, round=number + 1, rounds=deployment.build.rounds)


def _turn(names: list[str], number: int) -> list[str]:
    """Every second round runs backwards, so that no variant always follows the same one."""
    first = number % len(names) if names else 0
    turned = names[first:] + names[:first]
    return turned if number % 2 == 0 else turned[::-1]


def _prepare(manifest: Manifest, made: Sequence[Made], folder: Path, bounds: Sequence[Mapping[str, Any]]) -> Path:
    """Write a registry that holds the candidates, and a manifest that serves them without features and caches."""
    deployment = manifest.deployment
    registry = Registry(folder / "registry")
    version = registry.add(
        deployment.name,
        source=made[0].name,
        inputs=deployment.model.inputs,
        outputs=deployment.model.outputs,
        variants=[to_add(each) for each in made],
        evidence={"bounds": [dict(each) for each in bounds]},
        files=keeping.files(folder),
    )
    registry.promote(deployment.name, version.id, made[0].name)
    plain = to_plain(deployment)
    for section in ("features", "cache", "ladder", "holdout", "quality", "serve"):
        plain.pop(section, None)
    plain["python_path"] = [str((manifest.directory / each).resolve()) for each in deployment.python_path]
    plain["model"] = {**plain["model"], "source": _absolute(manifest, deployment.model.source)}
    plain["registry"] = {"path": str(folder / "registry")}
    # Addresses, tokens and TLS are of the place where it will serve; here it is asked over the loopback.
    server = plain.get("server", {})
    plain["server"] = {name: server[name] for name in ("kill", "max_body", "max_timeout") if name in server}
    path = folder / "tailcut.toml"
    path.write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in plain.items()), encoding="utf-8")
    return path


def _absolute(manifest: Manifest, source: str) -> str:
    path = manifest.directory / source
    return str(path.resolve()) if path.exists() else source


def _write_payloads(holdout: Holdout, path: Path, deployment: Deployment) -> Path:
    """Write rows of the holdout as Open Inference Protocol requests, with their NaN and infinity."""
    count = min(_PAYLOADS, holdout.rows)
    places = np.random.default_rng(SEED).permutation(holdout.rows)[:count]
    with path.open("w", encoding="utf-8") as file:
        for place in places:
            row = holdout.take(1, int(place))
            file.write(json.dumps({"inputs": _tensors(row, deployment)}) + "\n")  # msgspec writes null for infinity
    return path


def _tensors(row: Arrays, deployment: Deployment) -> list[dict[str, Any]]:
    tensors = []
    for tensor in deployment.model.inputs:
        array = row[tensor.name]
        data = array.ravel().tolist()
        tensors.append({"name": tensor.name, "shape": list(array.shape), "datatype": tensor.datatype, "data": data})
    return tensors


@contextmanager
def _server(manifest: Path, variant: str, folder: Path, core: int | None) -> Iterator[ServerProcess]:
    port = free_port()
    settings = (f"serve.variant={variant}", f"server.port={port}", "server.drain=100ms")
    command = [sys.executable, "-P", "-m", "tailcut", "serve", "-m", str(manifest)]
    process = ServerProcess(
        [*command, *(part for text in settings for part in ("--set", text))],
        port,
        folder / f"serve-{variant}.log",
        environment={name: value for name, value in os.environ.items() if not name.startswith("TAILCUT_")},
        directory=folder,
        core=core,
        stop_s=0.0,  # killed at once: nobody waits for an answer, and a torch server takes 2 s to end by itself
    )
    with process:
        process.wait_until_ready("/v2/health/ready", timeout_s=_READY_S, ok=(200,))
        yield process


def _measure(deployment: Deployment, server: ServerProcess, payloads: Path, number: int, on_gpu: bool) -> Round:
    plan = LoadPlan(
        url=f"http://127.0.0.1:{server.port}/v2/models/{deployment.name}/infer",
        rate=deployment.slo.rate,
        duration_s=float(deployment.build.round_s),
        warmup_s=min(_WARMUP_S, float(deployment.build.round_s)),
        payloads=str(payloads),
        timeout_s=float(deployment.slo.timeout_s),
        pid=server.pid,
        seed=SEED + number,
    )
    before_s = device_seconds(server.port) if on_gpu else 0.0
    samples, facts = measure(plan)
    held_s = device_seconds(server.port) - before_s if on_gpu else 0.0
    result = summarise_run(plan, samples, facts)
    if result.answered == 0:
        said = "; ".join(f"{status}: {body}" for status, body in result.bodies.items()) or "no answers"
        raise BuildError(f"under load no request of {result.requests} was answered ({said[:300]})")
    if result.cpu_s_per_1000 is None:
        raise BuildError("the server's CPU time could not be read, so that its cost is not known")
    took_ms, errors = _latencies(samples, float(deployment.slo.timeout_s) * 1e3)
    share = objective(deployment).share
    return Round(
        latency_ms=float(np.quantile(took_ms, share, method="inverted_cdf")),
        p50_ms=float(np.quantile(took_ms, 0.5, method="inverted_cdf")),
        errors=errors,
        cpu_ms=result.cpu_s_per_1000,
        # All that were answered, those of the warm-up too: the device was held for each of them.
        gpu_ms=held_s * 1e3 / int(_answered(samples.status).sum()) if on_gpu else None,
    )


def _latencies(samples: Samples, timeout_ms: float) -> tuple[Any, float]:
    """Milliseconds of every measured request, and the share of those without an answer."""
    measured = (samples.intended_ns >= samples.measured_from_ns) & (samples.status != 0)
    answered = _answered(samples.status)[measured]
    took_ms = (samples.done_ns - samples.intended_ns)[measured] / 1e6
    return np.where(answered, took_ms, timeout_ms), float(1.0 - answered.mean())


def _answered(status: Any) -> Any:
    """Tell which requests were answered well, (n,)."""
    return (status >= 200) & (status < 300)
