"""What a variant needs beside its artifact: the code of its model, made anew by ``model.source``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tailcut.manifest import Manifest, resolve

LIVE = frozenset({"torch", "sklearn"})
"""Runtimes whose artifact holds numbers only: the module or the estimator comes from model.source."""


def source_path(manifest: Manifest) -> Path | None:
    """Return the path of ``model.source`` where it is a file or folder, else None (then it is a callable)."""
    reference = manifest.deployment.model.source
    path = (manifest.directory / reference).resolve()
    if ":" in reference and "/" not in reference and not path.exists():
        return None
    return path


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

    model = manifest.deployment.model
    return partial(module, path, tuple(tensor.name for tensor in model.inputs), rank=len(model.outputs[0].shape))
