"""``tailcut build`` and ``tailcut registry`` from the command line, on a torch model and on an ONNX file."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from tests.models import graphs, tabular
from tests.warm import warm

from tailcut.builder import build
from tailcut.builder.steps import ROUNDS
from tailcut.errors import BuildError
from tailcut.manifest import load
from tailcut.models.runtimes import open_runtime
from tailcut.registry import Registry

pytestmark = pytest.mark.integration

ROOT = Path(__file__).resolve().parents[2]

TORCH = """
name = "demo"
python_path = [{root!r}]
[model]
source = "tests.models.tabular:{source}"
inputs = [{{ name = "numeric", shape = [-1, 6] }}, {{ name = "categorical", datatype = "INT64", shape = [-1, 2] }}]
outputs = [{{ name = "probability", shape = [-1] }}]
[holdout]
source = "tests.models.holdouts:{holdout}"
[quality]
budget = {{ auc = 0.05 }}
[build]
recipes = ["onnx", "int8-dynamic", "int8-qat"]
train = "tests.models.tabular:crashes_in_training"
rounds = 6
round = "100ms"
[slo]
p95 = "1s"
rate = 100
"""

LINEAR = """
name = "linear"
python_path = [{root!r}]
[model]
source = "model.onnx"
inputs = [{{ name = "x", shape = [-1, 64] }}]
outputs = [{{ name = "y", shape = [-1] }}]
[holdout]
source = "tests.models.holdouts:linear"
[quality]
budget = {{ auc = 0.000001 }}
[build]
recipes = ["onnx", "int8-dynamic", "int8-fast-gelu"]
rounds = 6
round = "100ms"
[slo]
p95 = "1s"
rate = 100
"""


def tailcut(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "NO_COLOR": "1", "TEST_LINEAR_MODEL": str(folder / "model.onnx")}
    return warm().run(arguments, cwd=folder, env=environment, timeout_s=240)


def write(folder: Path, source: str = "tabular", holdout: str = "holdout") -> Path:
    (folder / "tailcut.toml").write_text(TORCH.format(root=str(ROOT), source=source, holdout=holdout))
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A torch model, built once for the tests that only look."""
    folder = write(tmp_path_factory.mktemp("torch"))
    done = tailcut(folder, "build", "--json", "build.json")
    assert done.returncode == 0, done.stderr
    registry = Registry(folder / ".tailcut" / "registry")
    return SimpleNamespace(
        folder=folder, done=done, registry=registry, json=json.loads((folder / "build.json").read_text())
    )


@pytest.fixture
def linear(tmp_path: Path) -> Path:
    graphs.linear(tmp_path / "model.onnx", width=64, hidden=128, seed=6)
    (tmp_path / "tailcut.toml").write_text(LINEAR.format(root=str(ROOT)))
    return tmp_path


def test_a_torch_model_becomes_three_variants_with_evidence(built: SimpleNamespace) -> None:
    version = built.registry.version("demo")
    assert list(version.variants)[:2] == ["torch", "onnx"]
    evidence = version.variants["onnx"].evidence
    parity = evidence.recipe.details["parity"]["found"]
    assert [each["rows"] for each in parity] == [1, 3, 8]
    assert all(each["max_abs"] < 1e-4 for each in parity)
    assert evidence.recipe.exact
    judged = evidence.quality.metrics[0]
    assert judged.metric == "auc"
    assert judged.outcome == "pass"
    assert abs(judged.drop) < 1e-3
    assert {rows: len(ms) for rows, ms in evidence.bare_ms.items()} == {1: ROUNDS, 8: ROUNDS}
    assert [each.number for each in evidence.load.rounds] == list(range(6))
    assert evidence.speed.reference == "torch"
    assert evidence.cost.cpu_s[0] > 0
    assert version.variants["int8-dynamic"].evidence.recipe.details["operators"]["integer"] > 0
    assert version.evidence.holdout.rows == 300
    written = built.json["version"]["evidence"]
    assert {"machine", "versions", "holdout", "race", "load", "choice", "rate", "durations_s", "code"} <= set(written)


def test_variants_answer_alike_through_their_runtimes(built: SimpleNamespace) -> None:
    rows = tabular.rows(9, seed=11)
    answers = {}
    for name in ("torch", "onnx", "int8-dynamic"):
        variant = built.registry.variant("demo", name)
        answers[name] = open_runtime(variant, threads=1, source=tabular.tabular).run(rows, ["probability"])[
            "probability"
        ]
    np.testing.assert_allclose(answers["onnx"], answers["torch"], atol=1e-5)
    np.testing.assert_allclose(answers["int8-dynamic"], answers["torch"], atol=0.05)


def test_the_table_and_the_json_say_the_same(built: SimpleNamespace) -> None:
    lines = built.done.stdout.splitlines()
    assert built.json["promotion"]["variant"] == built.registry.promotion("demo").variant
    for name, record in built.json["version"]["variants"].items():
        if record["sha256"]:
            row = next(line for line in lines if line.split()[:1] == [name])
            assert f"{record['evidence']['metrics']['auc']:.4f}" in row
        if record["refused"] and record["sha256"]:
            assert f"{name} refused: {record['refused']}" in built.done.stdout
    assert "onnx: done in" in built.done.stderr
    assert "done in" not in built.done.stdout


def test_registry_commands_show_verify_and_promote(built: SimpleNamespace) -> None:
    version = built.json["version"]["id"]
    assert version in tailcut(built.folder, "registry", "list").stdout
    shown = tailcut(built.folder, "registry", "show", "--registry", ".tailcut/registry", "--json")
    assert json.loads(shown.stdout)["id"] == version
    verified = tailcut(built.folder, "registry", "verify").stdout.splitlines()
    made = [name for name, each in built.json["version"]["variants"].items() if each["sha256"]]
    assert all(line.startswith(f"ok demo {version} ") for line in verified)
    assert [line.split()[3] for line in verified if " file " not in line] == made
    assert [line.split()[4] for line in verified if " file " in line] == ["code", "rows", "drift"]
    assert tailcut(built.folder, "registry", "promote", "torch").stdout.split() == ["demo", version, "torch"]
    assert built.registry.variant("demo").name == "torch"
    unknown = tailcut(built.folder, "registry", "promote", "int3")
    assert unknown.returncode == 2
    assert "has no variant 'int3'" in unknown.stderr


def test_an_onnx_file_is_its_own_source_and_int8_keeps_to_the_budget(linear: Path) -> None:
    done = tailcut(linear, "build")
    assert done.returncode == 0, done.stderr
    registry = Registry(linear / ".tailcut" / "registry")
    version = registry.version("linear")
    assert version.source == "onnx"
    assert next(iter(version.variants)) == "onnx"
    assert version.variants["onnx"].evidence.metrics["auc"] == 1.0
    assert "auc fell " in version.variants["int8-dynamic"].refused
    assert registry.promotion("linear").variant == "onnx"
    assert re.search(r"auc fell \S+; 350 rows can exclude drops above 0\.0\d+, budget 1e-06", done.stdout)
    assert "make int8-fast-gelu: does not apply" in done.stderr.splitlines()
    assert "int8-fast-gelu not built: there is nothing to approximate" in done.stdout
    assert "failed" not in done.stderr
    without_load = ("--set", "build.rounds=0")
    again = tailcut(linear, "build", "--set", "quality.budget.auc=0.5", "--recipes", "int8-dynamic", *without_load)
    assert again.returncode == 0, again.stderr
    assert version.id in [each.id for each in registry.list()]
    second = registry.version("linear").variants["int8-dynamic"]
    judged = second.evidence.quality.metrics[0]
    assert (judged.metric, judged.budget) == ("auc", 0.5)
    assert judged.outcome == "pass"
    assert "auc fell" not in second.refused


def test_a_corrupt_artifact_is_found_by_verify(built: SimpleNamespace, tmp_path: Path) -> None:
    folder = shutil.copytree(built.folder, tmp_path / "copy")
    blob = Registry(folder / ".tailcut" / "registry").variant("demo", "onnx").artifact
    blob.chmod(0o644)
    blob.write_bytes(blob.read_bytes()[:-1])
    done = tailcut(folder, "registry", "verify")
    assert done.returncode == 1
    assert blob.name in done.stderr


@pytest.mark.torch
def test_a_recipe_that_crashes_costs_its_variant_only(built: SimpleNamespace) -> None:
    crashed = built.registry.version("demo").variants["int8-qat"]
    assert crashed.sha256 == ""
    assert crashed.refused.startswith("recipe 'int8-qat' crashed (signal SIGABRT)")
    assert "the training met its end here" in crashed.refused
    assert "not built" in built.done.stdout


@pytest.mark.usefixtures("warm_builds")
@pytest.mark.parametrize(
    ("source", "holdout", "text"),
    [
        ("logit", "holdout", r"needs probabilities in \[0, 1\]"),
        ("raises", "holdout", r"FileNotFoundError: weights\.pt is not there \(.*tabular\.py:\d+\)"),
        ("tabular", "wrong", "expected a tailcut.build.Holdout"),
    ],
)
def test_a_source_or_holdout_that_does_not_work_ends_the_build(
    tmp_path: Path, source: str, holdout: str, text: str
) -> None:
    manifest = load(write(tmp_path, source, holdout), environment={})
    with pytest.raises(BuildError, match=text):
        build(manifest)
    assert Registry(tmp_path / ".tailcut" / "registry").list() == ()
