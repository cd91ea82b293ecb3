"""What a variant needs beside its artifact: the code of its model, made anew by ``model.source``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tailcut.common.fingerprint import LIVE
from tailcut.manifest import Manifest, resolve
from tailcut.manifest.references import source_path
from tailcut.models.runtimes.skops import OwnTypes

__all__ = ["LIVE", "own_types", "source_of", "source_path"]


def source_of(manifest: Manifest, runtime: str) -> Callable[[], Any] | None:
    """Return what makes the live object for ``open_runtime``; None where the artifact is all that a runtime needs.

    For a Hugging Face folder it makes the module from config.json, whose weights then come from the artifact. For a
    stored estimator it gives the types of ``model.trusted``.

    Raises:
        ManifestError: the callable cannot be imported.
    """
    if runtime == "skops":
        return partial(own_types, manifest)
    if runtime not in LIVE:
        return None
    path = source_path(manifest)
    if path is None:
        return resolve(manifest.deployment.model.source, manifest)
    from tailcut.models.runtimes.huggingface import module

    model = manifest.deployment.model
    return partial(module, path, tuple(tensor.name for tensor in model.inputs), rank=len(model.outputs[0].shape))


def own_types(manifest: Manifest) -> OwnTypes:
    """Return the types and functions of ``model.trusted`` by skops' names; each is imported when it is called."""
    return {each.replace(":", "."): partial(resolve, each, manifest) for each in manifest.deployment.model.trusted}
