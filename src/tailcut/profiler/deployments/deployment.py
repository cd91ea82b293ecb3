"""Profile a deployment: ``tailcut serve`` in a process of its own, under load, by the timings that it always keeps."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from tailcut.errors import ManifestError, TailcutError
from tailcut.load import LoadPlan, LoadResult
from tailcut.load.machine import choose_cores, pinned
from tailcut.load.payloads import build_requests
from tailcut.load.plan import parse_url
from tailcut.load.runner import OnProgress
from tailcut.load.serve_command import serve_command
from tailcut.load.server_process import ServerProcess, free_port
from tailcut.manifest import Deployment, Manifest, resolve
from tailcut.manifest.subject import CommandSubject
from tailcut.profiler.attribution.server_timing import TAILCUT
from tailcut.profiler.outside import record_load, with_notes
from tailcut.profiler.records import Recording, Stage
from tailcut.serving.deployment_loader import find_variant

_READY_S = 120.0
_NEXT = "at other rates, or with more executors: `tailcut simulate`; lever by lever: `tailcut ladder`"


def record_deployment(
    subject: CommandSubject,
    plan: LoadPlan,
    *,
    environment: Mapping[str, str],
    on_progress: OnProgress | None = None,
) -> tuple[Recording, LoadResult]:
    """Start the deployment, send it a load, and make a recording of what it says of its own time.

    It has a process of its own; this thread is kept on the load's core meanwhile.

    Args:
        subject: the deployment, and what computes its features.
        plan: what is sent; its ``url`` is a path (empty: ``/predict/{model}``), its ``payloads`` may be empty where
            the manifest has ``ladder.traffic``.
        environment: whole, of the server.
        on_progress: as in ``tailcut.load.run``.

    Raises:
        ManifestError: nobody says what is sent, or a model that computes its features is missing.
        StartError: it does not come up, or does not answer the first request.
        LoadTestError, ProfileError: as ``record_load``.
    """
    manifest, deployment = subject.manifest, subject.manifest.deployment
    payloads = plan.payloads or deployment.ladder.traffic
    if not payloads:
        raise ManifestError(
            "there is no traffic for the deployment", hint="give --payloads, or ladder.traffic in the manifest"
        )
    if payloads == deployment.ladder.traffic:
        resolve(payloads, manifest)  # puts python_path on the import path, and says what is wrong with the reference
    port = free_port()
    url = f"http://127.0.0.1:{port}{plan.url or f'/predict/{deployment.name}'}"
    core, load_core = _cores(deployment)
    with tempfile.TemporaryDirectory(prefix="tailcut-profile-") as folder:
        log, command = Path(folder) / "serve.log", serve_command(subject, port)
        server = ServerProcess(command, port, log, environment=environment, directory=manifest.directory, core=core)
        with server, pinned(load_core):
            server.wait_until_ready("/v2/health/ready", timeout_s=_READY_S, ok=(200,))
            plan = msgspec.structs.replace(plan, url=url, payloads=payloads, pid=server.pid)
            _try_one(server, plan)
            name = f"deployment {deployment.name}"
            recording, result = record_load(plan, name, known=_stages(manifest), on_progress=on_progress)
            server.check_alive("under load")
    where = "cores shared with the load" if core is None else f"server on core {core}, load on core {load_core}"
    cpu = "" if result.cpu_s_per_1000 is None else f"; {result.cpu_s_per_1000:.3g} CPU seconds per 1,000 replies"
    return with_notes(recording, f"{where}{cpu}", *_cache_notes(result), _NEXT), result


def _try_one(server: ServerProcess, plan: LoadPlan) -> None:
    """Ask once, so that a wrong path or payload shows here and not as a run of errors."""
    target = parse_url(plan.url)
    request = build_requests(plan, target, 1)[0]
    head, _, body = request.partition(b"\r\n\r\n")
    path = head.split(b" ", 2)[1].decode("latin-1")
    server.try_one(path, body, timeout_s=30.0)


def _cores(deployment: Deployment) -> tuple[int | None, int | None]:
    """Give the server a core of its own where it uses one only, and the load another."""
    several = max(deployment.pool.executors, deployment.pool.max_executors) > 1 or deployment.pool.threads > 1
    cores = choose_cores()
    return (None, None) if several else (cores.server, cores.load)


def _stages(manifest: Manifest) -> dict[str, tuple[Stage, str]]:
    """Name tailcut's stages with what this deployment has in them."""
    deployment = manifest.deployment
    stages = dict(TAILCUT)
    groups = deployment.features.groups
    if groups and all(group.function for group in groups):
        stages["features"] = (Stage.CODE, "feature groups")
    for name in ("preprocess", "postprocess"):
        if reference := getattr(deployment.model, name):
            stages[name] = (Stage.CODE, reference)
    stages["infer"] = (Stage.MODEL, f"variant {_variant(manifest)}")
    return stages


def _variant(manifest: Manifest) -> str:
    """Name the variant itself where the manifest says "promoted"."""
    wanted = manifest.deployment.serve.variant
    with suppress(TailcutError):
        found = find_variant(manifest).name
        return found if found == wanted else f"{found} ({wanted})"
    return wanted


def _cache_notes(result: LoadResult) -> list[str]:
    counts = {name: count for name, count in result.cache.items() if name != "off"}
    total = sum(counts.values())
    if not total:
        return []
    return ["prediction caches: " + ", ".join(f"{name} {count / total:.0%}" for name, count in counts.items())]
