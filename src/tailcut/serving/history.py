"""Whether a host keeps a history, where, and which rows are its own."""

from __future__ import annotations

from pathlib import Path

from tailcut.manifest.host import HostManifest

OFF = "off"


def server_key(manifest: HostManifest) -> str:
    """Return what tells a host's rows from those of others in the same file, before a restart and after it."""
    return manifest.observe.history.server or f"{manifest.name}:{manifest.server.port}"


def history_path(manifest: HostManifest, *, by_default: bool) -> Path | None:
    """Return the file of a host's history; None where it keeps none.

    Args:
        by_default: whether it keeps one where the manifest names no file.
    """
    named = manifest.observe.history.path
    if named == OFF or not (named or by_default):
        return None
    return manifest.history_file
