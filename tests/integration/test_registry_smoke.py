"""``tailcut registry`` opens what it verifies, promotes and rolls back to, in processes of their own."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from tests.stored_kit import add_versions, run_tailcut, write_model

from tailcut.errors import ArtifactError, NotServable
from tailcut.manifest import load
from tailcut.models import smoke_test
from tailcut.models.smoke_test import try_variant
from tailcut.registry import NewVariant, Registry, Version, read_machine

pytestmark = pytest.mark.integration

BUILD = """
from sklearn.linear_model import LogisticRegression
def build():
    return LogisticRegression().fit(*train())
"""


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scikit-learn model, two versions of it, the second promoted."""
    folder = write_model(tmp_path_factory.mktemp("twice") / "m", BUILD)
    add_versions(folder, 1, 2)
    return folder


@pytest.fixture
def folder(twice: Path, tmp_path: Path) -> Path:
    return shutil.copytree(twice, tmp_path / "m")


def newest(folder: Path) -> tuple[Registry, Version]:
    registry = Registry(folder / ".tailcut/registry")
    return registry, registry.version("stored", "latest")


def test_without_skops_a_stored_model_is_not_gone_back_to(folder: Path) -> None:
    code, said = run_tailcut(folder, "registry", "rollback", without=("skops",))
    assert code == 3
    assert "a stored scikit-learn model needs skops" in said
    assert "pip install 'tailcut[trees]'" in said
    code, said = run_tailcut(folder, "registry", "verify", without=("skops",))
    assert code == 1, "the second is promoted"
    assert "not servable here stored" in said
    assert "; it is promoted" in said
    assert run_tailcut(folder, "registry", "verify", "--quick", without=("skops",))[0] == 0
    code, said = run_tailcut(folder, "registry", "rollback", "--quick", without=("skops",))
    assert code == 0, said


def test_another_version_of_scikit_learn_is_refused_with_the_one_that_fits(folder: Path) -> None:
    registry, version = newest(folder)
    here = read_machine()
    packages = {**here.packages, "scikit-learn": "1.5.0"}
    other = Registry(registry.root, machine=msgspec.structs.replace(here, packages=packages))
    with pytest.raises(NotServable, match=r"version of scikit-learn: .* where it was built, 1\.5\.0 here") as refused:
        try_variant(other, load(folder / "tailcut.toml"), version, "sklearn")
    assert f"pip install 'scikit-learn=={here.packages['scikit-learn']}'" in refused.value.hint
    with pytest.raises(ArtifactError, match=r"1\.5\.0 here"):
        other.rollback("stored", trial=partial(try_variant, other, None))
    with pytest.raises(NotServable):
        other.variant("stored", "sklearn", version.id)


def test_a_manifest_with_other_tensors_is_refused(folder: Path) -> None:
    manifest = folder / "tailcut.toml"
    manifest.write_text(manifest.read_text().replace("[-1, 4]", "[-1, 5]"))
    code, said = run_tailcut(folder, "registry", "rollback")
    assert code == 3
    assert "its inputs are [('x', 'FP64', (-1, 4))], the manifest's are [('x', 'FP64', (-1, 5))]" in said
    assert run_tailcut(folder, "registry", "rollback", "--registry", str(folder / ".tailcut/registry"))[0] == 0


def test_a_library_that_crashes_is_reported_and_the_others_are_opened(folder: Path) -> None:
    registry, version = newest(folder)
    whole = add_onnx(registry, folder, "Sigmoid")
    code, said = run_tailcut(folder, "registry", "verify", crashing="skops")
    assert code == 1
    assert said.count("ended while opening it (signal SIGSEGV)") == 2
    assert f"variant 'sklearn' of model 'stored' version {version.id} cannot be opened" in said
    assert f"ok stored {whole.id} onnx {whole.variants['onnx'].sha256}: opened, 2 invented rows" in said


def add_onnx(registry: Registry, folder: Path, operator: str) -> Version:
    """Add a version whose ONNX variant answers with an operator of the mean of its inputs."""
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["batch", 4])
    y = helper.make_tensor_value_info("p", TensorProto.FLOAT, ["batch"])
    axes = helper.make_tensor("axes", TensorProto.INT64, [1], [1])
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["mean"], keepdims=0),
        helper.make_node("Cast", ["mean"], ["single"], to=TensorProto.FLOAT),
        helper.make_node(operator, ["single"], ["p"]),
    ]
    graph = helper.make_graph(nodes, "g", [x], [y], [axes])
    file = folder / f"{operator}.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), str(file))
    variant = NewVariant("onnx", "onnxruntime", file)
    tensors = load(folder / "tailcut.toml").deployment.model
    return registry.add("stored", source="onnx", inputs=tensors.inputs, outputs=tensors.outputs, variants=[variant])


def test_answers_that_are_no_numbers_are_reported(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry, _ = newest(folder)
    version = add_onnx(registry, folder, "Log")
    test = partial(try_variant, registry, load(folder / "tailcut.toml"))
    said = test(version, "onnx")
    assert said == "opened, but not with invented rows: output 'p' is not finite in 2 of 2 rows"
    rows = {"x": np.array([[1.0] * 4, [-1.0] * 4, [2.0] * 4])}
    monkeypatch.setattr(smoke_test, "_batches", lambda manifest, variant: ([rows], True))
    with pytest.raises(ArtifactError, match=r"not with rows of the holdout: output 'p' is not finite in 1 of 3 rows"):
        test(version, "onnx")
    manifest = folder / "tailcut.toml"
    manifest.write_text(manifest.read_text().replace('name = "p"', 'name = "p"\nallow_nan = true'))
    allowed = add_onnx(registry, folder, "Log")
    assert try_variant(registry, load(manifest), allowed, "onnx") == "opened, 3 rows of the holdout"


TORCH = """
import torch
def build():
    torch.manual_seed(SEED)
    return torch.nn.Sequential(Half(), torch.nn.Linear(4, 1), torch.nn.Flatten(0)).eval()
class Half(torch.nn.Module):
    def forward(self, x):
        return x.float() / 2
"""


@pytest.mark.torch
def test_a_torch_module_whose_code_moved(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "m", TORCH)
    first, _ = add_versions(folder, 1, 2)
    assert "torch (promoted; needs my_model:build)" in run_tailcut(folder, "registry", "list")[1]
    (folder / "my_model.py").rename(folder / "my_net.py")
    code, said = run_tailcut(folder, "registry", "rollback")
    assert code == 3
    assert f"torch of {first}: variant 'torch'" in said
    assert "needs live code my_model:build, and cannot be opened with the code here" in said
    assert "there is no module my_model" in said
    manifest = folder / "tailcut.toml"
    manifest.write_text(manifest.read_text().replace("my_model:build", "my_net:build"))
    code, said = run_tailcut(folder, "registry", "rollback")
    assert (code, said.split()[-3:]) == (0, ["stored", first, "torch"])
    code, said = run_tailcut(folder, "registry", "verify", "--registry", str(folder / ".tailcut/registry"))
    assert code == 1
    assert "of the manifest of 'stored'" in said
