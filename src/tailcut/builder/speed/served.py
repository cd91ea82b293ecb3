"""Speed under load: every variant in a ``tailcut serve`` process of its own, over the socket, in turn.

Requests arrive at random (Poisson) at the SLO's rate whatever the answers do, and are counted from their intended send
time. All servers run from the start; each round sends the same traffic to one after the other, every second time
backwards, so that a slow spell of the machine meets all of them; ``rounds`` chooses the variants of the next one.
Features and caches are off: a variant is compared with a variant, not with a cache.
"""

from __future__ import annotations

import http.client
import json
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.builder.holdouts import kept_rows
from tailcut.builder.holdouts.holdout import Holdout
from tailcut.builder.progress import Event, Progress
from tailcut.builder.records import Made, to_add
from tailcut.builder.speed.rounds import Entrant, Rounds, RoundTerms, play
from tailcut.common.bounds import Bound
from tailcut.common.fingerprint import uses_gpu
from tailcut.common.slo import LatencyObjective
from tailcut.common.statistics import percentile
from tailcut.errors import BuildError, TailcutError
from tailcut.gate.sequential import LEAST
from tailcut.load import LoadPlan, measure, summarise_run
from tailcut.load.machine import choose_cores, pinned
from tailcut.load.samples import Samples
from tailcut.load.server_process import ServerProcess, free_port
from tailcut.manifest import Deployment, Manifest
from tailcut.manifest.keys import to_plain, to_toml
from tailcut.registry import Registry, VersionEvidence
from tailcut.registry.evidence import Round
from tailcut.system.cpu_time import other_seconds

_PAYLOADS = 512
_READY_S = 120.0
_WARMUP_S = 0.5
"""Before each round; no longer than the round itself."""

_LEAST_REQUESTS = 10
"""Expected in a round: one of fewer may come to none, and then nothing was measured."""

SEED = 0


def objective(deployment: Deployment) -> LatencyObjective:
    """Return the SLO's latency objective that variants are compared at: the strictest percentile that it names."""
    named = _percentiles(deployment)
    share, limit_s = named[0] if named else (0.95, float(deployment.slo.timeout_s))
    return LatencyObjective(share=share, limit_s=limit_s)


def _percentiles(deployment: Deployment) -> list[tuple[float, float]]:
    """List the percentiles that the SLO names with their limits in seconds, the highest first."""
    slo = deployment.slo
    named = ((0.99, slo.p99_s), (0.95, slo.p95_s), (0.5, slo.p50_s))
    return [(share, float(limit)) for share, limit in named if limit is not None]


def run(
    manifest: Manifest,
    made: Sequence[Made],
    entrants: Sequence[Entrant],
    holdout: Holdout,
    folder: Path,
    tell: Progress,
    bounds: Sequence[Bound] = (),
) -> Rounds:
    """Measure variants under load until every verdict is decided.

    Args:
        manifest: names the SLO, its rate, the limits of the rounds and the executors.
        made: variants to compare.
        entrants: the same variants, with what each must beat.
        holdout: whose rows are sent, one per request.
        folder: for the servers' manifest, registry and logs.
        tell: told of every round as it starts.
        bounds: of the inputs, as they will be served with.
    """
    deployment = manifest.deployment
    slo, section = deployment.slo, deployment.build
    served = _prepare(manifest, made, folder, bounds)
    payloads = _write_payloads(holdout, folder / "payloads.jsonl", deployment)
    most = max(section.rounds, LEAST)
    rounds = Rounds(entrants, RoundTerms(objective(deployment), slo.rate, slo.errors, most, deployment.cost))
    cores = choose_cores()
    # A variant with threads of its own has all cores, and the load beside it: pinned to one it would be misjudged.
    alone = all(deployment.pool.threads_of(each.settings) == 1 for each in made)
    on_gpu = {each.name for each in made if uses_gpu(each.runtime, each.settings)}
    with ExitStack() as stack:
        servers: dict[str, ServerProcess] = {}
        for each in made:
            try:
                server = _server(served, each.name, folder, cores.server if alone else None)
                servers[each.name] = stack.enter_context(server)
            except TailcutError as error:
                rounds.fail(each.name, f"{error.message}: {error.hint}")
        stack.enter_context(pinned(cores.load if alone else None))

        def measured(name: str, number: int) -> Round:
            tell(
                Event(
                    state="started",
                    step="load",
                    variant=name,
                    round=rounds.played + 1,
                    rounds=most,
                    open=tuple(rounds.open()),
                    left_s=rounds.left_s,
                )
            )
            try:
                found = _measure(deployment, servers[name], payloads, number, name in on_gpu)
                servers[name].check_alive("under load")
            except TailcutError as error:
                raise BuildError(error.message, hint=servers[name].last_lines()) from error
            return found

        play(rounds, measured, limit_s=float(section.load_limit_s), clock_s=time.monotonic)
    return rounds


def _prepare(manifest: Manifest, made: Sequence[Made], folder: Path, bounds: Sequence[Bound]) -> Path:
    """Write a registry that holds the candidates, and a manifest that serves them without features and caches."""
    deployment = manifest.deployment
    registry = Registry(folder / "registry")
    version = registry.add(
        deployment.name,
        source=made[0].name,
        inputs=deployment.model.inputs,
        outputs=deployment.model.outputs,
        variants=[to_add(each) for each in made],
        evidence=VersionEvidence(bounds=tuple(bounds)),
        files=kept_rows.files(folder),
    )
    registry.promote(deployment.name, version.id, made[0].name)
    plain = to_plain(deployment)
    for section in ("features", "cache", "ladder", "holdout", "quality", "serve", "observe", "request_log"):
        plain.pop(section, None)
    plain["python_path"] = [str((manifest.directory / each).resolve()) for each in deployment.python_path]
    plain["model"] = {**plain["model"], "source": _absolute(manifest, deployment.model.source)}
    if any(group.model for group in deployment.features.groups):
        # Without the groups nothing says which columns are vectors; tensors are sent, no columns.
        plain["model"]["inputs"] = [
            {name: value for name, value in tensor.items() if name != "columns"} for tensor in plain["model"]["inputs"]
        ]
    plain["registry"] = {"path": str(folder / "registry")}
    # Addresses, tokens and TLS are of the place where it will serve; here it is asked over the loopback.
    server = plain.get("server", {})
    plain["server"] = {name: server[name] for name in ("kill", "max_body", "max_timeout") if name in server}
    plain["observe"] = {"history": {"path": "off"}, "alerts": {"enabled": False}, "traces": {"endpoint": "off"}}
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
            inputs = [
                {
                    "name": tensor.name,
                    "shape": list(row[tensor.name].shape),
                    "datatype": tensor.datatype,
                    "data": row[tensor.name].ravel().tolist(),
                }
                for tensor in deployment.model.inputs
            ]
            file.write(json.dumps({"inputs": inputs}) + "\n")  # msgspec writes null for infinity
    return path


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
        duration_s=max(float(deployment.build.round_s), _LEAST_REQUESTS / deployment.slo.rate),
        warmup_s=min(_WARMUP_S, float(deployment.build.round_s)),
        payloads=str(payloads),
        timeout_s=float(deployment.slo.timeout_s),
        pid=server.pid,
        seed=SEED + number,
    )
    before_s = device_seconds(server.port) if on_gpu else 0.0
    others_s, begun_s = other_seconds(os.getpid()), time.monotonic()
    samples, facts = measure(plan)
    others = (other_seconds(os.getpid()) - others_s) / (time.monotonic() - begun_s)
    held_s = device_seconds(server.port) - before_s if on_gpu else 0.0
    result = summarise_run(plan, samples, facts)
    if result.answered == 0:
        said = "; ".join(f"{status}: {body}" for status, body in result.bodies.items()) or "no answers"
        raise BuildError(f"under load no request of {result.requests} was answered ({said[:300]})")
    if result.cpu_s_per_1000 is None:
        raise BuildError("the server's CPU time could not be read, so its cost is unknown")
    took_ms, errors = _latencies(samples, float(deployment.slo.timeout_s) * 1e3)

    def at(share: float) -> float:
        return percentile(took_ms, share)

    return Round(
        number=number,
        latency_ms=at(objective(deployment).share),
        p50_ms=at(0.5),
        excess=max((at(share) / (limit_s * 1e3) for share, limit_s in _percentiles(deployment)[1:]), default=0.0),
        errors=errors,
        cpu_ms=result.cpu_s_per_1000,
        # All that were answered, those of the warm-up too: the device was held for each of them.
        gpu_ms=held_s * 1e3 / int(_answered(samples.status).sum()) if on_gpu else None,
        others=max(0.0, others),
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


# -- Time on the device ------------------------------------------------------------------------------------------------


COUNTER = "tailcut_device_busy_seconds"
"""As the server calls it (observe.recorder); on the page with "_total" behind it."""

_TIMEOUT_S = 10.0


def device_seconds(port: int) -> float:
    """Return the seconds that the variant of the server on 127.0.0.1 has held its device so far.

    Raises:
        BuildError: the server does not say: what was not measured has no figure, and no price.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode("utf-8", "replace")
    except (OSError, http.client.HTTPException) as error:
        raise BuildError(f"the server's /metrics cannot be read: {error!r}", hint="see the server's log") from error
    finally:
        connection.close()
    return held_seconds(text)


def held_seconds(text: str) -> float:
    """Find the figure in a page of /metrics.

    Raises:
        BuildError: it is not there.
    """
    for line in text.splitlines():
        if line.startswith(f"{COUNTER}_total{{"):
            return float(line.rpartition(" ")[2])
    raise BuildError(
        f"the server's /metrics has no {COUNTER}_total: the time on the device was not measured",
        hint="the variant does not run on a device, although the build expected it to",
    )
