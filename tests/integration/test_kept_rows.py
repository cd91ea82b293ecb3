"""Models that refuse invented rows, from the build to answers: with rows of the holdout kept, and without."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.serving import Served
from tests.models.picky import PICKY, Picky
from tests.picky_kit import body
from tests.scale import sized

from tailcut.cli.app import run
from tailcut.registry import Registry
from tailcut.registry.rows import kept_rows

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("warm_builds")]

ROOT = Path(__file__).resolve().parents[2]
READY = re.compile(r"is ready on .*, ms per batch of rows \{1: ")
ROUNDS = sized(0, 6)
"""Of load in builds that are not about it; `make test-all` has it in every build."""

MANIFEST = """
name = "picky"
python_path = [{root!r}]
[model]
source = {source!r}
inputs = {inputs}
outputs = [{{ name = "y", shape = [-1] }}]
[holdout]
source = {holdout!r}
keep = {keep}
[quality]
budget = {{ mae = 0.1 }}
[build]
recipes = [{recipe!r}]
rounds = {rounds}
round = "200ms"
[slo]
p95 = "1s"
rate = 50
[batching]
max_rows = 4
"""


def write(
    folder: Path, *, source: str, inputs: str, holdout: str, recipe: str, keep: int, rounds: int = ROUNDS
) -> None:
    root = str(ROOT)
    (folder / "tailcut.toml").write_text(
        MANIFEST.format(
            root=root, source=source, inputs=inputs, holdout=holdout, recipe=recipe, keep=keep, rounds=rounds
        )
    )


def tailcut(command: str, folder: Path, *arguments: str) -> None:
    """Run a command in this process."""
    assert run([command, "-m", str(folder), *arguments]) == 0


def ask(server: Served, request: dict[str, Any]) -> list[float]:
    status, found = server.post("/v2/models/picky/infer", request)
    assert status == 200, found
    data: list[float] = found["outputs"][0]["data"]
    return data


def written(folder: Path, name: str, keep: int, rounds: int = ROUNDS) -> Picky:
    """Write a deployment of one of the ONNX files."""
    model = PICKY[name]
    model.save(folder / "model.onnx")
    holdout = f"tests.models.picky:{model.rows.__name__.removeprefix('_')}_holdout"
    write(folder, source="model.onnx", inputs=model.inputs, holdout=holdout, recipe="onnx", keep=keep, rounds=rounds)
    return model


@pytest.mark.parametrize("name", PICKY)
def test_an_onnx_file_is_built_checked_and_served(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = written(tmp_path, name, keep=8)
    tailcut("build", tmp_path)
    registry = Registry(tmp_path / ".tailcut" / "registry")
    rows = kept_rows(registry, registry.version("picky"))
    assert rows is not None
    assert rows.count == 8
    capsys.readouterr()
    tailcut("check", tmp_path, "--json")
    assert json.loads(capsys.readouterr().out)["origin"] == "kept row"
    tailcut("simulate", tmp_path, "--rate", "5", "--duration", "1s")
    with Served(tmp_path, prepared=True) as server:
        assert READY.search(server.log), server.log
        assert "invented" not in server.log
        for row in range(3):
            request, expected = body(model, row)
            assert ask(server, request) == pytest.approx([expected], rel=1e-5)


@pytest.fixture(scope="module")
def personal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built model of which no rows are kept."""
    folder = tmp_path_factory.mktemp("personal")
    written(folder, "padding only", keep=0, rounds=6)
    tailcut("build", folder)
    return folder


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_nothing_is_kept_where_rows_are_personal_and_the_first_request_warms_up(personal: Path, executor: str) -> None:
    """The build measures such a variant under load, too: its server is ready without a row that it answers."""
    model = PICKY["padding only"]
    registry = Registry(personal / ".tailcut" / "registry")
    version = registry.version("picky")
    assert set(version.files) == {"drift"}, "quantiles of numbers, no rows"
    assert version.variants["onnx"].evidence.load.rounds, "measured under load"
    with Served(personal, settings=[f"pool.executor={executor}"], prepared=True) as server:
        assert "not warmed up: the first request warms it up" in server.log
        assert "refuses an invented row" in server.log
        for row in range(3):
            request, expected = body(model, row)
            assert ask(server, request) == pytest.approx([expected], rel=1e-5)


def test_an_onnx_file_is_served_without_a_build(tmp_path: Path) -> None:
    model = written(tmp_path, "a constant row", keep=8)
    with Served(tmp_path, settings=["serve.variant=source"], prepared=True) as server:
        assert "not warmed up: the first request warms it up" in server.log
        request, expected = body(model)
        assert ask(server, request) == pytest.approx([expected], rel=1e-5)
        refused = {"inputs": [{"name": "x", "shape": [1, 6], "datatype": "FP32", "data": [1] * 6}]}
        assert server.post("/v2/models/picky/infer", refused)[0] == 500, "as the model itself does"
        assert ask(server, request) == pytest.approx([expected], rel=1e-5)


# -- Models in Python --------------------------------------------------------------------------------------------------


TEXTS = '[{ name = "word", datatype = "BYTES", shape = [-1, 2] }]'
WORD = {"name": "word", "shape": [1, 2], "datatype": "BYTES", "data": ["new", "york"]}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built estimator that refuses unknown pairs of words."""
    folder = tmp_path_factory.mktemp("pairs")
    names = {"source": "tests.models.fussy:pairs", "holdout": "tests.models.fussy:pairs_holdout", "recipe": "sklearn"}
    write(folder, inputs=TEXTS, keep=4, **names)
    tailcut("build", folder)
    return folder


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_an_estimator_that_refuses_unknown_pairs_of_words(pairs: Path, tmp_path: Path, executor: str) -> None:
    """Each word is known by itself, so that no limit of one value tells which pairs are."""
    folder = shutil.copytree(pairs, tmp_path / "pairs")
    if ROUNDS:  # under load in executors of this kind
        tailcut("build", folder, "--set", f"pool.executor={executor}")
    with Served(folder, settings=[f"pool.executor={executor}"], prepared=True) as server:
        assert READY.search(server.log), server.log
        assert ask(server, {"inputs": [WORD]}) == [2.0]


def test_an_estimator_that_ends_its_process_on_what_it_never_saw(tmp_path: Path) -> None:
    names = {"source": "tests.models.fussy:fatal", "holdout": "tests.models.fussy:pairs_holdout", "recipe": "sklearn"}
    write(tmp_path, inputs=TEXTS, keep=0, **names)
    processes = ["pool.executor=process", "pool.executors=1"]
    tailcut("build", tmp_path, *(part for each in processes for part in ("--set", each)))
    with Served(tmp_path, settings=processes, prepared=True) as server:
        assert "not warmed up: the first request warms it up" in server.log
        assert ask(server, {"inputs": [WORD]}) == [2.0]


def test_a_torch_module_whose_mean_is_of_the_tokens_that_are_there(tmp_path: Path) -> None:
    """It raises where a row has none, and its rows are padded: each length is warmed up."""
    model = PICKY["padding only"]
    names = {"source": "tests.models.fussy:pooled", "holdout": "tests.models.picky:tokens_holdout", "recipe": "torch"}
    write(tmp_path, inputs=model.inputs, keep=6, **names)
    tailcut("build", tmp_path)
    registry = Registry(tmp_path / ".tailcut" / "registry")
    rows = kept_rows(registry, registry.version("picky"))
    assert rows is not None
    sizes = rows.inputs["mask"].sum(axis=1)
    assert (sizes.min(), sizes.max()) == (1, 40)
    assert np.array_equal(sizes, np.sort(sizes))
    with Served(tmp_path, prepared=True) as server:
        assert READY.search(server.log), server.log
        request, expected = body(model, 3)
        assert ask(server, request) == pytest.approx([expected], rel=1e-5)
