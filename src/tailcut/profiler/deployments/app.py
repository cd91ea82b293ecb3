"""A deployment as an application, for ``hook_steps``: ``tailcut.profiler.deployments.app:app()``."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

import tailcut
from tailcut.transport.asgi import ASGIApplication

_VARIABLE = "PROFILED_DEPLOYMENT"
"""The manifests' paths and the settings over them, as JSON. (tailcut refuses ``TAILCUT_*`` that are no settings.)"""


def environment_of(files: Sequence[Path], overrides: Sequence[str]) -> dict[str, str]:
    """Return what the process has to have in its environment."""
    return {_VARIABLE: json.dumps([[str(file) for file in files], list(overrides)])}


def app() -> ASGIApplication:
    """Make the application."""
    files, overrides = json.loads(os.environ[_VARIABLE])
    return tailcut.asgi(*map(Path, files), overrides=overrides)
