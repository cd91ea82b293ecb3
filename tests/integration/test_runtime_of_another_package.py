"""A runtime and its recipe from a package outside of tailcut: built for, judged and served without any other edit."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.integration.serving import Served
from tests.integration.test_build_code import MANIFEST, tailcut
from tests.models import graphs

from tailcut.registry import Registry

pytestmark = pytest.mark.integration

PACKAGE = '''
"""A runtime that says in a file that it ran."""

import os
import shutil
from types import MappingProxyType

import onnxruntime

from tailcut.builder.recipes.base import Result
from tailcut.common.runtime_spec import RuntimeSpec, Variation


class Mirror:
    def __init__(self, variant, options):
        self._session = onnxruntime.InferenceSession(str(variant.artifact), providers=["CPUExecutionProvider"])
        self._log = os.environ["MIRROR_LOG"]

    def run(self, inputs, outputs):
        with open(self._log, "a") as file:
            file.write("ran\\n")
        return dict(zip(outputs, self._session.run(list(outputs), dict(inputs))))

    def close(self):
        pass


class MirrorRecipe:
    name = "mirror"
    base = ("onnx",)
    runtime = "mirror"
    suffix = ".mirror"
    precision = "runtime"
    summary = "the same file behind a runtime of another package"

    def why_not(self, subject, here):
        return ""

    def make(self, work):
        shutil.copyfile(work.base.path, work.path)
        return Result(MappingProxyType({"copied": True}))


SPEC = RuntimeSpec(
    name="mirror", opens="mirror_package:Mirror", packages=("mirror-package",), binding="version",
    variations=(Variation(settings={"depth": 2}),),
)
RECIPE = MirrorRecipe()
'''
ENTRY_POINTS = """
[tailcut.runtimes]
mirror = mirror_package:SPEC
broken = no_such_module:SPEC
[tailcut.recipes]
mirror = mirror_package:RECIPE
broken = no_such_module:RECIPE
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a deployment, which is built, beside another one where the package is installed."""
    base = tmp_path_factory.mktemp("mirror")
    packages, folder = base / "packages", base / "deployment"
    information = packages / "mirror_package-1.5.dist-info"
    information.mkdir(parents=True)
    folder.mkdir()
    (packages / "mirror_package.py").write_text(PACKAGE)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mirror-package\nVersion: 1.5\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    graphs.linear(folder / "model.onnx", width=64, hidden=128, seed=6)
    for name, text in (("hooks.py", "import numpy as np\ndef preprocess(rows):\n"), ("scaling.py", "F = 1\n")):
        (folder / name).write_text(text)
    (folder / "hooks.py").write_text(
        "import numpy as np\n"
        "def preprocess(rows): return {'x': np.array([[row['a']] * 64 for row in rows], np.float32)}\n"
    )
    (folder / "tailcut.toml").write_text(MANIFEST.replace('recipes = ["onnx"]', 'recipes = ["mirror"]'))
    with pytest.MonkeyPatch.context() as patch:
        use(base, patch)
        tailcut(folder, "build")
    return base


def use(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes that start from now on find the package."""
    monkeypatch.setenv("PYTHONPATH", str(base / "packages"), prepend=os.pathsep)
    monkeypatch.setenv("MIRROR_LOG", str(base / "ran"))


@pytest.fixture
def installed(built: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the deployment's folder, beside a copy of the package."""
    base = shutil.copytree(built, tmp_path / "copy")
    use(base, monkeypatch)
    return base / "deployment"


def test_it_is_built_for_and_served(installed: Path) -> None:
    listed = tailcut(installed, "build", "--list")
    assert "the same file behind a runtime of another package" in listed
    assert "registered as 'no_such_module:RECIPE', which cannot be imported" in " ".join(listed.split())
    variant = Registry(installed / ".tailcut" / "registry").version("linear").variants["mirror"]
    assert variant.runtime == "mirror"
    assert variant.keys is not None
    assert (variant.keys.load.binding, variant.keys.load.version) == ("version", "1.5")
    log = installed.parent / "ran"
    answers = []
    for name in ("onnx", "mirror"):
        log.write_text("")
        with Served(installed, prepared=True, settings=[f"serve.variant={name}"]) as server:
            status, reply = server.post("/predict/linear", {"rows": [{"a": 0.01}]})
            assert status == 200, reply
            answers.append(reply["predictions"])
        assert bool(log.read_text()) is (name == "mirror")
    assert answers[0] == answers[1]


def test_a_registration_that_cannot_be_imported_is_told_where_its_variant_is_opened(installed: Path) -> None:
    """And nowhere else: the registry lists the version, and its other variants are served."""
    (installed.parent / "packages" / "mirror_package.py").write_text("raise RuntimeError('no engine')\n")
    assert "mirror" in tailcut(installed, "registry", "list")
    said = tailcut(installed, "check", "--variant", "mirror", code=3)
    assert "no engine" in said
    assert "fix or uninstall the package that registers it" in said
    tailcut(installed, "check", "--variant", "onnx")


def test_another_version_of_its_package_is_refused(installed: Path) -> None:
    information = installed.parent / "packages" / "mirror_package-1.5.dist-info"
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: mirror-package\nVersion: 1.6\n")
    said = tailcut(installed, "check", "--variant", "mirror", code=3)
    assert "1.5" in said
    assert "1.6" in said
