"""The user's code that a variant cannot be opened without, as the registry records it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from tailcut.manifest import Manifest
from tailcut.registry import LiveCode
from tailcut.runtimes.live import LIVE, source_path


def live_code(manifest: Manifest, runtime: str, references: Sequence[str] = ()) -> LiveCode | None:
    """Describe the code of a variant that this process has opened.

    Args:
        runtime: of the variant.
        references: to what it needs of the user's code beside its artifact.

    Returns:
        None where the artifact is enough.
    """
    if runtime in LIVE:
        files = () if source_path(manifest) is not None else _files(manifest, set(sys.modules))
        return LiveCode(references=(manifest.deployment.model.source,), files=files)
    if not references:
        return None
    return LiveCode(
        references=tuple(references), files=_files(manifest, {each.partition(":")[0] for each in references})
    )


def _files(manifest: Manifest, modules: set[str]) -> tuple[str, ...]:
    """Return those files of loaded modules that lie in the folders of ``python_path``."""
    folders = [(manifest.directory / each).resolve() for each in manifest.deployment.python_path]
    found = []
    for name in modules:
        file = getattr(sys.modules.get(name), "__file__", None)
        path = Path(file).resolve() if file else None
        if path is None or "site-packages" in path.parts:
            continue
        if any(path.is_relative_to(folder) for folder in folders):
            found.append(os.path.relpath(path, manifest.directory))
    return tuple(sorted(found))
