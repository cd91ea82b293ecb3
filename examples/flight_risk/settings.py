"""Where the example keeps what it makes, and what makes it out of date."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

HERE = Path(__file__).resolve().parent

LATE_AFTER_MIN = 15
"""A flight is late when it arrives more than this many minutes after its schedule (the US DOT's definition)."""
LEAD_S = 1800
"""A prediction is made this many seconds before the scheduled departure."""
SEED = 20130101

TRAIN_FROM = 1357016400  # 2013-01-01 00:00 in New York
VALID_FROM = 1377662400  # 2013-08-28 00:00: the tail of the training months stops the training
HOLDOUT_FROM = 1380600000  # 2013-10-01 00:00


def home() -> Path:
    """Return the artefact folder: FLIGHT_RISK_HOME, or ``.artifacts`` beside this file."""
    return Path(os.environ.get("FLIGHT_RISK_HOME") or HERE / ".artifacts")


def source_hash(*modules: str) -> str:
    """Hash the source of the example's modules, so that what they made is made again when they change."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update((HERE / f"{module}.py").read_bytes())
    return digest.hexdigest()[:16]
