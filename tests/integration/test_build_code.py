"""A whole build writes the user's code down, and a server and a rollback keep to it: from the command line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.code_kit import Site, imported
from tests.integration.serving import Served
from tests.models import graphs
from tests.warm import warm

from tailcut.builder.code_snapshot import check_unchanged, write_down
from tailcut.errors import ArtifactError
from tailcut.registry import Registry

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]
MANIFEST = f"""
name = "linear"
python_path = [".", {str(ROOT)!r}]
[model]
source = "model.onnx"
preprocess = "hooks:preprocess"
inputs = [{{ name = "x", shape = [-1, 64] }}]
outputs = [{{ name = "y", shape = [-1] }}]
[holdout]
source = "tests.models.holdouts:linear"
[quality]
budget = {{ auc = 0.000001 }}
[build]
recipes = ["onnx"]
rounds = 0
[serve]
follow = "100ms"
"""
HOOKS = (
    "import numpy as np\nfrom scaling import F\n"
    "def preprocess(rows): return {'x': np.array([[row['a'] * F] * 64 for row in rows], np.float32)}\n"
)
ROW = {"rows": [{"a": 0.01}]}


def tailcut(folder: Path, *arguments: str, code: int = 0) -> str:
    """Run a command in the folder; what it wrote to both streams."""
    environment = {**os.environ, "NO_COLOR": "1", "TEST_LINEAR_MODEL": str(folder / "model.onnx")}
    done = warm().run(arguments, cwd=folder, env=environment, timeout_s=240)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def answer(server: Served) -> float:
    status, reply = server.post("/predict/linear", ROW)
    assert status == 200, reply
    return float(reply["predictions"][0]["y"])


def test_from_a_build_to_an_edit_and_back(tmp_path: Path) -> None:
    graphs.linear(tmp_path / "model.onnx", width=64, hidden=128, seed=6)
    for name, text in (("tailcut.toml", MANIFEST), ("hooks.py", HOOKS), ("scaling.py", "F = 1\n")):
        (tmp_path / name).write_text(text)
    tailcut(tmp_path, "build")
    registry = Registry(tmp_path / ".tailcut" / "registry")
    first = registry.version("linear")
    assert {"hooks", "scaling"} <= set(first.evidence.code.modules)
    assert "numpy" in first.evidence.code.distributions
    assert first.files["code"].size_bytes > 0
    with Served(tmp_path, prepared=True) as server:
        before = answer(server)
        (tmp_path / "scaling.py").write_text("F = 2\n")
        tailcut(tmp_path, "build")
        second = registry.version("linear")
        assert second.id != first.id, "the same artifact with other code"
        server.wait_until(lambda: server.get("/v2/health/ready")[1].get("promotion", {}).get("state") == "failed")
        assert "other code than this server has loaded: scaling.py" in server.log
        assert answer(server) == before
    with Served(tmp_path, prepared=True) as server:
        after = answer(server)
        assert after != before
        assert "was built with other code" not in server.log
    assert "scaling.py" in tailcut(tmp_path, "registry", "rollback", code=3)
    tailcut(tmp_path, "registry", "code", first.id, ".", "--force")
    assert first.id in tailcut(tmp_path, "registry", "rollback")
    with Served(tmp_path, prepared=True) as server:
        assert answer(server) == before


def test_code_that_changes_during_the_build_ends_it(tmp_path: Path) -> None:
    with imported():
        site = Site(tmp_path)
        written = write_down(site.manifest, tmp_path, source=True)
    check_unchanged(written, site.manifest)
    for name, text in (("layers.py", "N = 8\n"), ("table.txt", "2")):
        before = (tmp_path / name).read_text()
        site.write(name, text)
        with pytest.raises(ArtifactError, match=f"{name} changed during the build"):
            check_unchanged(written, site.manifest)
        site.write(name, before)
