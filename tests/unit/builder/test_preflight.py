"""What a build refuses before it runs anything, and how: exit code 2 is the manifest's, 1 the build's."""

from __future__ import annotations

import errno
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tailcut.builder import Holdout, build, preflight, workspace
from tailcut.builder.calling import call
from tailcut.builder.children import StepRunner
from tailcut.builder.holdouts import datatypes
from tailcut.builder.holdouts import run as holdout_run
from tailcut.builder.records import Made, Spec, spec
from tailcut.builder.steps import HoldoutRead
from tailcut.builder.worker import do
from tailcut.cli.app import run
from tailcut.common.tensors import Arrays
from tailcut.errors import BuildError, InferenceError, ManifestError, OutputsError
from tailcut.manifest import Build, Deployment, Manifest, Model, TensorSpec
from tailcut.manifest import HoldoutSettings as HoldoutSection

CODE = """
import numpy as np
from tailcut.builder import Holdout


def inner():
    return {}["arrival_delay"]


def raising():
    return np.asarray(list(map(lambda _: inner(), [1])))


def needs(argument):
    return argument


def refuses():
    return Holdout(inputs={})


def silent():
    raise ValueError


def good():
    return Holdout(inputs={"x": np.zeros((20, 3), np.float32)}, labels=np.arange(20) % 2)
"""


def manifest(
    folder: Path,
    *,
    source: str = "cases_of_preflight:good",
    holdout: str = "cases_of_preflight:good",
    recipes: tuple[str, ...] = (),
) -> Manifest:
    model = Model(source=source, inputs=(TensorSpec(name="x", shape=(-1, 3)),), outputs=(TensorSpec(name="y"),))
    deployment = Deployment(
        name="m", model=model, holdout=HoldoutSection(source=holdout), build=Build(recipes=recipes), python_path=(".",)
    )
    return Manifest(deployment, folder, {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "cases_of_preflight.py").write_text(CODE)
    (tmp_path / "other.onnx").write_bytes(b"")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "cases_of_preflight", raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("change", "text", "hint"),
    [
        ({"holdout": ""}, "holdout.source is not set", "docs/how-to/build.md"),
        ({"holdout": "rows.csv"}, "holdout.source: there is no file .*rows.csv", "relative paths"),
        (
            {"source": "model.onnx"},
            "model.source model.onnx: there is no file .*model.onnx",
            "the folder has other.onnx",
        ),
        ({"source": "./bert"}, "nor an existing file or folder .*bert", "Hugging Face folder"),
        ({"source": "./"}, "is neither an .onnx file nor a Hugging Face folder", "relative paths"),
        ({"recipes": ("onxn",)}, "build.recipes: there is no recipe 'onxn'", "did you mean 'onnx'"),
    ],
)
def test_a_wrong_manifest_is_refused_before_anything_is_made(
    folder: Path, change: dict[str, object], text: str, hint: str
) -> None:
    with pytest.raises(ManifestError, match=text) as refused:
        build(manifest(folder, **change))  # type: ignore[arg-type]
    assert hint in refused.value.hint
    assert sorted(path.name for path in folder.iterdir()) == ["cases_of_preflight.py", "other.onnx"]


def test_a_source_model_may_be_asked_for_alone(folder: Path) -> None:
    preflight.check(manifest(folder, recipes=("torch",)))


def test_a_build_from_the_registry_needs_no_source(folder: Path) -> None:
    preflight.check(manifest(folder, source="model.onnx"), from_registry="latest")
    preflight.import_all(manifest(folder, source="gone:model"), from_registry="latest")


def test_typos_of_references_are_found_before_the_holdout_is_made(folder: Path, step_runner: StepRunner) -> None:
    step = spec("holdout", manifest(folder, source="cases_of_preflight:godo"), folder, [])
    with pytest.raises(ManifestError, match=r"cases_of_preflight has no godo"):
        step_runner.run(step, HoldoutRead, timeout_s=60)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("raising", "raised KeyError: 'arrival_delay' (FILE:7)"),
        ("needs", "raised TypeError: needs() missing 1 required positional argument: 'argument' (FILE:14)"),
        ("silent", "raised ValueError (FILE:23)"),
    ],
)
def test_the_line_is_the_users_own(folder: Path, name: str, text: str) -> None:
    with pytest.raises(BuildError) as refused:
        call("model.source", f"cases_of_preflight:{name}", manifest(folder))
    file = str(folder / "cases_of_preflight.py")
    assert refused.value.message == f"model.source cases_of_preflight:{name} {text.replace('FILE', file)}"
    assert f"python -c 'import cases_of_preflight; cases_of_preflight.{name}()'" in refused.value.hint


def test_what_tailcut_refuses_in_the_users_code_stays_as_it_is(folder: Path) -> None:
    with pytest.raises(BuildError, match=r"^the holdout has no inputs"):
        call("holdout.source", "cases_of_preflight:refuses", manifest(folder))


def test_a_module_that_does_not_parse_is_named_with_its_line(folder: Path) -> None:
    (folder / "unparsable_of_preflight.py").write_text("x = 1\ndef (\n")
    with pytest.raises(ManifestError, match=r"raised SyntaxError: .*unparsable_of_preflight\.py:2\)"):
        call("model.source", "unparsable_of_preflight:f", manifest(folder))


# -- Datatypes of the holdout ----------------------------------------------------------------------------------------


def test_float64_is_made_what_the_manifest_says_as_preprocess_is() -> None:
    model = Model(
        source="m:f",
        inputs=(TensorSpec(name="x", shape=(-1, 2)), TensorSpec(name="n", datatype="INT64")),
        outputs=(TensorSpec(name="y"),),
    )
    given = Holdout(inputs={"x": np.ones((3, 2)), "n": np.array([1.0, 2.0, 3.0])}, labels=np.array([0, 1, 0]))
    found = datatypes.fitted(given, model)
    assert {name: array.dtype.name for name, array in found.inputs.items()} == {"x": "float32", "n": "int64"}
    np.testing.assert_array_equal(found.truth, given.truth)


@pytest.mark.parametrize(
    ("tensor", "array", "text"),
    [
        (
            TensorSpec(name="x", datatype="INT64"),
            np.array([1.0, 2.5]),
            "'x' holds 2.5, which is no INT64 (it is float64",
        ),
        (TensorSpec(name="x"), np.array(["a", "b"]), "input 'x' holds 'a', which is no FP32"),
        (TensorSpec(name="x", datatype="INT8"), np.array([1, 300]), "input 'x' holds 300, which is no INT8"),
        (TensorSpec(name="x"), np.array([1.0, 1e300]), "input 'x' holds 1e+300, which is no FP32"),
        (TensorSpec(name="x"), np.array([1.0, np.nan]), "input 'x' holds nan in row 1 (1 of 2 rows"),
        (TensorSpec(name="z"), np.array([1.0, 2.0]), "inputs are ['x'], the manifest's model.inputs are ['z']"),
    ],
)
def test_numbers_that_would_not_survive_are_refused(tensor: TensorSpec, array: np.ndarray, text: str) -> None:
    model = Model(source="m:f", inputs=(tensor,), outputs=(TensorSpec(name="y"),))
    with pytest.raises(BuildError) as refused:
        datatypes.fitted(Holdout(inputs={"x": array}), model)
    assert text in refused.value.message
    assert refused.value.hint


# -- Rows that the model refuses -------------------------------------------------------------------------------------


class Picky:
    """Takes numbers below 10, and no batch of more than ``most`` rows."""

    def __init__(self, most: int = 100) -> None:
        self.most = most

    def run(self, inputs: Arrays, outputs: list[str]) -> Arrays:
        if len(inputs["x"]) > self.most:
            raise InferenceError("variant 'v' failed: too many rows", hint="ask for less")
        if (inputs["x"] >= 10).any():
            raise InferenceError(f"variant 'v' failed: {inputs['x'].max()} is out of range", hint="ask for less")
        return {name: inputs["x"] for name in outputs}

    def close(self) -> None: ...


class Wrong(Picky):
    def run(self, inputs: Arrays, outputs: list[str]) -> Arrays:
        raise OutputsError("forward returned a dict", hint="return a tensor")


X = np.array([1, 2, 30, 4, 50, 6])


def test_the_rows_that_a_model_refuses_are_named_as_the_user_counts_them() -> None:
    holdout = Holdout(inputs={"x": X}).subset(np.array([1, 2, 4, 5]))
    with pytest.raises(BuildError) as refused:
        holdout_run.run(Picky(), holdout, np.arange(4), ["y"])
    assert refused.value.message == (
        "row 2 of the holdout is refused (2 of 4 rows tried are refused): variant 'v' failed: 30 is out of range; "
        "its values are x 30"
    )
    assert "one at a time" not in refused.value.hint
    assert holdout_run.run(Picky(), holdout, np.array([0, 3]), ["y"])["y"].tolist() == [2, 6]


def test_a_model_that_refuses_all_rows_or_only_batches_is_told_apart() -> None:
    with pytest.raises(BuildError, match=r"^every row of the holdout is refused: variant 'v' failed: 99"):
        holdout_run.run(Picky(), Holdout(inputs={"x": np.array([99, 99])}), np.arange(2), ["y"])
    with pytest.raises(BuildError, match=r"too many rows; each of these 3 rows by itself works"):
        holdout_run.run(Picky(most=2), Holdout(inputs={"x": np.array([1, 2, 3])}), np.arange(3), ["y"])
    with pytest.raises(BuildError, match=r"^forward returned a dict"):
        holdout_run.run(Wrong(), Holdout(inputs={"x": X}), np.arange(3), ["y"])


def test_row_numbers_survive_splits_and_the_disk(tmp_path: Path) -> None:
    whole = Holdout(inputs={"x": np.arange(40)}, labels=np.arange(40) % 2)
    for part in whole.split(0.3):
        part.save(tmp_path / "part.npz")
        again = Holdout.load(tmp_path / "part.npz").subset(np.array([2, 5]))
        assert [again.number(place) for place in range(2)] == again.inputs["x"].tolist()
    assert whole.number(7) == 7


# -- A full disk -----------------------------------------------------------------------------------------------------


def test_a_step_without_room_says_where_and_how_much_there_is(folder: Path) -> None:
    (folder / "selection.npz").symlink_to("/dev/full")
    outcome = do(spec("holdout", manifest(folder), folder, []))
    assert outcome.error.startswith(f"step 'holdout' cannot write to {folder}: No space left on device; ")
    assert outcome.error.endswith(" bytes are free")
    assert "TMPDIR" in outcome.hint


def test_the_builders_own_files_are_removed_when_there_is_no_room() -> None:
    seen: list[Path] = []

    def fill() -> None:
        with workspace.folder() as scratch:
            seen.append(scratch)
            (scratch / "some").write_bytes(b"x")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(BuildError, match=r"the build cannot write to .*: No space left on device"):
        fill()
    assert not seen[0].exists()


# -- Ways out --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("step", "target", "left_out"),
    [
        ("holdout", "", False),
        ("source", "", False),
        ("score", "torch", False),
        ("make", "onnx", True),
        ("tune", "onnx", True),
    ],
)
def test_only_what_a_recipe_needs_can_be_left_out(step: str, target: str, left_out: bool) -> None:
    made = [Made(name=name, runtime=name, path=name) for name in ("torch", "onnx")]
    found = Spec(step=step, target=target, folder="", deployment={}, directory="", made=made).way_out
    assert ("--recipes" in found) is left_out


LISTED = """
name = "listed"
[model]
source = "{source}"
inputs = [{{ name = "x", shape = [-1, 3] }}]
outputs = [{{ name = "y", shape = [-1] }}]
[holdout]
source = "cases_of_preflight:good"
[build]
quantize = true
"""


def listed(folder: Path, source: str, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    (folder / "tailcut.toml").write_text(LISTED.format(source=source))
    assert run(["build", "--list", "-m", str(folder)]) == 0
    lines = capsys.readouterr().out.splitlines()
    return {name.split()[0]: answer.strip() for name, answer in zip(lines[::2], lines[1::2], strict=True)}


def test_the_list_says_what_it_cannot_know_of_a_callable_and_what_a_path_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Seen before: INT8 "applies" to a scikit-learn model, of which the build said that trees cannot."""
    of_callable = listed(tmp_path, "cases_of_preflight:good", capsys)
    assert (
        of_callable["int8-dynamic"] == of_callable["int8-static"] == "applies, unless the model is an ensemble of trees"
    )
    assert of_callable["onnx"] == "applies"
    (tmp_path / "model.onnx").write_bytes(b"")
    of_file = listed(tmp_path, "model.onnx", capsys)
    assert of_file["int8-dynamic"] == "applies"
    assert of_file["onnx"] == "the source is already an ONNX file"
