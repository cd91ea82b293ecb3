"""The deployment's variants, each served in a process of its own, with caches off."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tailcut.errors import NotInRegistry
from tailcut.ladder.process import ServerProcess, free_port
from tailcut.ladder.serve_command import serve_command
from tailcut.load.plan import parse_url
from tailcut.manifest import Deployment, Manifest
from tailcut.manifest.subject import CommandSubject
from tailcut.parity.asking import Asker
from tailcut.registry import Registry, Version

TIMEOUT_HEADER = "x-tailcut-timeout-ms"
CACHES_OFF = ("cache.entity.enabled=false", "cache.tensor.enabled=false", "features.cache=off", "serve.fallback=[]")
"""An answer or a feature that was kept would hide a difference, or make one; a fallback would answer for another."""


class Chosen(NamedTuple):
    """A variant to ask.

    Attributes:
        name: of the variant.
        version: of the registry; empty where there is none.
        exact: whether it computes as the source does, but for rounding.
        judged: whether differences of values count against it.
    """

    name: str
    version: str
    exact: bool
    judged: bool


def load_uncached(subject: CommandSubject) -> CommandSubject:
    """Load a model anew with caches off, those of the models that compute its features too.

    An override of the given one turns a cache on again.

    Raises:
        ManifestError: see ``tailcut.manifest.load``.
    """
    return subject.again(CACHES_OFF)


def caches_of(deployment: Deployment) -> str:
    """Say which caches are on."""
    caches = {
        "answers by entity": deployment.cache.entity.enabled,
        "outputs by tensor": deployment.cache.tensor.enabled,
        "features": deployment.features.cache != "off" and bool(deployment.features.groups),
    }
    on = [name for name, enabled in caches.items() if enabled]
    return f"on: {', '.join(on)}" if on else "all off"


def choose_variants(manifest: Manifest, names: Sequence[str]) -> list[Chosen]:
    """List the variants to ask: those of the promoted version that may be served, or those that are named.

    A variant that is made smaller on purpose (INT8) gives other values. The build has judged that by the quality
    budget; here only its refusals count, unless it is named.

    Raises:
        ArtifactError: nothing is promoted, or there is no such variant.
    """
    deployment = manifest.deployment
    if deployment.serve.variant == "source" and set(names) <= {"source"}:
        return [Chosen("source", "", exact=True, judged=True)]
    version = Registry.of(manifest).version(deployment.name)
    for name in names:
        if name not in version.variants:
            raise NotInRegistry(
                f"version {version.id} of model {deployment.name!r} has no variant {name!r}",
                hint=f"its variants: {', '.join(version.variants)}",
            )
    served = [name for name, record in version.variants.items() if record.sha256 and not record.refused]
    served.sort(key=lambda name: name != version.source)
    return [
        Chosen(name, version.id, exact := is_exact(version, name), exact or name in names) for name in names or served
    ]


def is_exact(version: Version, name: str) -> bool:
    """Whether a variant was made to give the source's values: by itself, or by the build's comparison of outputs."""
    return version.is_base(name) or version.variants[name].evidence.recipe.exact


@contextmanager
def serve_variant(
    subject: CommandSubject,
    variant: str,
    *,
    environment: Mapping[str, str],
    ready_s: float,
    timeout_s: float,
) -> Iterator[Asker]:
    """Serve a variant on a free loopback port and stop it in the end.

    Args:
        subject: as ``load_uncached`` gives it.
        variant: its name.
        environment: whole, of the server.
        ready_s: longest wait for its start.
        timeout_s: of one request.

    Raises:
        StartError: it does not come up.
    """
    manifest, port = subject.manifest, free_port()
    command = serve_command(subject, port, settings=[f"serve.variant={variant}", "serve.force=true"])
    with tempfile.TemporaryDirectory(prefix="tailcut-parity-") as folder:
        log = Path(folder) / "serve.log"
        process = ServerProcess(command, port, log, environment=environment, directory=manifest.directory, core=None)
        with process:
            process.wait_until_ready("/v2/health/ready", timeout_s=ready_s, ok=(200,))
            yield deployment_asker(f"http://127.0.0.1:{port}", manifest.deployment, timeout_s)


def deployment_asker(
    url: str, deployment: Deployment, timeout_s: float, headers: Sequence[tuple[str, str]] = ()
) -> Asker:
    """Return what posts to a deployment's ``/predict``; ``url`` may name that path already."""
    target = parse_url(url)
    scheme = "https" if target.tls else "http"
    path = target.path if "/predict/" in target.path else f"/predict/{deployment.name}"
    deadline_ms = int(1e3 * min(timeout_s, float(deployment.server.max_timeout_s)))
    return Asker(
        f"{scheme}://{target.authority}{path}",
        headers=[(TIMEOUT_HEADER, str(deadline_ms)), *headers],
        timeout_s=timeout_s,
    )
