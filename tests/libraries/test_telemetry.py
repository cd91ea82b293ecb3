"""onnxruntime keeps to itself: nothing about its use is written or kept open, whoever opens the first session."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

FLUSH = "from tailcut.models.runtimes.onnxruntime import flush_subnormals; flush_subnormals()"
BARE = (
    "import onnxruntime; from tailcut.models.runtimes.onnxruntime import _IDENTITY as m; "
    "onnxruntime.InferenceSession(m)"
)


def written(folder: Path, code: str, **more: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    environment |= {"HOME": str(folder), "XDG_CACHE_HOME": str(folder / ".cache"), **more}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True, timeout=120)
    return [path.name for path in folder.rglob("*") if path.is_file()]


def test_a_session_of_ours_leaves_nothing_behind(tmp_path: Path) -> None:
    assert written(tmp_path, FLUSH) == []


def test_whoever_wants_it_says_so(tmp_path: Path) -> None:
    if not written(tmp_path, BARE):
        pytest.skip("this onnxruntime has no telemetry to keep off")
    (tmp_path / "own").mkdir()
    assert written(tmp_path / "own", FLUSH, ORT_DISABLE_TELEMETRY="0")
