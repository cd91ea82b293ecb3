"""``tailcut check`` of several models."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.chain_kit import add_chain

from tailcut.cli.app import run

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of a parent and the child that computes its features."""
    return add_chain(tmp_path)


def test_all_models_are_checked_each_after_those_that_it_needs(folder: Path, capsys: Capture) -> None:
    assert run(["check", "-m", str(folder / "parent"), "-m", str(folder / "child"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["ok"]
    assert [report["deployment"] for report in found["models"]] == ["child", "parent"]


def test_an_entity_is_for_the_model_that_the_others_compute_features_for(folder: Path, capsys: Capture) -> None:
    assert run(["check", "-m", str(folder), "--entity", '"abc"', "--json"]) == 0
    parent = json.loads(capsys.readouterr().out)["models"][1]
    assert parent["answer"] == {"y": [60.0, 20.0, 10.0, 1000.0]}
    assert [group["name"] for group in parent["groups"]] == ["text", "priors"]


def test_a_model_that_was_not_given_is_named_with_the_way_out(folder: Path, capsys: Capture) -> None:
    assert run(["check", "-m", str(folder / "parent")]) == 2
    said = capsys.readouterr().err
    assert "model 'parent': features.groups \"text\": its columns come from model 'child'" in said
    assert f"hint: add -m {folder / 'child' / 'tailcut.toml'}" in said


def test_a_circle_is_refused(folder: Path, capsys: Capture) -> None:
    path = folder / "child" / "tailcut.toml"
    group = '[[features.groups]]\nname = "p"\nmodel = "parent"\nkey = ["text"]\ncolumns = ["y"]\nttl = "1h"\n'
    path.write_text(f'{path.read_text()}[features]\nentity = ["text"]\n{group}')
    assert run(["check", "-m", str(folder)]) == 2
    assert "in a circle: child -> parent -> child" in capsys.readouterr().err


def test_a_model_that_fails_is_named_and_the_others_are_checked(folder: Path, capsys: Capture) -> None:
    (folder / "child" / "model.onnx").unlink()
    assert run(["check", "-m", str(folder), "--json"]) == 3
    out, said = capsys.readouterr()
    found = json.loads(out)
    assert [report["ok"] for report in found["models"]] == [False, True]
    assert not found["ok"]
    assert "error: child: artifact: model.source = 'model.onnx' does not exist" in said


def test_only_the_model_that_is_named_is_checked_with_what_it_needs(folder: Path, capsys: Capture) -> None:
    assert run(["check", "-m", str(folder), "--model", "child", "--row", '{"text": "abc"}', "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["deployment"], found["answer"]) == ("child", {"embedding": [6.0, 2.0, 1.0]})
