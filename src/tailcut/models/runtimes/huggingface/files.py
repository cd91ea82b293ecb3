"""Reads a folder's JSON files and the activation functions that they name, and refuses what is not known."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from tailcut.errors import ArtifactError

EXPORT = "or export the model to ONNX yourself and set model.source to the .onnx file"
"""The way out that every folder has."""

_LONGEST = 80

_NN = "torch.nn."
IDENTITY, SIGMOID = "Identity", "Sigmoid"


def settings_of(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty where there is no such file.

    Raises:
        ArtifactError: it is no JSON object.
    """
    return read_object(path) if path.is_file() else {}


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        ArtifactError: there is no such file, or it is no JSON object.
    """
    found = read_json(path)
    if not isinstance(found, dict):
        raise ArtifactError(
            f"{path} holds a {type(found).__name__}, expected an object", hint="write it with save_pretrained"
        )
    return found


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        ArtifactError: there is none, or it cannot be read.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"cannot read {path}: {error}", hint="model.source must be a folder written by save_pretrained"
        ) from error


def refuse_unknown(path: Path, found: Collection[str], known: Collection[str], values: dict[str, Any]) -> None:
    """Refuse keys that are not known: the answer may depend on them.

    Raises:
        ArtifactError: naming the first of them, its value and the keys that are known.
    """
    for key in found:
        if key not in known:
            raise ArtifactError(
                f"{path} sets {key!r} to {shown(values[key])}, which tailcut does not know but answers may depend on; "
                f"known are {', '.join(sorted(known))}",
                hint=f"remove the key if it changes nothing, {EXPORT}",
            )


def refused(path: Path, key: str, value: Any, why: str, *, hint: str = "") -> ArtifactError:
    """Return the error for a setting that is known and not supported.

    Args:
        why: completes "path sets key to value: ".
        hint: the way out; empty: remove it or export the model.
    """
    return ArtifactError(
        f"{path} sets {key!r} to {shown(value)}: {why}", hint=hint or f"remove it if it changes nothing, {EXPORT}"
    )


def shown(value: Any) -> str:
    """Return a value as it stands in the file, cut to a line."""
    text = json.dumps(value, ensure_ascii=False, default=repr)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


def activation_of(path: Path, key: str, value: Any) -> str:
    """Return the class of torch.nn that a setting names; no other code is imported, nor torch.

    Raises:
        ArtifactError: it names something else. The library itself then warns and takes its default instead.
    """
    if isinstance(value, str) and value.startswith(_NN):
        return value.rpartition(".")[2]
    raise ArtifactError(
        f"{path} sets {key!r} to {value!r}, which is not a class of torch.nn: without trust_remote_code "
        "sentence-transformers replaces it by its default, with other answers than in training",
        hint="set the equivalent torch.nn class, such as torch.nn.modules.activation.Tanh",
    )
