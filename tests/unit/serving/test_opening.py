"""Opening a deployment: what does not work is found at warm-up, and what was opened is closed again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest
from tests.models import graphs
from tests.wait_kit import block_until

from tailcut import text
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Arrays
from tailcut.common.validation import InputSpec
from tailcut.errors import NotInRegistry, StartError
from tailcut.manifest import load
from tailcut.models import variant_loader
from tailcut.models import warm_up as warming
from tailcut.models.example_rows import Examples
from tailcut.observe.recorder import ModelSinks
from tailcut.pipeline import hook_loading
from tailcut.pipeline.pipeline import Stores
from tailcut.registry import Variant, VariantEvidence
from tailcut.serving import deployment_loader
from tailcut.serving.host_state import HostState
from tailcut.system.machine import read_machine
from tailcut.testing.runtimes import StubRuntime

MANIFEST = """
name = "linear"
[model]
source = "model.onnx"
inputs = [{ name = "x", shape = [-1, 4], columns = ["id", "b", "c", "d"] }]
outputs = [{ name = "y", shape = [-1] }]
[serve]
variant = "source"
[batching]
max_rows = 4
"""

BROKEN_FEATURES = """
[features]
entity = ["id"]
database = "sqlite:///nowhere/missing.db"
[[features.groups]]
name = "g"
key = ["id"]
columns = ["b", "c", "d"]
sql = "SELECT id, b, c, d FROM t WHERE id IN (:keys)"
ttl = "10s"
"""


def test_a_model_that_answers_another_number_of_rows_never_becomes_ready() -> None:
    specs = (InputSpec("x", "FP32", (-1, 2)),)
    fixed = StubRuntime(lambda inputs: {"y": np.zeros(1, np.float32)})
    with pytest.raises(StartError, match=r"warm-up failed at 2 rows: output 'y' has shape \[1\] for a batch of 2"):
        warming.warm_up(fixed, Examples(specs), ("y",), 4)


@pytest.mark.parametrize(
    ("warmth", "run_ms", "runs", "took_ms"),
    [
        (warming.THOROUGH, [30, 50, 40, 10, 20], 5, 30),
        (warming.THOROUGH, [800, 700], 2, 750),
        (warming.BRIEF, [30, 50], 2, 30),
        (warming.BRIEF, [50, 12], 2, 12),
        (warming.BRIEF, [9, 8, 7], 3, 7),
        (warming.BRIEF, [4, 2, 3, 1, 5], 5, 1),
    ],
)
def test_a_slow_model_is_warmed_up_briefly_where_others_are_served_meanwhile(
    warmth: warming.Warmth, run_ms: list[int], runs: int, took_ms: int
) -> None:
    now_ns, ran = 0, list[int]()

    def run(inputs: Arrays) -> Arrays:
        nonlocal now_ns
        rows = len(inputs["x"])
        now_ns += run_ms[ran.count(rows)] * 1_000_000
        ran.append(rows)
        return {"y": np.zeros(rows, np.float32)}

    specs = (InputSpec("x", "FP32", (-1, 2)),)
    found = warming.warm_up(StubRuntime(run), Examples(specs), ("y",), 4, warmth, lambda: now_ns)
    assert found == dict.fromkeys((1, 2, 4), took_ms * 1_000_000)
    assert ran == [1, 2, 4] * runs, "in turns"


@pytest.mark.parametrize(
    ("settings", "warmth", "waits"),
    [
        ("threads=1", warming.BRIEF, False),
        ("threads=1", warming.THOROUGH, True),
        ("threads=2", warming.BRIEF, True),
    ],
)
def test_waiting_for_a_core_is_no_part_of_what_a_model_takes_that_loads_beside_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, warmth: warming.Warmth, waits: bool
) -> None:
    """Only where all that a batch computes is computed by the thread that calls."""

    def run(inputs: Arrays) -> Arrays:
        time.sleep(0.003)  # takes time: another model has the core
        return {"y": np.zeros(len(inputs["x"]), np.float32)}

    graphs.linear(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    manifest = load(tmp_path, environment={}, overrides=[f"pool.{settings}"])
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: StubRuntime(run))
    warm = variant_loader.open_variant(manifest, deployment_loader.find_variant(manifest), warmth)
    warm.close()
    assert (min(warm.warm_up_ns.values()) >= 3_000_000) is waits
    assert warm.choice.executor == ("thread" if waits else "inline")


@pytest.mark.parametrize("closes", [True, False], ids=["stores-close", "stores-do-not-close"])
def test_runtimes_are_closed_where_features_do_not_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closes: bool
) -> None:
    async def close(stores: Stores, timeout_s: float) -> None:
        raise OSError("the connection is lost")

    graphs.linear(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST + BROKEN_FEATURES)
    stub = StubRuntime(lambda inputs: {"y": inputs["x"][:, 0]})
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: stub)
    if not closes:
        monkeypatch.setattr(Stores, "close", close)
    with pytest.raises(StartError if closes else OSError):
        asyncio.run(deployment_loader.open_deployment(load(tmp_path / "tailcut.toml"), ModelSinks("m"), HostState()))
    assert stub.batches, "it was warmed up"
    block_until(lambda: stub.closed)  # in a thread


@pytest.mark.parametrize("alone", [False, True])
def test_the_variants_evidence_decides_whether_requests_share_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    graphs.linear(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    manifest = load(tmp_path / "tailcut.toml")
    plain = deployment_loader.find_variant(manifest)
    variant = replace(plain, evidence=VariantEvidence(rows_alone=alone))
    monkeypatch.setattr(deployment_loader, "find_variant", lambda _: variant)

    async def main() -> None:
        opened = await deployment_loader.open_deployment(manifest, ModelSinks("m"), HostState())
        assert opened.merges is not alone
        assert opened.served.dispatcher.scheduler.merge is not alone
        await opened.served.dispatcher.stop(5)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("pool", "settings", "threads", "executors"),
    [
        ("", {}, 1, 1),
        ("", {"threads": 2, "executors": 3}, 2, 3),
        ("threads = 4\nexecutors = 2", {"threads": 2, "executors": 3}, 4, 2),
        ("threads = 4", {"executors": 3}, 4, 3),
        ("", {"threads": 0, "executors": "many"}, 1, 1),
    ],
)
def test_threads_and_executors_are_the_manifests_else_the_variants_else_one(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    pool: str,
    settings: dict[str, object],
    threads: int,
    executors: int,
) -> None:
    graphs.linear(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST + "[pool]\n" + pool)
    manifest = load(tmp_path / "tailcut.toml")
    variant = replace(deployment_loader.find_variant(manifest), settings=settings)
    asked: list[int] = []

    def opened(_: object, *, threads: int, source: object) -> StubRuntime:
        asked.append(threads)
        return StubRuntime(lambda inputs: {"y": inputs["x"][:, 0]})

    monkeypatch.setattr(variant_loader, "open_runtime", opened)
    warm = variant_loader.open_variant(manifest, variant)
    assert asked == [threads] * executors
    assert len(warm.runtimes) == executors
    if executors > 1:
        assert warm.choice.executor == "thread"


def test_an_inline_executor_cannot_be_several(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs.linear(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST + '[pool]\nexecutor = "inline"')
    manifest = load(tmp_path / "tailcut.toml")
    variant = replace(deployment_loader.find_variant(manifest), settings={"executors": 2})
    stubs = [StubRuntime(lambda inputs: {"y": inputs["x"][:, 0]}) for _ in range(2)]
    waiting = iter(stubs)
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: next(waiting))
    with pytest.raises(StartError, match="but the build measured the variant with 2 executors"):
        variant_loader.open_variant(manifest, variant)
    assert [stub.closed for stub in stubs] == [True, False], "the second was not opened"


def slow(inputs: Arrays) -> Arrays:
    time.sleep(0.0015)  # takes time: longer than a batch may hold the event loop
    return {"y": inputs["x"][:, 0]}


def quick(inputs: Arrays) -> Arrays:
    return {"y": inputs["x"][:, 0]}


def test_a_model_that_takes_longer_than_a_millisecond_is_never_run_on_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked for, that is an error; left to the server, it takes a thread."""
    graphs.linear(tmp_path / "model.onnx")
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: StubRuntime(slow))
    found = []
    for executor in ("inline", "auto"):
        (tmp_path / "tailcut.toml").write_text(MANIFEST + f'[pool]\nexecutor = "{executor}"\nexecutors = 1')
        manifest = load(tmp_path / "tailcut.toml")
        variant = deployment_loader.find_variant(manifest)
        if executor == "inline":
            with pytest.raises(StartError, match=r"a batch that takes \d+\.\d ms; the limit is 1 ms") as caught:
                variant_loader.open_variant(manifest, variant)
            assert 'pool.executor = "thread"' in str(caught.value.hint)
        else:
            found.append(variant_loader.open_variant(manifest, variant).choice.executor)
    assert found == ["thread"]


@pytest.mark.parametrize(
    ("answer", "cores", "memory_bytes", "executors"),
    [
        (slow, 4, 1 << 40, 2),
        (slow, 1, 1 << 40, 1),
        (slow, 4, 1 << 10, 1),
        (quick, 4, 1 << 40, 1),
    ],
    ids=["two", "one core", "no memory for two", "inline"],
)
def test_two_executors_are_kept_warm_where_cores_and_memory_allow(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answer: Callable[[Arrays], Arrays],
    cores: int,
    memory_bytes: int,
    executors: int,
) -> None:
    graphs.linear(tmp_path / "model.onnx")
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    manifest = load(tmp_path / "tailcut.toml")
    machine = msgspec.structs.replace(read_machine(), cores=cores, quota_cores=None, memory_bytes=memory_bytes)
    monkeypatch.setattr(variant_loader, "read_machine", lambda: machine)
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: StubRuntime(answer))
    warm = variant_loader.open_variant(manifest, deployment_loader.find_variant(manifest))
    assert len(warm.runtimes) == executors
    assert warm.choice.executor == ("thread" if answer is slow else "inline")


def test_a_folder_of_a_text_model_brings_its_own_preprocess(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    manifest = load(tmp_path / "tailcut.toml")

    def encode(rows: list[dict[str, float]]) -> dict[str, np.ndarray]:
        return {"x": np.full((len(rows), 4), 7, np.float32)}

    monkeypatch.setattr(text, "preprocess_of", lambda _: encode)
    code = hook_loading.import_code(manifest)
    assert code.preprocess is not None
    assert code.preprocess([{"text": "anything"}])["x"].tolist() == [[7, 7, 7, 7]]
    monkeypatch.setattr(text, "preprocess_of", lambda _: None)
    assert hook_loading.import_code(manifest).preprocess is None


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("promoted", "has no promoted version"),
        ("onxx", "serve.variant = 'onxx': model 'linear' has no promoted version"),
    ],
)
def test_what_is_not_in_the_registry_is_named_as_the_manifest_has_it(tmp_path: Path, named: str, says: str) -> None:
    (tmp_path / "tailcut.toml").write_text(MANIFEST)
    manifest = load(tmp_path / "tailcut.toml", overrides=[f'serve.variant="{named}"'])
    with pytest.raises(NotInRegistry, match=says) as caught:
        deployment_loader.find_variant(manifest)
    assert 'serve model.onnx unchanged with serve.variant = "source"' in caught.value.hint


def test_the_warm_up_keeps_to_the_limits_of_the_variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An encoder raises for zeros and empty texts where it knows neither; a table of positions for long rows."""
    (tmp_path / "tailcut.toml").write_text(
        'name = "m"\n[model]\nsource = "model.onnx"\noutputs = [{ name = "y", shape = [-1] }]\n'
        'inputs = [{ name = "city", datatype = "BYTES" }, { name = "code", datatype = "INT64", shape = [-1, 3] },\n'
        '    { name = "tokens", datatype = "INT64", shape = [-1, -1], min = -9 }]\n[batching]\nmax_rows = 2\n'
    )
    manifest = load(tmp_path / "tailcut.toml")
    bounds = (
        Bound(input="city", values=("Bern", "Genf")),
        Bound(input="code", columns=(1,), min=1, max=4),
        Bound(input="code", columns=(2,), values=(7, 8)),
        Bound(input="tokens", max=-1, max_length=5),
    )
    model = manifest.deployment.model
    artifact = graphs.linear(tmp_path / "model.onnx")
    variant = Variant("m", "onnx", "onnxruntime", artifact, "", model.inputs, model.outputs, "1", bounds=bounds)
    stub = StubRuntime(lambda inputs: {"y": np.zeros(len(inputs["city"]), np.float32)})
    monkeypatch.setattr(variant_loader, "open_runtime", lambda *_, **__: stub)
    variant_loader.open_variant(manifest, variant)
    given = stub.batches[0]
    assert given["city"].tolist() == ["Bern"]
    assert given["code"].tolist() == [[0, 1, 7]]
    assert given["tokens"].tolist() == [[-1] * 5]
