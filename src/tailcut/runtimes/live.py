"""What a variant needs beside its artifact: the code of its model, made anew by ``model.source``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tailcut.manifest import Manifest, resolve
from tailcut.manifest.references import source_path

__all__ = ["LIVE", "source_of", "source_path"]

LIVE = frozenset({"torch", "sklearn"})
"""Runtimes whose artifact holds numbers only: the module or the estimator comes from model.source."""


def source_of(manifest: Manifest, runtime: str) -> Callable[[], Any] | None:
    """Return what makes the live object for ``open_runtime``; None where the artifact is all that a runtime needs.

    For a Hugging Face folder it makes the module from config.json, whose weights then come from the artifact.

    Raises:
        ManifestError: the callable cannot be imported.
    """
    if runtime not in LIVE:
        return None
    path = source_path(manifest)
    if path is None:
        return resolve(manifest.deployment.model.source, manifest)
    from tailcut.runtimes.huggingface import module

    return partial(module, path, tuple(tensor.name for tensor in manifest.deployment.model.inputs))
