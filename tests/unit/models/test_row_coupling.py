"""Rows that influence each other: found in the file, recorded by builds, and kept apart when serving."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import pytest
from onnx import TensorProto, helper
from tests.app_kit import Answer, running, until_metric
from tests.models import coupled

from tailcut.common.tensors import Arrays
from tailcut.manifest import Manifest, load
from tailcut.models import variant_loader
from tailcut.models.deployment_version import version_of
from tailcut.models.runtimes import Runtime, open_runtime, row_coupling
from tailcut.models.runtimes.row_coupling import coupling_operators
from tailcut.observe.recorder import ModelSinks
from tailcut.pipeline.hook_loading import import_code
from tailcut.registry import NewVariant, Registry, VariantEvidence
from tailcut.serving import deployment_loader
from tailcut.serving.host_state import HostState

MANIFEST = """
name = "rows"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 8] }]
outputs = [{ name = "y", shape = [-1] }, { name = "z", shape = [-1, 2] }]
[serve]
variant = "source"
"""


def manifest(folder: Path, *settings: str) -> Manifest:
    (folder / "tailcut.toml").write_text(MANIFEST)
    return load(folder, environment={}, overrides=list(settings))


# -- Files -----------------------------------------------------------------------------------------------------------


def lstm(path: Path) -> Path:
    """A file that holds onnxruntime's own operator."""
    node = helper.make_node("DynamicQuantizeLSTM", ["x"], ["y"], domain="com.microsoft")
    return save(path, [node])


def inside_a_function(path: Path) -> Path:
    """A file whose graph calls a function of the model, which holds the operator."""
    body = [helper.make_node("DynamicQuantizeLinear", ["a"], ["b", "c", "d"])]
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("mine", "Squash", ["a"], ["b"], body, opsets)
    node = helper.make_node("Squash", ["x"], ["y"], domain="mine")
    return save(path, [node], functions=[function])


def in_a_branch(path: Path) -> Path:
    """A file with the operator in a subgraph."""
    y = helper.make_tensor_value_info("b", TensorProto.UINT8, ["batch"])
    branch = helper.make_graph([helper.make_node("DynamicQuantizeLinear", ["x"], ["b", "c", "d"])], "then", [], [y])
    return save(path, [helper.make_node("If", ["wanted"], ["y"], then_branch=branch, else_branch=branch)])


def save(path: Path, nodes: list[Any], **more: Any) -> Path:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch"]) for name in "xy")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [x], [y]), opset_imports=opsets, **more), path)
    return path


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (coupled.quantised, "DynamicQuantizeLinear"),
        (lstm, "DynamicQuantizeLSTM"),
        (inside_a_function, "DynamicQuantizeLinear"),
        (in_a_branch, "DynamicQuantizeLinear"),
    ],
)
def test_operators_that_quantise_while_the_model_runs_are_found_in_the_file(
    tmp_path: Path, make: Callable[[Path], Path], found: str
) -> None:
    assert coupling_operators([make(tmp_path / "model.onnx")]) == (found,)


def test_a_name_or_a_text_is_no_operator(tmp_path: Path) -> None:
    path = coupled.mlp(tmp_path / "model.onnx", name="DynamicQuantizeLinear")
    model = onnx.load(path)
    model.doc_string = model.graph.doc_string = "made without DynamicQuantizeLinear"
    model.graph.node[0].output[0] = model.graph.node[1].input[0] = "DynamicQuantizeLinear"
    onnx.save(model, path)
    assert coupling_operators([path]) == ()


@pytest.mark.parametrize("at", range(-25, 2))
def test_an_operator_across_two_parts_of_the_file_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    monkeypatch.setattr(row_coupling, "_CHUNK_BYTES", 64)
    mark = b"\x22\x15DynamicQuantizeLinear"
    (tmp_path / "file").write_bytes(bytes(64 + at) + mark + bytes(200))
    assert coupling_operators([tmp_path / "file"]) == ("DynamicQuantizeLinear",)


def test_every_operator_of_onnxruntime_that_quantises_dynamically_is_known() -> None:
    """A new one of a later onnxruntime shows here."""
    state = pytest.importorskip("onnxruntime.capi.onnxruntime_pybind11_state")
    names = {each.name for each in state.get_all_operator_schema() if "Dynamic" in each.name and "Quant" in each.name}
    assert names == set(row_coupling.OPERATORS)


# -- Records ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("make", "alone"), [(coupled.mlp, False), (coupled.quantised, True)])
def test_of_a_model_that_no_build_has_looked_at_the_file_decides(
    tmp_path: Path, make: Callable[[Path], Path], alone: bool
) -> None:
    make(tmp_path / "model.onnx")
    assert deployment_loader.find_variant(manifest(tmp_path)).evidence.rows_alone is alone


def test_finding_it_takes_no_onnx_package() -> None:
    code = (
        "import sys\n"
        "from tailcut.models import variant_loader\n"
        "from tailcut.serving import deployment_loader\n"
        "assert not {'onnx', 'torch'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# -- Serving ---------------------------------------------------------------------------------------------------------


class Spied:
    """A runtime that counts the rows of each run."""

    def __init__(self, inner: Runtime, rows: list[int]) -> None:
        self._inner = inner
        self._rows = rows

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        self._rows.append(len(next(iter(inputs.values()))))
        return self._inner.run(inputs, outputs)

    def close(self) -> None:
        self._inner.close()


@pytest.fixture
def rows_run(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Rows of every run of a model that was opened, warm-up included."""
    rows: list[int] = []
    monkeypatch.setattr(
        variant_loader, "open_runtime", lambda *given, **more: Spied(open_runtime(*given, **more), rows)
    )
    return rows


def body(values: npt.NDArray[np.float32]) -> dict[str, Any]:
    given = {"name": "x", "shape": list(values.shape), "datatype": "FP32", "data": values.ravel().tolist()}
    return {"inputs": [given]}


@pytest.mark.parametrize("mode", ["auto", "fixed", "off"])
@pytest.mark.parametrize("executor", ["inline", "thread"])
@pytest.mark.parametrize(("make", "alone"), [(coupled.quantised, True), (coupled.mlp, False)])
def test_rows_of_one_request_and_of_several_run_alone(
    tmp_path: Path, rows_run: list[int], make: Callable[[Path], Path], alone: bool, executor: str, mode: str
) -> None:
    make(tmp_path / "model.onnx")
    fixed = ("batching.max_queue_delay=50ms", "batching.preferred_rows=[8]") if mode == "fixed" else ()
    settings = (f"pool.executor={executor}", "pool.executors=1", f"batching.mode={mode}", "batching.max_rows=8")
    found = manifest(tmp_path, *settings, *fixed)
    values = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)

    async def main() -> list[Answer]:
        async with running(found) as client:
            warmed = [(1 if alone else rows) for rows in (1, 2, 4, 8)]
            assert set(rows_run) == set(warmed)
            rows_run.clear()
            return await asyncio.gather(*[client.post("/v2/models/rows/infer", body(values)) for _ in range(3)])

    answers = asyncio.run(main())
    runtime = open_runtime(deployment_loader.find_variant(found), threads=1)
    expected = np.concatenate([runtime.run({"x": row[None]}, ["y"])["y"] for row in values])
    for answer in answers:
        assert answer.status == 200
        np.testing.assert_allclose(answer.json["outputs"][0]["data"], expected, rtol=1e-5)
    assert sum(rows_run) == 15
    assert (max(rows_run) == 1) is alone


def test_a_request_of_many_rows_keeps_their_order_and_the_limits_of_the_queue(tmp_path: Path) -> None:
    coupled.quantised(tmp_path / "model.onnx")
    found = manifest(tmp_path, "batching.max_queue_rows=100", "pool.executors=2", "pool.executor=thread")
    values = np.zeros((101, 8), np.float32)
    values[:, 0] = np.linspace(-3, 3, 101)

    async def main() -> tuple[Answer, Answer]:
        async with running(found) as client:
            post = partial(client.post, "/v2/models/rows/infer")
            return await post(body(values[:100])), await post(body(values))

    answer, refused = asyncio.run(main())
    runtime = open_runtime(deployment_loader.find_variant(found), threads=1)
    expected = np.concatenate([runtime.run({"x": row[None]}, ["z"])["z"] for row in values[:100]])
    np.testing.assert_allclose(answer.json["outputs"][1]["data"], expected.ravel(), rtol=1e-5)
    assert len(np.unique(expected.round(4), axis=0)) > 50, "rows can be told apart"
    assert refused.status == 413
    assert "101 rows, the limit is 100" in refused.json["error"]


def test_the_start_and_the_configuration_say_so_and_clients_may_send_several_rows(tmp_path: Path) -> None:
    coupled.quantised(tmp_path / "model.onnx")
    found = manifest(tmp_path)

    async def main() -> dict[str, Any]:
        async with running(found) as client:
            answer = (await client.get("/v2/models/rows/config")).json
            return dict(answer)

    config = asyncio.run(main())
    assert config["parameters"]["rows_alone"] == {"string_value": "true"}
    assert config["max_batch_size"] == found.deployment.batching.max_rows > 1
    assert "dynamic_batching" not in config


def test_what_was_kept_while_rows_ran_together_is_no_answer_any_more(tmp_path: Path) -> None:
    coupled.mlp(tmp_path / "model.onnx")
    found = manifest(tmp_path)
    plain = deployment_loader.find_variant(found)
    code = import_code(found).files.snapshot(live=False).digest
    before, after = (replace(plain, evidence=VariantEvidence(rows_alone=alone)) for alone in (False, True))
    assert version_of(found.deployment, before, code) == version_of(found.deployment, plain, code)
    assert version_of(found.deployment, after, code) != version_of(found.deployment, plain, code)


def test_an_opened_variant_has_the_version_of_one_whose_rows_run_alone(tmp_path: Path) -> None:
    coupled.quantised(tmp_path / "model.onnx")
    found = manifest(tmp_path)

    async def main() -> bytes:
        opened = await deployment_loader.open_deployment(found, ModelSinks("m"), HostState())
        await opened.stop(5)
        assert opened.rows_alone
        assert opened.served.dispatcher.scheduler.window is None, "no row waits for company that it will not have"
        return opened.served.deployment_version

    alone = deployment_loader.find_variant(found)
    assert asyncio.run(main()) == version_of(
        found.deployment, alone, import_code(found).files.snapshot(live=False).digest
    )


# -- Rows that a hook pads together ----------------------------------------------------------------------------------

PADDED = """
name = "padded"
python_path = ["."]
[model]
source = "model.onnx"
inputs = [{ name = "ids", datatype = "INT64", shape = [-1, -1] }]
outputs = [{ name = "y", shape = [-1] }]
preprocess = "PACKAGE:pad"
[registry]
path = "registry"
[cache.tensor]
enabled = true
auto = false
ttl = "60s"
"""

HOOK = """
import numpy as np

def pad(rows):
    longest = max(len(row["ids"]) for row in rows)
    return {"ids": np.array([row["ids"] + [0] * (longest - len(row["ids"])) for row in rows])}
"""


@pytest.mark.parametrize("alone", [True, False])
def test_a_longer_neighbour_adds_no_padding_where_rows_run_alone(tmp_path: Path, alone: bool) -> None:
    (tmp_path / f"padding_{alone}.py").write_text(HOOK)
    (tmp_path / "tailcut.toml").write_text(PADDED.replace("PACKAGE", f"padding_{alone}"))
    found = load(tmp_path, environment={})
    path = coupled.unmasked(tmp_path / "model.onnx")
    model = found.deployment.model
    new = NewVariant("onnx", "onnxruntime", path, evidence=VariantEvidence(rows_alone=alone))
    registry = Registry.of(found)
    version = registry.add("padded", source="onnx", inputs=model.inputs, outputs=model.outputs, variants=[new])
    registry.promote("padded", version.id, "onnx")
    short, long = {"ids": [3, 4]}, {"ids": [5, 6, 7, 8, 9]}

    async def main() -> list[Answer]:
        async with running(found) as client:
            post = partial(client.post, "/predict/padded")
            rows = [[short], [short, long], [long, short, short], [{"ids": [1, 2]}, short], [short, {"text": 1}]]
            return [await post({"rows": each}) for each in rows]

    lone, pair, three, new, refused = asyncio.run(main())
    assert (lone.status, pair.status, three.status) == (200, 200, 200), lone.body
    values = [[each["y"] for each in answer.json["predictions"]] for answer in (lone, pair, three)]
    assert (values[0][0] == values[1][0] == values[2][1] == values[2][2]) is alone
    assert values[1][1] == values[2][0]
    caches = [answer.headers["x-tailcut-cache"] for answer in (lone, pair, three, new)]
    assert caches == ["miss", "miss", "hit", "miss"]
    assert refused.status == 400
    assert ("row 1 of 2" if alone else "row 1 has no field") in refused.json["error"]


# -- Other ways to the model -----------------------------------------------------------------------------------------


def add(found: Manifest, **alone: bool) -> None:
    """Put variants of one file into the registry; the first is promoted."""
    model = found.deployment.model
    path = coupled.less_mean(found.directory / "model.onnx")
    news = []
    for number, (name, flag) in enumerate(alone.items()):
        file = found.directory / f"{name}.onnx"
        file.write_bytes(path.read_bytes())
        evidence, settings = VariantEvidence(rows_alone=flag), {"spin_us": number}  # told apart by their settings
        news.append(NewVariant(name, "onnxruntime", file, evidence=evidence, settings=settings))
    registry = Registry.of(found)
    first = news[0].name
    version = registry.add("rows", source=first, inputs=model.inputs, outputs=model.outputs, variants=news)
    registry.promote("rows", version.id, first)


def test_a_fallback_runs_rows_alone_though_the_variant_that_has_no_room_does_not(
    tmp_path: Path, rows_run: list[int]
) -> None:
    found = manifest(
        tmp_path, "serve.variant=promoted", 'serve.fallback=["spare"]', "registry.path=registry", "pool.executors=1"
    )
    add(found, together=False, spare=True)

    async def main() -> Answer:
        async with running(found) as client:
            await until_metric(client, "tailcut_fallback_ready", 1)
            opened = client.app.engine.opened
            assert (opened.rows_alone, opened.fallback.rows_alone) == (False, True)
            assert opened.served.deployment_version != opened.fallback.served.deployment_version
            for executor in list(opened.served.dispatcher.running.executors):
                opened.served.dispatcher.remove(executor)
            rows_run.clear()
            return await client.post("/v2/models/rows/infer", body(np.eye(8, dtype=np.float32)[:5]))

    answer = asyncio.run(main())
    assert answer.headers["x-tailcut-variant"].startswith("spare")
    assert rows_run == [1] * 5


ENTITIES = """
name = "rows"
python_path = ["."]
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 8], columns = ["a", "b", "c", "d", "e", "f", "g", "h"] }]
outputs = [{ name = "y", shape = [-1] }]
[serve]
variant = "source"
[features]
entity = ["id"]
refresh_ahead = false
[[features.groups]]
name = "values"
key = ["id"]
columns = ["a", "b", "c", "d", "e", "f", "g", "h"]
ttl = "1h"
function = "entity_values:values"
[cache.entity]
enabled = true
auto = false
"""


def test_the_entity_cache_keeps_what_an_entity_has_alone(tmp_path: Path) -> None:
    coupled.quantised(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(ENTITIES)
    code = (
        "def values(keys, context):\n    return [dict.fromkeys('abcdefgh', 9e6 if key[0] else 0.5) for key in keys]\n"
    )
    (tmp_path / "entity_values.py").write_text(code)
    found = load(tmp_path, environment={})

    async def main() -> list[Answer]:
        async with running(found) as client:
            post = partial(client.post, "/predict/rows")
            return [await post({"entities": [{"id": each} for each in ids]}) for ids in ([1, 0], [0])]

    both, one = asyncio.run(main())
    runtime = open_runtime(deployment_loader.find_variant(found), threads=1)
    wanted = runtime.run({"x": np.full((1, 8), 0.5, np.float32)}, ["y"])["y"][0]
    assert both.json["predictions"][1]["y"] == one.json["predictions"][0]["y"] == pytest.approx(wanted, rel=1e-6)
    assert one.headers["x-tailcut-cache"] == "hit"
