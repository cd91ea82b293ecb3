"""The example of docs/how-to/build.md is built as it is printed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "how-to" / "build.md"

pytestmark = pytest.mark.integration


def test_the_example_builds_and_checks_as_printed(tmp_path: Path) -> None:
    found = list(blocks(PAGE))
    (tmp_path / "my_model.py").write_text(next(text for language, text in found if language == "python"))
    (tmp_path / "tailcut.toml").write_text(next(text for language, text in found if language == "toml"))
    short = ["--recipes", "onnx", "--set", "build.rounds=6", "--set", "build.round=200ms"]
    for command in (["build", *short], ["check"]):
        done = subprocess.run(
            [sys.executable, "-m", "tailcut", *command],
            cwd=tmp_path,
            env={**os.environ, "NO_COLOR": "1"},
            capture_output=True,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert "variant" in done.stdout
