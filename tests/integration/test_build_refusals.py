"""Bad input through the command line: each says what, where and the way out, and leaves the registry as it was."""

from __future__ import annotations

import hashlib
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from tests.models import graphs

from tailcut.builder import build
from tailcut.builder.progress import Event
from tailcut.cli.app import run
from tailcut.errors import ArtifactError
from tailcut.manifest import load
from tailcut.registry import Registry

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("warm_builds")]

ROOT = Path(__file__).resolve().parents[2]

MANIFEST = """
name = "refusals"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 4] }]
outputs = [{ name = "y", shape = [-1] }]
[holdout]
source = "cases:good"
[quality]
budget = { accuracy = 0.01 }
[build]
recipes = ["onnx"]
rounds = 0
round = "200ms"
[slo]
p95 = "1s"
rate = 50
[server]
host = "203.0.113.7"  # no address of this machine: a build asks over the loopback
"""

LAST_STEP = "race"
"""Of a build without load."""

WITH_LOAD = ["--set", "build.rounds=6"]

UNSERVED = """
import sys

if "serve" in sys.argv:
    raise RuntimeError("there is no serving here")


def hook(rows): ...
"""

CASES = """
import numpy as np
from tailcut.builder import Holdout

X = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.int64)

def good(rows=60):
    return Holdout(inputs={"x": X[:rows]}, labels=Y[:rows])

def empty():
    return good(0)

def small():
    return good(9)

def one_class():
    return Holdout(inputs={"x": X}, labels=np.ones(60))

def nan_labels():
    return Holdout(inputs={"x": X}, labels=np.where(np.arange(60) % 20 == 5, np.nan, Y))

def nan_inputs():
    return Holdout(inputs={"x": np.where(np.arange(60)[:, None] == 7, np.nan, X)}, labels=Y)

def other_inputs():
    return Holdout(inputs={"z": X}, labels=Y)

def narrow():
    return Holdout(inputs={"x": X[:, :3]}, labels=Y)

def raising():
    return Holdout(inputs={"x": X}, labels=Y[{}["late"]])

def codes():
    values = np.arange(60) % 4
    values[[17, 44]] = 9, -20
    return Holdout(inputs={"code": values}, labels=Y)
"""


def listing(folder: Path) -> dict[str, str]:
    """Every file of the registry with its hash; locks hold the number of the last process that had them."""
    root = folder / ".tailcut" / "registry"
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file() and path.suffix != ".lock"
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with its manifest and cases, built once."""
    made = tmp_path_factory.mktemp("refusals")
    graphs.linear(made / "model.onnx")
    (made / "tailcut.toml").write_text(MANIFEST)
    (made / "cases.py").write_text(CASES)
    (made / "rows.csv").write_text("a,b,c,d,late\n" + "1,2,3,4,1\n" * 20)
    assert run(["build", "-m", str(made), *WITH_LOAD]) == 0
    assert listing(made)
    return made


def refused(
    folder: Path, capfd: pytest.CaptureFixture[str], *arguments: str, manifest: str = "tailcut.toml"
) -> tuple[int, str]:
    """Run a build that must fail; return its exit code and what it said."""
    before = listing(folder)
    capfd.readouterr()
    code = run(["build", "-m", str(folder / manifest), *arguments])
    assert listing(folder) == before
    printed = capfd.readouterr()
    assert printed.out == ""
    assert "Traceback" not in printed.err
    assert "hint: " in printed.err
    return code, " ".join(printed.err.split())


@pytest.mark.parametrize(
    ("settings", "texts"),
    [
        (["holdout.source=cases:empty"], ["the holdout has no rows", "a few thousand"]),
        (["holdout.source=cases:small"], ["the holdout has 9 rows, the minimum is 10"]),
        (["holdout.source=cases:one_class"], ["every one of the holdout's 60 labels is 1.0", "every outcome"]),
        (
            ["holdout.source=cases:nan_labels"],
            ["3 of 60 labels are NaN, infinite or missing, the first in row 5", "leave out"],
        ),
        (["holdout.source=cases:nan_inputs"], ["input 'x' holds nan in row 7 (1 of 60 rows", "allow_nan"]),
        (["holdout.source=cases:other_inputs"], ["inputs are ['z'], the manifest's model.inputs are ['x']"]),
        (["holdout.source=cases:narrow"], ["is FP32 [60, 3], the manifest says FP32 [-1, 4]", "reshape"]),
        (["holdout.source=cases:raising"], ["cases:raising raised KeyError: 'late' (", "cases.py:33)", "python -c"]),
        (
            ["holdout.source=rows.csv", "holdout.labels=late"],
            ["model.inputs: the holdout rows.csv has no column 'x'", "it has a, b, c, d, late"],
        ),
        (
            [
                "holdout.source=rows.csv",
                "holdout.labels=lat",
                'model.inputs=[{name="x", shape=[-1, 4], columns=["a", "b", "c", "d"]}]',
            ],
            ["holdout.labels: the holdout rows.csv has no column 'lat'", "did you mean late?"],
        ),
        (['model.outputs=[{name="y", shape=[-1, 1]}]'], ["'y'", "FP32 [-1, 1]", "model.outputs"]),
        (['model.outputs=[{name="z"}]'], ["['y'], the manifest names ['z']", "model.outputs"]),
    ],
)
def test_a_holdout_or_model_that_does_not_fit_ends_with_1(
    folder: Path, capfd: pytest.CaptureFixture[str], settings: list[str], texts: list[str]
) -> None:
    code, said = refused(folder, capfd, *(part for each in settings for part in ("--set", each)))
    assert code == 1, said
    for text in texts:
        assert text in said


@pytest.mark.parametrize(
    ("setting", "texts"),
    [
        ("holdout.source=", ["holdout.source is not set", "docs/how-to/build.md"]),
        ("holdout.source=cases:goood", ["cases has no goood", "did you mean good?"]),
        ("holdout.source=casess:good", ["there is no module casess"]),
        ("model.source=casess:model", ["there is no module casess"]),
        ("model.source=modle.onnx", ["there is no file", "modle.onnx", "the folder has model.onnx"]),
        ('build.recipes=["fp4"]', ["there is no recipe 'fp4'", "the recipes are onnx"]),
    ],
)
def test_typos_end_with_2(folder: Path, capfd: pytest.CaptureFixture[str], setting: str, texts: list[str]) -> None:
    code, said = refused(folder, capfd, "--set", setting)
    assert code == 2, said
    for text in texts:
        assert text in said


def test_rows_that_the_model_refuses_are_named(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    graph = helper.make_graph(
        [helper.make_node("Gather", ["weights", "code"], ["y"])],
        "gather",
        [helper.make_tensor_value_info("code", TensorProto.INT64, ["batch"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch"])],
        [numpy_helper.from_array(np.linspace(0, 1, 4, dtype=np.float32), "weights")],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(made, folder / "gather.onnx")
    text = MANIFEST.replace("model.onnx", "gather.onnx").replace("cases:good", "cases:codes")
    text = text.replace('{ name = "x", shape = [-1, 4] }', '{ name = "code", datatype = "INT64" }')
    (folder / "gather.toml").write_text(text)
    code, said = refused(folder, capfd, manifest="gather.toml")
    assert code == 1
    # Either may be in the part that chooses; the rows that judge hold at least one of them.
    assert "row 17 of the holdout is refused" in said or "row 44 of the holdout is refused" in said
    assert "its values are code 9" in said or "its values are code -20" in said
    assert "indices element out of data bounds" in said


@pytest.mark.torch
def test_a_model_that_cannot_be_exported_names_the_operator_and_is_not_kept(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = MANIFEST.replace('"model.onnx"', '"tests.models.tabular:unsupported"')
    text = text.replace(
        '{ name = "x", shape = [-1, 4] }',
        ('{ name = "numeric", shape = [-1, 6] }, { name = "categorical", datatype = "INT64", shape = [-1, 2] }'),
    )
    text = text.replace('name = "y"', 'name = "probability"').replace("cases:good", "tests.models.holdouts:holdout")
    (folder / "torch.toml").write_text(f"python_path = [{str(ROOT)!r}]\n{text}")
    code, said = refused(folder, capfd, manifest="torch.toml")
    assert code == 1
    assert "operator prims.bessel_j0 at tabular.py:" in said
    assert "the registry is unchanged" in said
    assert "--recipes torch" in said
    assert "tune torch" not in said, "settings are chosen, for many seconds, of what is thrown away"


def test_a_model_that_cannot_be_served_is_not_kept(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "unserved.py").write_text(UNSERVED)
    code, said = refused(folder, capfd, "--set", "model.preprocess=unserved:hook", *WITH_LOAD)
    assert code == 1
    assert "no variant could be judged under load; onnx not measured under load" in said
    assert "RuntimeError: there is no serving here" in said


def test_a_second_build_of_the_model_is_refused(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with Registry(folder / ".tailcut" / "registry").build_lock("refusals"):
        code, said = refused(folder, capfd)
    assert code == 1
    assert f"'refusals' is being built by process {os.getpid()}" in said
    assert "wait until that build has ended" in said


@pytest.fixture
def restored(folder: Path) -> Iterator[Path]:
    """The source model, which a test may change."""
    model = folder / "model.onnx"
    content = model.read_bytes()
    yield model
    model.write_bytes(content)


def test_a_source_that_changes_meanwhile_is_not_kept(folder: Path, restored: Path) -> None:
    before = listing(folder)

    def change(event: Event) -> None:
        if event.step == LAST_STEP and event.state == "done":
            graphs.linear(restored, seed=1)

    with pytest.raises(ArtifactError, match=r"model\.onnx changed during the build") as error:
        build(load(folder / "tailcut.toml", overrides=["holdout.selection=0.4"]), progress=change)
    assert "the registry is unchanged" in error.value.hint
    after = listing(folder)
    assert {path for path in after if after[path] != before.get(path)} <= {"models/refusals/confirmations.json"}


def test_a_full_disk_leaves_the_registry_as_it_was(folder: Path, restored: Path) -> None:
    """A limit on the size of files, set once all else is done, stands in for a disk that becomes full."""
    before = listing(folder)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    graphs.linear(restored, seed=2, hidden=2048)

    def fill(event: Event) -> None:
        if event.step == LAST_STEP and event.state == "done":
            resource.setrlimit(resource.RLIMIT_FSIZE, (16384, limits[1]))

    try:
        with pytest.raises(ArtifactError, match=r"cannot write .*: File too large; \d+ bytes are free") as error:
            build(load(folder / "tailcut.toml"), progress=fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert "the registry is unchanged" in error.value.hint
    assert listing(folder) == before
