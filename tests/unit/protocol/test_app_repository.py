"""The repository and the statistics of an engine: what is listed, loaded, unloaded and counted, without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import GOOD, INFER, Client, running
from tests.app_kit import deployment as sources
from tests.observe_kit import record
from tests.promotion_kit import Promotions, deployment, save_model

from tailcut.common.slo import LatencyObjective
from tailcut.common.timings import Stage, Timings
from tailcut.errors import BadRequest, NotFound, NotReady, TailcutError
from tailcut.observe.recorder import Recorder
from tailcut.protocol import http
from tailcut.registry import NewVariant, Registry, VariantEvidence, Version
from tailcut.serving.engine import Statistics

Test = Callable[[Client, Promotions], Awaitable[None]]
FOLLOWS = ('serve.follow="1h"',)


def serve(directory: Path, test: Test, overrides: Sequence[str] = FOLLOWS) -> None:
    """Serve a model whose version of factor 1 is promoted."""

    async def main() -> None:
        manifest = deployment(directory, overrides=overrides)
        promotions = Promotions(manifest)
        promotions.promote(promotions.add(1.0))
        async with running(manifest) as client:
            await test(client, promotions)

    asyncio.run(main())


async def answer(client: Client) -> float:
    """The factor that answers."""
    reply = await client.post(INFER, GOOD)
    assert reply.status == 200, reply.body
    return float(reply.json["outputs"][0]["data"][0]) / 3.0


def two_variants(promotions: Promotions, directory: Path) -> Version:
    """Add a version with a variant that passed, and one that the gate refused."""
    model, why = promotions.registry.list("m")[0], "drops too much"
    bad, evidence = save_model(directory / "7.onnx", 7.0), VariantEvidence(quality_refusal=why)
    return promotions.registry.add(
        "m",
        source="onnx",
        inputs=model.inputs,
        outputs=model.outputs,
        variants=[
            NewVariant("onnx", "onnxruntime", save_model(directory / "5.onnx", 5.0), base=True),
            NewVariant("bad", "onnxruntime", bad, refused=why, evidence=evidence, base=True),
        ],
    )


@pytest.mark.parametrize("overrides", [FOLLOWS, ('serve.follow="0s"',)])
def test_load_follows_the_promotion_now(tmp_path: Path, overrides: Sequence[str]) -> None:
    async def test(client: Client, promotions: Promotions) -> None:
        repository = client.app.engine.repository
        second = promotions.add(3.0)
        await repository.load()
        assert await answer(client) == 1.0
        promotions.promote(second)
        assert await answer(client) == 1.0
        await repository.load()
        assert await answer(client) == 3.0
        assert client.app.engine.opened.variant.version == second.id

    serve(tmp_path, test, overrides)


def test_load_takes_a_version_and_a_variant(tmp_path: Path) -> None:
    async def test(client: Client, promotions: Promotions) -> None:
        repository = client.app.engine.repository
        first = client.app.engine.opened.variant.version
        second, third = promotions.add(3.0), two_variants(promotions, tmp_path)
        for version, variant, factor in (
            (second.id, "", 3.0),
            (third.id, "onnx", 5.0),
            ("promoted", "", 1.0),
            ("latest", "onnx", 5.0),
            ("", "onnx", 5.0),
            (first, "", 1.0),
        ):
            await repository.load(version=version, variant=variant)
            assert await answer(client) == factor
        wrong: list[tuple[str, str, type[TailcutError], str]] = [
            ("nonsense", "", NotFound, "no version"),
            ("../../etc", "", NotFound, "is not a version"),
            ("a" * 300, "", NotFound, "is not a version"),
            (second.id, "int8", NotFound, "no variant"),
            (third.id, "bad", BadRequest, "was refused by the quality gate: drops too much"),
        ]
        for version, variant, kind, says in wrong:
            with pytest.raises(kind, match=says) as caught:
                await repository.load(version=version, variant=variant)
            assert caught.value.hint
            assert await answer(client) == 1.0

    serve(tmp_path, test)


def test_a_promotion_after_a_chosen_version_is_followed(tmp_path: Path) -> None:
    async def test(client: Client, promotions: Promotions) -> None:
        second, third = promotions.add(3.0), promotions.add(5.0)
        await client.app.engine.repository.load(version=second.id)
        assert await answer(client) == 3.0
        follower = client.app.engine.follower
        assert follower is not None
        await follower.look()
        assert await answer(client) == 3.0
        promotions.promote(third)
        await follower.look()
        assert await answer(client) == 5.0

    serve(tmp_path, test)


def test_loads_at_once_come_one_after_the_other(tmp_path: Path) -> None:
    async def test(client: Client, promotions: Promotions) -> None:
        repository = client.app.engine.repository
        versions = [promotions.add(float(factor)) for factor in (2, 3, 4)]
        await asyncio.gather(*(repository.load(version=version.id) for version in versions))
        assert await answer(client) == 4.0

    serve(tmp_path, test)


def test_an_unloaded_model_answers_nothing_until_it_is_loaded(tmp_path: Path) -> None:
    async def test(client: Client, promotions: Promotions) -> None:
        engine = client.app.engine
        client.app.host.unload("m")
        client.app.host.unload("m")
        assert not engine.is_ready
        for path, body in ((INFER, GOOD), ("/predict/m", {"rows": [{"id": 1, "value": 2}]})):
            refused = await client.post(path, body)
            assert (refused.status, refused.json["code"]) == (503, "not_ready")
            assert "is unloaded" in refused.json["error"]
        ready = await client.get("/v2/health/ready")
        assert (ready.status, ready.json["state"]) == (503, "unloaded")
        assert (await client.get("/v2/models/m/ready")).status == 503
        assert (await client.get("/v2/health/live")).status == 200
        (entry,) = (await client.post("/v2/repository/index", b"")).json
        assert (entry["state"], entry["reason"]) == ("UNAVAILABLE", "unloaded")
        assert (await client.get("/metrics")).status == 200
        promotions.promote(promotions.add(3.0))
        assert engine.follower is None
        await client.app.host.load("m")
        assert engine.is_ready
        assert await answer(client) == 3.0

    serve(tmp_path, test)


def test_an_unloaded_model_is_stopped_and_drained(tmp_path: Path) -> None:
    async def test(client: Client, promotions: Promotions) -> None:
        engine = client.app.engine
        client.app.host.unload("m")
        client.app.host.drain()
        assert engine.state == "draining"
        with pytest.raises(NotReady, match="draining"):
            await client.app.host.load("m")

    serve(tmp_path, test)


def test_the_index_lists_every_variant(tmp_path: Path) -> None:
    async def test(client: Client, promotions: Promotions) -> None:
        first = client.app.engine.opened.variant.version
        second = two_variants(promotions, tmp_path)
        index = (await client.post("/v2/repository/index", {})).json
        assert {(each["version"], each["variant"]): (each["state"], each["status"]) for each in index} == {
            (first, "onnx"): ("READY", "promoted"),
            (second.id, "onnx"): ("UNAVAILABLE", "passed"),
            (second.id, "bad"): ("UNAVAILABLE", "candidate"),
        }
        assert {each["name"] for each in index} == {"m"}
        ready = (await client.post("/v2/repository/index", {"ready": True})).json
        assert [each["version"] for each in ready] == [first]
        for body in (b"[]", b'{"ready": 1}', b"{"):
            assert (await client.post("/v2/repository/index", body)).status == 400

    serve(tmp_path, test)


def test_a_source_that_is_served_as_it_is_is_listed_and_loaded(tmp_path: Path) -> None:
    async def main() -> None:
        manifest = sources(tmp_path)
        async with running(manifest) as client:
            (entry,) = await client.app.engine.repository.index()
            assert (entry["version"], entry["state"], entry["status"]) == ("source", "READY", "source")
            await client.app.engine.repository.load()
            client.app.host.unload("m")
            await client.app.host.load("m")
            assert await answer(client) == 1.0
            with pytest.raises(NotFound):
                await client.app.engine.repository.load(variant="onnx")
        assert not Registry.of(manifest).list()

    asyncio.run(main())


def test_a_body_that_does_not_come_is_a_408_and_one_that_breaks_off_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "_READ_S", 0.01)

    async def test(client: Client, promotions: Promotions) -> None:
        slow = client.connect("POST", "/v2/repository/index")
        slow.send(b"{", more=True)
        assert (await slow.answer()).json["code"] == "request_timeout"
        leaves = client.connect("POST", "/v2/repository/index")
        leaves.send(b"{", more=True)
        leaves.disconnect()
        assert (await leaves.answer()).json["code"] == "client_gone"

    serve(tmp_path, test)


# -- Statistics ----------------------------------------------------------------------------------------------------


def request(recorder: Recorder, at_ns: int, *, outcome: str = "ok", cache: str = "off", **stages: int) -> None:
    timings = Timings(at_ns)
    for name, took_ns in stages.items():
        at_ns += took_ns
        timings.lap(Stage[name.upper()], at_ns)
    record(recorder, timings, "infer", "onnx", outcome, cache)


def test_figures_are_those_of_the_version_that_was_served() -> None:
    recorder = Recorder()
    statistics = Statistics("m", recorder, clock_ns=lambda: 5_000_000_000, wall_ns=lambda: 1_700_000_000_000_000_000)
    assert statistics.describe() == []
    statistics.begin("a")
    assert statistics.describe()[0]["last_inference"] == 0
    request(recorder, 0, receive=1, queue=20, infer=300)
    request(recorder, 0, receive=1, outcome="shed")
    request(recorder, 0, tensor_cache=7, cache="hit")
    recorder.count_batch(2, 300)
    recorder.count_batch(2, 500)
    recorder.count_batch(8, 900)
    (figures,) = statistics.describe("a")
    assert (figures["inference_count"], figures["execution_count"]) == (12, 3)
    assert figures["last_inference"] == 1_700_000_000_000 - 5_000 + 0
    wanted: dict[str, Any] = {
        "success": (2, 328),
        "fail": (1, 1),
        "queue": (1, 20),
        "compute_input": (0, 0),
        "compute_infer": (1, 300),
        "compute_output": (0, 0),
        "cache_hit": (1, 7),
    }
    assert {name: (each["count"], each["ns"]) for name, each in figures["inference_stats"].items()} == wanted
    assert [(each["batch_size"], each["compute_infer"]) for each in figures["batch_stats"]] == [
        (2, {"count": 2, "ns": 800}),
        (8, {"count": 1, "ns": 900}),
    ]
    statistics.begin("a")
    assert statistics.describe() == [figures]
    statistics.begin("b")
    recorder.count_batch(1, 10)
    served, earlier = statistics.describe()
    assert earlier == figures
    assert (served["version"], served["inference_count"], served["inference_stats"]["success"]["count"]) == ("b", 1, 0)
    assert statistics.describe("nothing") == []


def test_an_objective_that_changes_takes_nothing_back() -> None:
    recorder = Recorder()
    statistics = Statistics("m", recorder)
    statistics.begin("a")
    for outcome in ("ok", "ok", "shed"):
        request(recorder, 0, receive=5, outcome=outcome)
    statistics.begin("b")
    request(recorder, 0, receive=5)
    recorder.set_objectives([LatencyObjective(share=0.95, limit_s=0.0213)], errors=0.001)
    request(recorder, 0, receive=5)
    (figures,) = statistics.describe("b")
    assert figures["inference_stats"]["success"] == {"count": 2, "ns": 10}
    assert figures["inference_stats"]["fail"] == {"count": 0, "ns": 0}


def test_only_the_last_versions_are_kept() -> None:
    statistics = Statistics("m", Recorder())
    for n in range(40):
        statistics.begin(str(n))
    kept = [each["version"] for each in statistics.describe()]
    assert kept == [str(n) for n in range(39, 22, -1)]
