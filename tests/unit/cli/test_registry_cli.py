"""``tailcut registry``: the commands, against a registry on the disk and behind a URL."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.registry_kit import AVX2, add

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode
from tailcut.common.fingerprint import Machine
from tailcut.registry import Registry, read_machine
from tailcut.registry.diff import diff_versions, flatten

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    return Registry(tmp_path / "registry")


def tailcut(registry: Registry, capsys: Capture, *arguments: str, code: ExitCode = ExitCode.OK) -> str:
    """Run a command and return what it wrote; what it said on stderr comes after it.

    The artifacts here are no models, so that none is opened.
    """
    quick = ["--quick"] if arguments[0] in {"promote", "rollback", "verify"} else []
    assert run(["registry", *arguments, *quick, "--registry", registry.url]) == code
    seen = capsys.readouterr()
    return seen.out + seen.err


def test_promote_roll_back_retire_and_clear_up(registry: Registry, tmp_path: Path, capsys: Capture) -> None:
    old, new = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    assert tailcut(registry, capsys, "promote", "onnx", "--version", old.id).split() == ["flights", old.id, "onnx"]
    tailcut(registry, capsys, "promote", "int8")
    assert tailcut(registry, capsys, "rollback").split() == ["flights", old.id, "onnx"]
    assert "is promoted" in tailcut(registry, capsys, "retire", old.id, code=ExitCode.NOT_STARTED)
    tailcut(registry, capsys, "promote", "torch")
    tailcut(registry, capsys, "promote", "onnx")
    assert f"{old.id} retired" in tailcut(registry, capsys, "retire", old.id)
    listed = tailcut(registry, capsys, "list")
    assert "onnx (promoted)" in listed
    assert "onnx (retired)" in listed
    planned = tailcut(registry, capsys, "gc", "--dry-run")
    assert "1 versions, 5 files" in planned
    assert "would be removed" in planned
    done = tailcut(registry, capsys, "gc")
    assert done == planned.replace("would be removed", "removed")
    assert tailcut(registry, capsys, "gc").strip() == "nothing to remove"
    brief = json.loads(tailcut(registry, capsys, "list", "--json"))
    assert [(each["version"], each["states"]["onnx"]) for each in brief] == [(new.id, "promoted")]
    nothing = tailcut(registry, capsys, "rollback", "--model", "another", code=ExitCode.USAGE)
    assert "model 'another' has no promoted version" in nothing


def test_a_retired_way_back_stays_and_is_named(registry: Registry, tmp_path: Path, capsys: Capture) -> None:
    old, new = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    for each in (old, new):
        registry.promote("flights", each.id, "onnx")
    registry.retire("flights", old.id)
    assert f"flights/{old.id} is retired but stays" in tailcut(registry, capsys, "gc")


def test_diff_says_what_changed_and_nothing_else(registry: Registry, tmp_path: Path, capsys: Capture) -> None:
    old = add(registry, tmp_path, b"1", manifest={"slo": {"rate": 100}, "name": "flights"})
    new = add(registry, tmp_path, b"22", manifest={"slo": {"rate": 200}, "name": "flights"}, refused="auc fell")
    registry.promote("flights", old.id, "onnx")
    text = tailcut(registry, capsys, "diff")
    assert f"{old.id} -> {new.id}" in text
    assert "slo.rate: 100 -> 200" in text
    assert "settings.threads: 1 -> 2" in text
    assert "refused: empty -> auc fell" in text
    assert "size_bytes: 5 (0.0 KiB) -> 6 (0.0 KiB)" in text
    assert "flights" not in text
    assert "auc:" not in text
    found = json.loads(tailcut(registry, capsys, "diff", new.id, old.id, "--json"))
    assert found["manifest"] == [{"what": "slo.rate", "old": 200, "new": 100}]
    assert "have the same artifacts" in tailcut(registry, capsys, "diff", old.id, old.id)


def test_a_diff_names_variants_that_came_and_went(registry: Registry, tmp_path: Path) -> None:
    version = registry.version("flights", add(registry, tmp_path).id)
    fewer = replace(version, variants={name: each for name, each in version.variants.items() if name != "int8"})
    assert diff_versions(version, fewer).removed == ("int8",)
    assert diff_versions(fewer, version).added == ("int8",)
    assert diff_versions(version, version).same
    assert flatten({"a": [{"name": "g", "ttl": 1}], "b": [1, 2], "c": {}}) == {
        "a.g.name": "g",
        "a.g.ttl": 1,
        "b": [1, 2],
    }


def test_show_judges_for_another_machine(registry: Registry, tmp_path: Path, capsys: Capture) -> None:
    version = add(registry, tmp_path)
    assert run(["registry", "machine"]) == ExitCode.OK
    here = msgspec.json.decode(capsys.readouterr().out, type=Machine)
    assert here == read_machine()
    assert " is to be measured" not in tailcut(registry, capsys, "show", "--version", version.id)
    other = tmp_path / "machine.json"
    other.write_bytes(msgspec.json.encode(AVX2))
    there = tailcut(registry, capsys, "show", "--version", version.id, "--machine", str(other))
    assert "torch is to be measured again here: processor: " in there
    other.write_bytes(msgspec.json.encode(replace(AVX2, architecture="sparc")))
    there = tailcut(registry, capsys, "show", "--version", version.id, "--machine", str(other))
    assert f"int8 is not openable here: architecture: {here.architecture} where it was built, sparc here" in there
    other.write_text("{}")
    wrong = tailcut(registry, capsys, "show", "--version", version.id, "--machine", str(other), code=ExitCode.USAGE)
    assert "is not a machine description" in wrong


def test_verify_goes_on_after_what_is_bad(registry: Registry, tmp_path: Path, capsys: Capture) -> None:
    first, second = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    (registry.root / "models" / "flights" / "versions" / first.id / "version.json").write_text("{")
    text = tailcut(registry, capsys, "verify", code=ExitCode.FAILED)
    assert text.count(f"ok flights {second.id}") == 3
    assert f"{first.id}/version.json is corrupt" in text


def test_a_registry_behind_a_url(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url = f"memory://{secrets.token_hex(6)}"
    registry = Registry(url)
    version = add(registry, tmp_path)
    (tmp_path / "tailcut.toml").write_text(
        'name = "flights"\n[model]\nsource = "model.onnx"\ninputs = [{ name = "x", shape = [-1, 4] }]\n'
        f'outputs = [{{ name = "y" }}]\n[registry]\npath = "{url}"\n'
    )
    assert run(["registry", "promote", "onnx", "--quick", "-m", str(tmp_path)]) == ExitCode.OK
    assert capsys.readouterr().out.split() == ["flights", version.id, "onnx"]
    assert registry.variant("flights").artifact.is_relative_to(tmp_path / "cache")


def test_list_goes_on_after_what_is_bad_and_marks_it(registry: Registry, tmp_path: Path, capsys: Capture) -> None:
    first, second = add(registry, tmp_path, b"1"), add(registry, tmp_path, b"2")
    other = add(registry, tmp_path, b"3", model="another")
    registry.promote("flights", second.id, "onnx")
    (registry.root / "models" / "flights" / "versions" / first.id / "version.json").write_text("{")
    (registry.root / "models" / "another" / "promoted.json").write_text("")
    text = tailcut(registry, capsys, "list", code=ExitCode.FAILED)
    lines = {line.split()[1]: line for line in text.splitlines() if line.split()[:1] in (["flights"], ["another"])}
    assert "cannot be read" in lines[first.id]
    assert "onnx (promoted)" in lines[second.id]
    assert lines[other.id].rstrip().endswith("cannot be read"), "nobody knows what of it is promoted"
    assert f"{first.id}/version.json is corrupt" in text
    assert "another/promoted.json is corrupt" in text
    assert run(["registry", "list", "--json", "--registry", registry.url]) == ExitCode.FAILED
    rows = {row["version"]: row for row in json.loads(capsys.readouterr().out)}
    assert "is corrupt" in rows[first.id]["error"]
    assert "error" not in rows[second.id]


def test_what_holds_no_model_is_said_without_a_table(registry: Registry, capsys: Capture) -> None:
    registry.root.mkdir()
    assert tailcut(registry, capsys, "list") == f"{registry.url} holds no model yet; build one with `tailcut build`\n"
    assert run(["registry", "list", "--json", "--registry", registry.url]) == ExitCode.OK
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("command", [["list"], ["verify"], ["show"], ["gc"], ["promote", "onnx"]])
def test_a_place_that_is_typed_and_not_there_is_a_wrong_command_line(
    tmp_path: Path, capsys: Capture, command: list[str]
) -> None:
    (tmp_path / "file").write_text("")
    for place, said in (("nowhere", "not found"), ("file", "is not a folder"), ("file/below", "not found")):
        for written in (f"{tmp_path}/{place}", f"file://{tmp_path}/{place}"):
            assert run(["registry", *command, "--registry", written]) == ExitCode.USAGE
            assert said in capsys.readouterr().err
    assert not (tmp_path / "nowhere").exists()


def test_the_manifests_registry_need_not_be_there_yet_but_must_be_a_folder(tmp_path: Path, capsys: Capture) -> None:
    manifest = (
        'name = "flights"\n[model]\nsource = "model.onnx"\ninputs = [{ name = "x", shape = [-1, 4] }]\n'
        'outputs = [{ name = "y" }]\n'
    )
    (tmp_path / "tailcut.toml").write_text(manifest)
    assert run(["registry", "list", "-m", str(tmp_path)]) == ExitCode.OK
    assert "holds no model yet" in capsys.readouterr().err
    for command in (["promote", "onnx"], ["show"], ["rollback"]):
        assert run(["registry", *command, "-m", str(tmp_path)]) == ExitCode.NOT_STARTED, "nothing was typed wrong"
    capsys.readouterr()
    assert run(["registry", "list", "-m", str(tmp_path), "--set", "registry.path=tailcut.toml"]) == ExitCode.USAGE
    assert "is not a folder" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["promote", "onnx", "--version", "deadbeef"], "has no version 'deadbeef'"),
        (["promote", "onxx"], "has no variant 'onxx'"),
        (["promote", "onnx", "--version", "../../x"], "is not a version id"),
        (["promote", "onnx", "--model", "fligths"], "model 'fligths' has no version"),
        (["show", "--version", "deadbeef"], "has no version 'deadbeef'"),
        (["diff", "deadbeef", "latest"], "has no version 'deadbeef'"),
        (["retire", "deadbeef"], "has no version 'deadbeef'"),
        (["rollback", "--model", "fligths"], "model 'fligths' has no promoted version"),
    ],
)
def test_a_name_that_is_typed_wrong_is_a_wrong_command_line(
    registry: Registry, tmp_path: Path, capsys: Capture, command: list[str], said: str
) -> None:
    version = add(registry, tmp_path)
    text = tailcut(registry, capsys, *command, code=ExitCode.USAGE)
    assert said in text
    assert version.id in text or "flights" in text or "registry list" in text, "what there is"


def test_what_is_there_and_cannot_be_done_is_none(registry: Registry, tmp_path: Path, capsys: Capture) -> None:
    add(registry, tmp_path, refused="auc fell 0.012")
    for command in (["promote", "int8"], ["rollback"], ["show"]):
        tailcut(registry, capsys, *command, code=ExitCode.NOT_STARTED)


def test_a_registry_that_cannot_be_written_names_the_folder_and_the_setting(tmp_path: Path, capsys: Capture) -> None:
    registry = Registry(tmp_path / "registry")
    version = add(registry, tmp_path)
    lock = registry.root / "models" / "flights" / "pointers.lock"
    lock.mkdir()
    text = tailcut(registry, capsys, "promote", "onnx", "--version", version.id, code=ExitCode.NOT_STARTED)
    assert f"cannot write the registry's {lock}: Is a directory" in text
    assert "set registry.path to a writable folder" in text
