"""Commands about a model whose features another model computes, as a user runs them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from tests.chain_kit import add_chain
from tests.warm import warm

HOLDOUT = """
import numpy as np
from tailcut.build import Holdout

def holdout():
    return Holdout(inputs={{"x": np.random.default_rng(0).random((120, {width}), np.float32)}})

def traffic(seed):
    for number in range(1000):
        yield {{"entities": [f"abc{{number % 20}}"]}}
"""
MORE = """
[holdout]
source = "{name}_data:holdout"
[build]
recipes = ["onnx"]
rounds = 0
[ladder]
traffic = "{name}_data:traffic"
[[ladder.rungs]]
name = "plain"
variant = "onnx"
set = ["features.cache=off", "serve.variant=onnx"]
"""

PILOT = """
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

async def predict(request):
    texts = (await request.json())["entities"]
    return JSONResponse({"predictions": [{"y": [len(text), 20.0, 10.0, 1000.0]} for text in texts]})

app = Starlette(routes=[Route("/predict", predict, methods=["POST"])])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A parent and the child that computes its features; the child is built."""
    found = add_chain(tmp_path_factory.mktemp("models"))
    for name, width in (("child", 3), ("parent", 4)):
        (found / name / f"{name}_data.py").write_text(HOLDOUT.format(width=width))
        path = found / name / "tailcut.toml"
        path.write_text(path.read_text().replace('[serve]\nvariant = "source"\n', "") + MORE.format(name=name))
    done = tailcut(found, "build", "-m", "child")
    assert done.returncode == 0, done.stderr
    return found


def tailcut(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TAILCUT_")}
    return warm().run(arguments, cwd=folder, env=environment, timeout_s=180)


def child_version(folder: Path) -> str:
    shown = json.loads(tailcut(folder, "registry", "show", "-m", ".", "--model", "child", "--json").stdout)
    return f"{shown['id']} (onnx)"


def test_a_build_records_the_versions_of_the_models_that_compute_features(folder: Path) -> None:
    alone = tailcut(folder, "build", "-m", "parent")
    assert alone.returncode == 0, alone.stderr
    assert "model 'child' of features.groups \"text\" was not given: its version is not recorded" in alone.stderr
    assert "no version of model 'child' was recorded" in tailcut(folder, "registry", "show", "-m", "parent").stdout
    both = tailcut(folder, "build", "-m", "parent", "-m", "child")
    assert both.returncode == 0, both.stderr
    assert "was not given" not in both.stderr
    said = f"features.groups 'text': judged with answers of model 'child' version {child_version(folder)}"
    assert said in both.stdout
    assert said in tailcut(folder, "registry", "show", "-m", ".").stdout


def test_a_deployment_is_profiled_beside_the_model_that_computes_its_features(folder: Path) -> None:
    arguments = ("--duration", "1s", "--warmup", "0.5s", "--layers", "off")
    done = tailcut(folder, "profile", "-m", ".", "--set", "parent:serve.variant=source", *arguments)
    assert done.returncode in (0, 1), done.stderr
    assert "Profile of deployment parent" in done.stdout
    refused = tailcut(folder, "profile", "parent", *arguments)
    assert refused.returncode == 2
    assert "its columns come from model 'child', which was not given" in refused.stderr


def test_the_pilot_is_compared_with_both_and_causes_are_looked_for(folder: Path) -> None:
    (folder / "pilot_app.py").write_text(PILOT)
    (folder / "bodies.jsonl").write_text('{"entities": ["abc"]}\n{"entities": ["ab", "abcd"]}\n')
    done = tailcut(
        folder, "parity", "-m", ".", "--pilot", "pilot_app:app", "--payloads", "bodies.jsonl",
        "--set", "parent:serve.variant=source", "--json", "parity.json",
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    (found,) = json.loads((folder / "parity.json").read_text())["variants"]
    assert (found["both_answered"], found["differing_requests"]) == (2, 2)
    assert not [note for note in found["notes"] if "causes were not looked for" in note]


def test_the_ladder_serves_both_and_a_rung_sets_its_own_model_only(folder: Path) -> None:
    built = tailcut(folder, "build", "-m", ".")
    assert built.returncode == 0, built.stderr
    limits = ("--rounds", "1", "--duration", "1s", "--comfortable", "20", "--rate", "20", "--no-capacity")
    done = tailcut(folder, "ladder", "-m", ".", "--short", *limits, "--parity", "0", "--out", "ladder")
    assert done.returncode == 0, done.stderr
    (log,) = (folder / "ladder" / "logs").glob("*.log")
    command = log.read_text().splitlines()[0]
    assert f"--manifest {folder / 'child' / 'tailcut.toml'} --manifest {folder / 'parent' / 'tailcut.toml'}" in command
    assert "--set parent:serve.variant=onnx" in command
