"""Where the example keeps what it makes, and what makes it out of date."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent

SEED = 2013


def home() -> Path:
    """Return the artefact folder: FLIGHT_RISK_TREES_HOME, or ``.artifacts`` beside this file."""
    return Path(os.environ.get("FLIGHT_RISK_TREES_HOME") or HERE / ".artifacts")


def source_hash(*modules: str) -> str:
    """Hash the source of the example's modules, so that what they made is made again when they change."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update((HERE / f"{module}.py").read_bytes())
    return digest.hexdigest()[:16]
