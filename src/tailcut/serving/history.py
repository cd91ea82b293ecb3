"""The path of a host's history, where it keeps one."""

from __future__ import annotations

from pathlib import Path

from tailcut.manifest.host import HostManifest

OFF = "off"


def history_path(manifest: HostManifest, *, by_default: bool) -> Path | None:
    """Return the file of a host's history; None where it keeps none.

    Args:
        by_default: whether it keeps one where the manifest names no file.
    """
    named = manifest.observe.history.path
    if named == OFF or not (named or by_default):
        return None
    return manifest.history_file
