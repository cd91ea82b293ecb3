"""``tailcut check``: what it shows, and that a failure names its step and exits as console.py says."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper
from tests.models.graphs import linear

from tailcut.cli.app import run
from tailcut.cli.console import ExitCode

MODEL = """
name = "risk"
[model]
source = "model.onnx"
{hooks}
[[model.inputs]]
name = "x"
shape = [-1, 4]
columns = ["a", "b", "c", "d"]
[[model.outputs]]
name = "y"
[serve]
variant = "source"
"""
FEATURES = """
[features]
entity = ["airport"]
database = "sqlite:///features.db"
[[features.groups]]
name = "weather"
key = ["airport"]
columns = ["a", "b", "c", "d"]
ttl = "{ttl}"
sql = "SELECT airport, a, b, c, d FROM keys JOIN weather USING (airport)"
[cache.entity]
enabled = true
"""
PREPROCESS = "preprocess: the columns of x"
Check = Callable[..., tuple[int, str, str]]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model, a database with one airport, and a manifest with one feature group."""
    linear(tmp_path / "model.onnx")
    with sqlite3.connect(tmp_path / "features.db") as database:
        database.execute("CREATE TABLE weather (airport TEXT, a REAL, b REAL, c REAL, d REAL)")
        database.execute("INSERT INTO weather VALUES ('JFK', 1, 2, 3, 4.5)")
    database.close()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    write(tmp_path)
    return tmp_path


@pytest.fixture
def check(folder: Path, capsys: pytest.CaptureFixture[str]) -> Check:
    """Run the command; (exit code, stdout, stderr)."""

    def checked(*arguments: str) -> tuple[int, str, str]:
        code = run(["check", *arguments])
        out, err = capsys.readouterr()
        return code, out, err

    return checked


def write(folder: Path, *, hooks: str = "", features: bool = True, ttl: str = "5m", more: str = "") -> None:
    text = MODEL.format(hooks=hooks) + (FEATURES.format(ttl=ttl) if features else "") + more
    (folder / "tailcut.toml").write_text(text)


def hook(folder: Path, code: str) -> str:
    """Write a module of the user's; its name is the folder's, because Python remembers modules by name."""
    name = f"hooks_{folder.name.replace('-', '_')}"
    (folder / f"{name}.py").write_text(code)
    return name


def test_an_entity_goes_through_every_stage_and_each_says_what_it_saw(check: Check) -> None:
    code, out, err = check("--entity", '"JFK"', "--json")
    assert (code, err) == (ExitCode.OK, "")
    seen: dict[str, Any] = json.loads(out)
    assert seen["ok"] is True
    assert seen["variant"]["runtime"] == "onnxruntime"
    assert set(seen["warm_up_ms"]) == {"1", "2", "4", "8", "16", "32"}
    (group,) = seen["groups"]
    assert (group["name"], group["key"], group["ttl_s"]) == ("weather", {"airport": "JFK"}, 300.0)
    assert group["values"] == {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.5}
    assert group["source_ms"] > 0
    assert 0 < seen["fresh_for_s"] <= 300
    assert seen["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [1, 4], "sample": [1.0, 2.0, 3.0, 4.5]}]
    assert seen["outputs"][0]["shape"] == [1]
    assert seen["answer"]["y"] == seen["outputs"][0]["sample"][0]
    steps = [step["name"] for step in seen["steps"]]
    assert steps == ["artifact", "load", "features", "preprocess", "infer", "postprocess", "request"]
    assert seen["request"]["cache"] == "miss"
    assert {"entity_cache", "features", "preprocess", "infer", "postprocess"} <= set(seen["request"]["stages_ms"])
    assert seen["request"]["total_ms"] == pytest.approx(sum(seen["request"]["stages_ms"].values()), abs=0.01)


def test_the_table_is_for_people(check: Check) -> None:
    code, out, _ = check("--entity", '"JFK"')
    assert code == ExitCode.OK
    labels = " ".join(line.split()[0] for line in out.splitlines() if not line.startswith(" "))
    assert labels == "deployment variant executor batches features inputs outputs answer steps once result"
    assert "weather of airport=JFK: TTL 300 s" in out
    assert "a=1, b=2, c=3, d=4.5" in out
    assert "x FP32 [1, 4]: 1, 2, 3, 4.5" in out


def test_without_an_entity_the_model_gets_zeros_and_it_says_so(check: Check) -> None:
    code, out, err = check()
    assert code == ExitCode.OK
    assert "x FP32 [1, 4]: 0, 0, 0, 0" in out
    assert "opened: weather" in out
    tail = [line.split(maxsplit=2)[1:] for line in out.splitlines() if line.startswith("not tried")]
    assert tail == [["tried", "features: weather"], ["tried", "entity cache: cache.entity"], ["tried", PREPROCESS]]
    assert "ok, except for the stages not tried" in out.splitlines()[-1]
    assert "not tried: features, entity cache, preprocess; --entity" in err


def test_a_row_goes_past_the_features_and_it_says_so(check: Check) -> None:
    code, out, err = check("--row", '{"a": 1, "b": 2, "c": 3, "d": 4}', "--json")
    assert code == ExitCode.OK
    assert [one["stage"] for one in json.loads(out)["untried"]] == ["features", "entity cache"]
    assert "--entity" in err


def test_an_entity_leaves_nothing_untried(check: Check) -> None:
    _, out, _ = check("--entity", '"JFK"')
    assert "not tried" not in out
    assert out.splitlines()[-1].split() == ["result", "ok"]


def test_a_row_goes_through_preprocess(check: Check, folder: Path) -> None:
    write(folder, features=False)
    code, out, err = check("--row", '{"a": 1, "b": 2, "c": 3, "d": 4}', "--json")
    assert (code, err) == (ExitCode.OK, "")
    assert json.loads(out)["inputs"][0]["sample"] == [1.0, 2.0, 3.0, 4.0]


def test_a_ttl_function_is_asked_for_its_ttl(check: Check, folder: Path) -> None:
    name = hook(folder, "def ttl(key, row):\n    return 10 * row['b']\n")
    write(folder, ttl=f"{name}:ttl")
    code, out, _ = check("--entity", '"JFK"')
    assert code == ExitCode.OK
    assert f"TTL 20 s by {name}:ttl" in out


def test_an_unknown_entity_fails_in_features_and_shows_what_came_before(check: Check) -> None:
    code, out, err = check("--entity", '"LGA"')
    assert code == ExitCode.FAILED
    assert "error: features: " in err
    assert "LGA" in err
    assert "variant" in out
    assert "failed at features" in out


def test_a_failure_is_in_the_json_too(check: Check) -> None:
    code, out, _ = check("--entity", '"LGA"', "--json")
    assert code == ExitCode.FAILED
    seen = json.loads(out)
    assert seen["ok"] is False
    assert (seen["failure"]["step"], seen["failure"]["code"]) == ("features", "unknown_entity")
    assert seen["failure"]["hint"]


def test_a_row_without_a_column_fails_in_preprocess(check: Check) -> None:
    code, _, err = check("--row", '{"a": 1}')
    assert code == ExitCode.FAILED
    assert "error: preprocess: " in err
    assert "'b'" in err


@pytest.mark.parametrize(
    ("key", "code", "step"),
    [
        ("preprocess", "def hook(rows):\n    return {}\n", "preprocess"),
        ("preprocess", "def hook(rows):\n    raise KeyError('temperature')\n", "preprocess"),
        ("postprocess", "def hook(outputs):\n    return []\n", "postprocess"),
    ],
)
def test_a_broken_hook_is_named(check: Check, folder: Path, key: str, code: str, step: str) -> None:
    write(folder, hooks=f'{key} = "{hook(folder, code)}:hook"')
    exit_code, _, err = check("--entity", '"JFK"')
    assert exit_code == ExitCode.FAILED
    assert f"error: {step}: " in err


def test_an_artifact_that_is_not_there_is_refused_before_anything_is_loaded(check: Check) -> None:
    code, out, err = check("--variant", "int8-dynamic")
    assert code == ExitCode.NOT_STARTED
    assert "error: artifact: " in err
    assert "failed at artifact" in out


def test_a_truncated_model_does_not_load(check: Check, folder: Path) -> None:
    model = folder / "model.onnx"
    model.write_bytes(model.read_bytes()[:50])
    code, out, err = check()
    assert code == ExitCode.NOT_STARTED
    assert "error: load: " in err
    assert "failed at load" in out


def test_a_database_without_the_table_does_not_load(check: Check, folder: Path) -> None:
    with sqlite3.connect(folder / "features.db") as database:
        database.execute("DROP TABLE weather")
    database.close()
    code, _, err = check("--entity", '"JFK"')
    assert code == ExitCode.NOT_STARTED
    assert "error: load: " in err
    assert "weather" in err


def test_a_wrong_manifest_is_usage(check: Check, folder: Path) -> None:
    write(folder, more='[slo]\np95 = "25 parsec"\n')
    code, out, err = check()
    assert (code, out) == (ExitCode.USAGE, "")
    assert "slo.p95" in err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--entity", "JFK"), "not JSON"),
        (("--row", "[1]"), "JSON object"),
        (("--entity", '"JFK"', "--row", "{}"), "not both"),
    ],
)
def test_wrong_flags_are_usage(check: Check, arguments: tuple[str, ...], said: str) -> None:
    code, out, err = check(*arguments)
    assert (code, out) == (ExitCode.USAGE, "")
    assert said in err


def test_an_entity_needs_feature_groups(check: Check, folder: Path) -> None:
    write(folder, features=False)
    code, _, err = check("--entity", '"JFK"')
    assert code == ExitCode.USAGE
    assert "feature groups" in err


def test_a_model_that_is_not_there_is_named_with_where_it_was_looked_for(folder: Path, check: Check) -> None:
    code, _, err = check("--set", "model.source=none.onnx")
    assert code not in {ExitCode.OK, ExitCode.BUG}
    assert f"model.source = 'none.onnx' does not exist: {folder / 'none.onnx'}" in err


def test_an_output_of_another_shape_is_told_what_to_write(folder: Path, check: Check) -> None:
    text = (folder / "tailcut.toml").read_text().replace('name = "y"', 'name = "y"\nshape = [-1, 7]')
    (folder / "tailcut.toml").write_text(text)
    code, _, err = check()
    assert code not in {ExitCode.OK, ExitCode.BUG}
    assert "the manifest says FP32 [-1, 7]" in err
    assert 'set in the manifest: datatype = "FP32", shape = [-1' in err


def test_a_model_of_text_is_shown_its_row(folder: Path, check: Check) -> None:
    """One text per row: no array is left of a row."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["city"], ["y"])],
        "echo",
        [helper.make_tensor_value_info("city", TensorProto.STRING, ["n"])],
        [helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), "model.onnx")
    (folder / "tailcut.toml").write_text(
        'name = "echo"\n[model]\nsource = "model.onnx"\n[serve]\nvariant = "source"\n'
        '[[model.inputs]]\nname = "city"\ndatatype = "BYTES"\n[[model.outputs]]\nname = "y"\ndatatype = "BYTES"\n'
    )
    code, out, err = check("--row", '{"city": "Oslo"}', "--json")
    assert code == ExitCode.OK, err
    assert json.loads(out)["inputs"] == [{"name": "city", "datatype": "BYTES", "shape": [1], "sample": ["Oslo"]}]
    code, out, err = check()
    assert code == ExitCode.OK, err


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("[observe.alerts]\nwebhook = 'https://hooks.example.com/'\nsecret_env = 'NOT_SET_HERE'\n", "NOT_SET_HERE"),
        ("[observe.alerts]\nwebhook = 'https://hooks.example.com/'\nsecret_file = 'none'\n", "cannot be read"),
        ("[observe.traces]\nendpoint = 'localhost:4318'\n", "observe.traces.endpoint is 'localhost:4318'"),
        ("[observe.traces]\nendpoint = 'http://h'\nheaders = {a = '${NOT_SET_HERE}'}\n", "NOT_SET_HERE"),
        ("[server]\ntokens = 'none'\n", "none"),
    ],
)
def test_what_a_server_could_not_start_with_is_found(check: Check, folder: Path, more: str, said: str) -> None:
    write(folder, more=more)
    code, out, err = check("--json")
    assert code == ExitCode.NOT_STARTED
    seen = json.loads(out)
    assert (seen["ok"], seen["failure"]["step"]) == (False, "server")
    assert seen["outputs"], "the model was tried all the same"
    assert said in err


@pytest.mark.parametrize(
    ("more", "named", "why"),
    [
        ("[observe.history]\npath = 'model.onnx/history.sqlite'\n", "observe.history.path", "Not a directory"),
        ("[observe.history]\npath = 'folder.sqlite'\n", "observe.history.path", "Is a directory"),
        ("[observe.history]\npath = 'locked.sqlite'\n", "observe.history.path", "Permission denied"),
        ("[request_log]\npath = 'model.onnx/log'\n", "request_log.path", "Not a directory"),
        ("[observe.history]\npath = 'made/later/history.sqlite'\n[request_log]\npath = 'later'\n", "", ""),
    ],
)
def test_what_a_server_could_not_write_is_a_warning(
    check: Check, folder: Path, monkeypatch: pytest.MonkeyPatch, more: str, named: str, why: str
) -> None:
    (folder / "folder.sqlite").mkdir()
    (folder / "locked.sqlite").touch()
    access = os.access  # root may write what is locked
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path).stem != "locked" and access(path, mode))
    write(folder, more=more)
    before = sorted(folder.iterdir())
    code, out, err = check("--json")
    assert code == ExitCode.OK
    warnings = json.loads(out)["warnings"]
    assert len(warnings) == bool(named)
    for warning in warnings:
        assert named in warning
        assert f": {why})" in warning
        assert f"warning: {warning}" in err
    assert sorted(folder.iterdir()) == before
