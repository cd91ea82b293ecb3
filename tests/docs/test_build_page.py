"""The example of docs/how-to/build.md is built as it is printed, and served with the hooks of docs/how-to/serve.md.

The server's environment has the wheel and what it declares: no torch, and none of the training code.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import pytest
from tests.docs.pages import ROOT, blocks
from tests.install_kit import Environment
from tests.integration.serving import Served
from tests.warm import warm

from tailcut.cli.console import ExitCode

PAGE = ROOT / "docs" / "how-to" / "build.md"
SERVE_PAGE = ROOT / "docs" / "how-to" / "serve.md"
ONNX = "serve.variant=onnx"
"""Which variant is promoted depends on how fast the machine is that runs this."""

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tmp_path = tmp_path_factory.mktemp("built")
    found = list(blocks(PAGE))
    (tmp_path / "my_model.py").write_text(next(text for language, text in found if language == "python"))
    (tmp_path / "tailcut.toml").write_text(next(text for language, text in found if language == "toml"))
    short = ["--recipes", "onnx", "--set", "build.rounds=0"]
    for command in (["build", *short], ["check"]):
        done = warm().run(command, cwd=tmp_path, env={**os.environ, "NO_COLOR": "1"}, timeout_s=500)
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr
    assert "variant" in done.stdout
    return tmp_path


def test_the_example_builds_and_checks_as_printed(built: Path) -> None:
    assert (built / ".tailcut" / "registry" / "models" / "risk" / "promoted.json").exists()


@pytest.fixture(scope="module")
def server_environment(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    return Environment(tmp_path_factory.mktemp("venv"), wheel)


@pytest.fixture
def deployed(built: Path, tmp_path: Path) -> Path:
    """The registry and the manifest, with the hooks that the page names in a module of their own."""
    hooks = next(text for language, text in blocks(SERVE_PAGE) if language == "python" and "def postprocess" in text)
    named = re.findall(r'`(p\w+ = "risk_hooks:\w+")`', SERVE_PAGE.read_text(encoding="utf-8"))
    assert len(named) == 2
    manifest = (built / "tailcut.toml").read_text()
    (tmp_path / "tailcut.toml").write_text(manifest.replace("[model]", "\n".join(["[model]", *named])))
    (tmp_path / "risk_hooks.py").write_text(hooks)
    shutil.copytree(built / ".tailcut", tmp_path / ".tailcut")
    return tmp_path


def test_a_server_needs_neither_torch_nor_the_models_code(server_environment: Environment, deployed: Path) -> None:
    assert "No module named 'torch'" in server_environment.run("python", "-c", "import torch", folder=deployed).stderr
    registry = deployed / ".tailcut" / "registry"
    before = {path: path.stat().st_mtime_ns for path in registry.rglob("*")}
    row = {"age": 41, "scores": [0.1, -0.4, 1.2]}
    with Served(deployed, settings=[ONNX], prepared=True, python=server_environment.python) as server:
        status, headers, body = server.request("POST", "/predict/risk", {"rows": [row]})
        assert (status, headers["x-tailcut-variant"]) == (200, "onnx"), body
        assert b'"risk":' in body
        assert "my_model" not in server.log
    assert {path: path.stat().st_mtime_ns for path in registry.rglob("*")} == before, "a server only reads it"


def test_hooks_beside_the_model_end_the_start_with_the_way_out(
    server_environment: Environment, built: Path, deployed: Path
) -> None:
    training, hooks = (built / "my_model.py").read_text(), (deployed / "risk_hooks.py").read_text()
    (deployed / "risk_hooks.py").write_text(training + hooks)
    done = server_environment.run("tailcut", "serve", "--port", "0", "--set", ONNX, folder=deployed)
    assert done.returncode == ExitCode.NOT_STARTED, done.stderr
    assert (
        "risk_hooks:preprocess: importing risk_hooks raised ModuleNotFoundError: No module named 'torch'" in done.stderr
    )
    assert "risk_hooks.py:2)" in done.stderr
    assert "move the hooks to a module that does not import it" in done.stderr
