"""The limits of inputs that a source model proves, kept between the steps of a build, and trials at their edges."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from tailcut.build import bounds
from tailcut.build.bounds import Found
from tailcut.build.bounds.trials import Call
from tailcut.build.holdout import Holdout
from tailcut.build.recipes.base import INT8, PORTABLE
from tailcut.manifest import Model

__all__ = ["Found", "edges", "find", "read", "refusal", "write"]

FILE = "bounds.json"
_ROWS = 3
_LOWER = INT8 | {"fp16", "bf16", "tensorrt"}
"""Variants in lower precision: the quality gate judges their numbers."""
_SHOWN = 3


def find(model: Any, call: Call, selection: Holdout, section: Model, path: Path | None) -> Found:
    """Find the limits of a source model.

    Args:
        model: what ``model.source`` gave; None where it is a path.
        call: runs it: input arrays by name -> output arrays by name.
        path: of an .onnx file or a Hugging Face folder.
    """
    rows = selection.take(min(_ROWS, selection.rows))
    return bounds.of_source(model, call, section.inputs, rows, path=path)


def write(folder: Path, found: Found) -> None:
    """Keep the limits for the build's other steps."""
    (folder / FILE).write_bytes(msgspec.json.encode(found))


def read(folder: Path) -> Found:
    """Read what ``write`` kept; no limits where nothing was."""
    path = folder / FILE
    return msgspec.json.decode(path.read_bytes(), type=Found) if path.exists() else Found()


def edges(
    name: str, source: Call, variant: Call, selection: Holdout, section: Model, found: Found
) -> list[dict[str, Any]]:
    """Return where a variant does something else than the source at the edges of the inputs, as plain findings.

    Numbers are compared of variants in full precision, and of those whose runtime may compute in another precision
    (OpenVINO) for integers only, which no precision rounds.
    """
    rows = selection.take(min(_ROWS, selection.rows))
    tried = bounds.Edges(source, section.inputs, section.outputs, rows, found.bounds, found.sizes)
    whole = {tensor.name for tensor in section.inputs if "INT" in tensor.datatype}
    kept = [
        finding
        for finding in tried.compare(variant, numbers=name not in _LOWER)
        if finding.kind != "differs" or name in PORTABLE or finding.input in whole
    ]
    return [{"text": finding.text, **msgspec.to_builtins(finding)} for finding in kept]


def refusal(findings: Sequence[dict[str, Any]]) -> str:
    """Say why trials at the edges refuse a variant; empty where they do not.

    A value that only the variant refuses, or that was not tried, is no wrong answer: it stands in the evidence.
    """
    wrong = [each["text"] for each in findings if each["kind"] not in {"raises", "untried"}]
    if not wrong:
        return ""
    more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return (
        f"{'; '.join(wrong[:_SHOWN])}{more}. Declare the values that the model takes in model.inputs (min, max, "
        "values, max_length)"
    )
