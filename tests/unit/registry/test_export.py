"""``tailcut registry export``: an artifact and its description, whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.registry_kit import X, Y, add

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.errors import ArtifactError
from tailcut.registry import NewVariant, Registry, Version
from tailcut.registry.exporting import export

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


def tailcut(registry: Registry, *arguments: str) -> int:
    return run(["registry", "export", *arguments, "--registry", registry.url])


def test_the_artifact_comes_with_what_it_takes_and_gives(registry: Registry, tmp_path: Path, capsys: Capture) -> None:
    version = add(registry, tmp_path)
    file = tmp_path / "model.onnx"
    assert tailcut(registry, version.id, "onnx", str(file)) == ExitCode.OK
    assert capsys.readouterr().out.split() == [str(file), f"{file}.json"]
    assert file.read_bytes() == b"onnxweights"
    described = json.loads((tmp_path / "model.onnx.json").read_text())
    assert (described["version"], described["variant"], described["runtime"]) == (version.id, "onnx", "onnxruntime")
    assert [each["name"] for each in described["inputs"] + described["outputs"]] == ["x", "y"]
    assert described["sha256"] == version.variants["onnx"].sha256
    assert tailcut(registry, "latest", "torch", str(tmp_path / "torch.pt")) == ExitCode.OK
    assert json.loads((tmp_path / "torch.pt.json").read_text())["live_code"] == ["my_model:build"]


@pytest.mark.parametrize("there", ["model.onnx", "model.onnx.json"])
def test_a_file_that_is_there_stays_unless_forced(
    registry: Registry, tmp_path: Path, capsys: Capture, there: str
) -> None:
    add(registry, tmp_path)
    (tmp_path / there).write_text("mine")
    command = ("latest", "onnx", str(tmp_path / "model.onnx"))
    assert tailcut(registry, *command) == ExitCode.USAGE
    assert f"{there} already exists" in capsys.readouterr().err
    assert (tmp_path / there).read_text() == "mine"
    assert len(list(tmp_path.glob("model.onnx*"))) == 1, "nothing else was written"
    assert tailcut(registry, *command, "--force") == ExitCode.OK
    assert (tmp_path / "model.onnx").read_bytes() == b"onnxweights"


def test_what_is_no_file_is_named(registry: Registry, tmp_path: Path, capsys: Capture) -> None:
    add(registry, tmp_path)
    for file, said in (
        (tmp_path / "none" / "model.onnx", "is not a folder"),
        (tmp_path, "is a folder"),
    ):
        assert tailcut(registry, "latest", "onnx", str(file), "--force") == ExitCode.USAGE
        assert said in capsys.readouterr().err
    assert tailcut(registry, "latest", "onxx", str(tmp_path / "model.onnx")) == ExitCode.USAGE
    assert "has no variant 'onxx'" in capsys.readouterr().err
    assert tailcut(registry, "latest", "fp16", str(tmp_path / "model.onnx")) == ExitCode.NOT_STARTED
    assert "was not built" in capsys.readouterr().err


def test_a_damaged_artifact_is_not_exported(registry: Registry, tmp_path: Path) -> None:
    version = add(registry, tmp_path)
    blob = registry.artifact("flights", "onnx", version.id).artifact
    blob.write_bytes(b"onnxwEights")
    with pytest.raises(ArtifactError, match="is corrupt"):
        export(registry, version, "onnx", tmp_path / "model.onnx")
    assert not list(tmp_path.glob("*model.onnx*"))


def test_a_folder_that_cannot_be_written_leaves_nothing(registry: Registry, tmp_path: Path) -> None:
    version = add(registry, tmp_path)
    long = "m" * 250  # a name that fits, but not with ".json" behind it
    with pytest.raises(ArtifactError, match=r"cannot write .*File name too long"):
        export(registry, version, "onnx", tmp_path / long)
    assert not list(tmp_path.glob("*mmm*"))


def pair(registry: Registry, folder: Path) -> Version:
    files = {name: folder / name for name in ("small", "large", "pair")}
    for name, file in files.items():
        file.write_text(name)
    parts = {name: files[name] for name in ("small", "large")}
    variants = [NewVariant(name, "onnxruntime", file) for name, file in parts.items()]
    variants.append(NewVariant("pair", "pair", files["pair"], parts=parts))
    variants.append(NewVariant("sklearn", "sklearn", files["pair"]))
    return registry.add("flights", source="large", inputs=X, outputs=Y, variants=variants)


def test_what_is_no_model_by_itself_is_refused_with_what_is(registry: Registry, tmp_path: Path) -> None:
    version = pair(registry, tmp_path)
    with pytest.raises(ArtifactError, match="is a pair of 'small' and 'large'") as refused:
        export(registry, version, "pair", tmp_path / "model")
    assert f"`tailcut registry export {version.id} small FILE`" in refused.value.hint
    with pytest.raises(ArtifactError, match="holds rows and answers, but no model"):
        export(registry, version, "sklearn", tmp_path / "model")
    assert not list(tmp_path.glob("model*"))
