"""The version of tailcut that is installed."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed_version


def version() -> str:
    """Return the installed version; "unknown" where only the folder is on the path."""
    try:
        return installed_version("tailcut")
    except PackageNotFoundError:
        return "unknown"
