"""The deployment version: a hash of everything that an answer depends on.

Part of every prediction cache key: a new model, another feature query, an edited hook or a helper of it never meets an
old entry.
"""

from __future__ import annotations

import hashlib
from functools import cache
from importlib import metadata

import msgspec

from tailcut.common.fingerprint import packages_of
from tailcut.manifest import Deployment, Manifest
from tailcut.manifest.keys import to_plain
from tailcut.manifest.references import source_path
from tailcut.models.runtimes.live import LIVE
from tailcut.registry import Variant


def deployment_version(deployment: Deployment, artifact: str, code: bytes) -> bytes:
    """Return 16 bytes that change whenever an answer might.

    Args:
        artifact: what is served: the artifact's hash, its runtime and its settings.
        code: hash of the user's code that touches an answer.
    """
    digest = hashlib.blake2b(digest_size=16)
    features = deployment.features
    settings = [
        to_plain(part)
        for part in (deployment.name, deployment.model, features.groups, features.entity, features.database)
    ]
    for part in (artifact.encode(), msgspec.msgpack.encode(settings, enc_hook=repr), code):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.digest()


def version_of(deployment: Deployment, variant: Variant, code: bytes) -> bytes:
    """Return the deployment version of a variant: another runtime or other settings may round otherwise, too.

    A variant whose rows run alone has another version than the same artifact had before: what a server kept that ran
    its rows together is no answer any more.

    Args:
        code: hash of the user's code that the variant runs; see ``code.loaded.CodeSnapshot``.
    """
    settings = sorted(f"{name}={value!r}" for name, value in variant.settings.items())
    # Another tailcut may prepare rows in another way, and another library round otherwise.
    libraries = {name for runtime in (variant.runtime, *variant.part_runtimes) for name in packages_of(runtime)}
    versions = (f"{name}={installed(name)}" for name in ("tailcut", *sorted(libraries)))
    served = (variant.sha256, variant.runtime, *versions, *settings)
    if variant.evidence.rows_alone:
        served = (*served, "rows_alone")
    return deployment_version(deployment, " ".join(served), code)


def is_live(variant: Variant) -> bool:
    """Whether a variant runs the user's own object, so that the code of ``model.source`` is a part of it."""
    return variant.runtime in LIVE


def opening_references(manifest: Manifest, variant: Variant) -> tuple[str, ...]:
    """Return the references to the user's code that opening a variant imports; empty where its artifact is enough."""
    if is_live(variant):
        return (manifest.deployment.model.source,) if source_path(manifest) is None else ()
    return manifest.deployment.model.trusted if variant.runtime == "skops" else ()


def opens_with_code(manifest: Manifest, variant: Variant) -> bool:
    """Whether opening a variant imports or calls the user's code, or reads what belongs to it."""
    return is_live(variant) or bool(opening_references(manifest, variant))


@cache
def installed(distribution: str) -> str:
    """Return the version of a distribution; "unknown" where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"
