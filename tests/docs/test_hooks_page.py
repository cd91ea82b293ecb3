"""docs/how-to/serve.md, "Hooks apart from the model": built with torch, served without torch and the training code."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks
from tests.install_kit import Environment, build_wheel
from tests.integration.serving import Served

from tailcut.cli.console import ExitCode

BUILD_PAGE = ROOT / "docs" / "how-to" / "build.md"
SERVE_PAGE = ROOT / "docs" / "how-to" / "serve.md"
SETTINGS = ("build.rounds=3", "build.round=1s", "slo.rate=10", "slo.timeout=5s")
"""A short build, which a busy machine does as well."""

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def server_environment(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    wheel = build_wheel(tmp_path_factory.mktemp("dist"))
    return Environment(tmp_path_factory.mktemp("venv"), wheel)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of the build page with the hooks of the serve page, built where torch is."""
    folder = tmp_path_factory.mktemp("built")
    hooks = next(text for language, text in blocks(SERVE_PAGE) if language == "python" and "def postprocess" in text)
    named = re.findall(r'`(p\w+ = "risk_hooks:\w+")`', SERVE_PAGE.read_text(encoding="utf-8"))
    assert len(named) == 2
    manifest = next(text for language, text in blocks(BUILD_PAGE) if language == "toml")
    (folder / "risk_hooks.py").write_text(hooks)
    (folder / "my_model.py").write_text(next(text for language, text in blocks(BUILD_PAGE) if language == "python"))
    (folder / "tailcut.toml").write_text(manifest.replace("[model]", "\n".join(["[model]", *named])))
    done = subprocess.run(
        [sys.executable, "-m", "tailcut", "build", "--recipes", "onnx", *(f"--set={each}" for each in SETTINGS)],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_a_server_needs_neither_torch_nor_the_models_code(
    server_environment: Environment, built: Path, tmp_path: Path
) -> None:
    assert "No module named 'torch'" in server_environment.run("python", "-c", "import torch", folder=tmp_path).stderr
    for name in ("risk_hooks.py", "tailcut.toml"):
        shutil.copy(built / name, tmp_path)
    shutil.copytree(built / ".tailcut", tmp_path / ".tailcut")
    registry = tmp_path / ".tailcut" / "registry"
    before = {path: path.stat().st_mtime_ns for path in registry.rglob("*")}
    row = {"age": 41, "scores": [0.1, -0.4, 1.2]}
    # Which variant was promoted depends on how fast the machine is that runs this.
    onnx = ["serve.variant=onnx"]
    with Served(tmp_path, settings=onnx, prepared=True, python=server_environment.python) as server:
        status, headers, body = server.request("POST", "/predict/risk", {"rows": [row]})
        assert (status, headers["x-tailcut-variant"]) == (200, "onnx"), body
        assert b'"risk":' in body
        assert "my_model" not in server.log
    assert {path: path.stat().st_mtime_ns for path in registry.rglob("*")} == before, "a server only reads it"


def test_hooks_beside_the_model_end_the_start_with_the_way_out(
    server_environment: Environment, built: Path, tmp_path: Path
) -> None:
    for name in ("my_model.py", "tailcut.toml"):
        shutil.copy(built / name, tmp_path)
    with (tmp_path / "my_model.py").open("a") as file:
        file.write((built / "risk_hooks.py").read_text())
    manifest = (tmp_path / "tailcut.toml").read_text().replace("risk_hooks:", "my_model:")
    (tmp_path / "tailcut.toml").write_text(manifest)
    shutil.copytree(built / ".tailcut", tmp_path / ".tailcut")
    done = server_environment.run("tailcut", "serve", "--port", "0", "--set", "serve.variant=onnx", folder=tmp_path)
    assert done.returncode == ExitCode.NOT_STARTED, done.stderr
    assert "my_model:preprocess: importing my_model raised ModuleNotFoundError: No module named 'torch'" in done.stderr
    assert "my_model.py:2)" in done.stderr
    assert "move the hooks into a module that does not import it" in done.stderr
