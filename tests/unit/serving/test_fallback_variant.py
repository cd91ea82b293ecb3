"""What the served variant has no room for is answered by another one that passed, and the reply says by which."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app_kit import GOOD, INFER, Client, counters, running, until_metric
from tests.promotion_kit import deployment, save_model
from tests.wait_kit import block_until, until

from tailcut.errors import ArtifactError, InferenceError, NotReady
from tailcut.manifest import Manifest
from tailcut.models import variant_loader
from tailcut.models.runtimes import open_runtime
from tailcut.registry import NewVariant, Registry, VariantEvidence, Version
from tailcut.serving import host_state
from tailcut.serving.host_state import LoadingMemory
from tailcut.testing.runtimes import FaultyRuntime

ONE = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
VALUES = {"slow": 1.0, "fast": 10.0, "spare": 100.0}


def add(manifest: Manifest, *refused: str) -> Version:
    why = {name: "it is worse" if name in refused else "" for name in VALUES}
    registry, model = Registry.of(manifest), manifest.deployment.model
    version = registry.add(
        "m",
        source="slow",
        inputs=model.inputs,
        outputs=model.outputs,
        variants=[
            NewVariant(
                name,
                "onnxruntime",
                save_model(manifest.directory / f"{name}-{factor}.onnx", factor),
                base=name == "slow",
                refused=why[name],
                evidence=VariantEvidence(quality_refusal=why[name]),
            )
            for name, factor in VALUES.items()
        ],
    )
    registry.promote("m", version.id, "slow")
    return version


class Gate(threading.Event):
    """Lets the variant that is promoted load, or makes it fail."""

    broken = False


@pytest.fixture
def gate() -> Gate:
    found = Gate()
    found.set()
    return found


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch, gate: Gate) -> list[FaultyRuntime]:
    """Runtimes of the variant that is promoted."""
    found: list[FaultyRuntime] = []

    def opened(variant: Any, **options: Any) -> Any:
        if variant.name == "slow":
            assert gate.wait(20)
            if gate.broken:
                raise ArtifactError("slow cannot be opened")
        runtime = open_runtime(variant, **options)
        if variant.name != "slow":
            return runtime
        found.append(FaultyRuntime(runtime))
        return found[-1]

    monkeypatch.setattr(variant_loader, "open_runtime", opened)
    return found


def serve(
    folder: Path,
    test: Callable[[Client], Awaitable[None]],
    fallback: str,
    *refused: str,
    timeout: str = "20s",
    named: str = "promoted",
    pool: str = '{executor="thread", executors=1}',
    follow: str = "1s",
) -> None:
    overrides = [
        f"serve.follow={follow}",
        f"serve.fallback={fallback}",
        f"pool={pool}",
        f"slo.timeout={timeout}",
        f"serve.variant={named}",
        'server.kill="30s"',
        "batching={max_rows=2, max_queue_rows=2}",
    ]
    manifest = deployment(folder, overrides=overrides)
    add(manifest, *refused)

    async def main() -> None:
        async with running(manifest) as client:
            await test(client)

    asyncio.run(main())


async def warm(client: Client) -> str:
    """Wait for the fallback; returns the name of its variant."""
    await until_metric(client, "tailcut_fallback_ready", 1)
    ((name, *_),) = await counters(client, "tailcut_fallback_ready")
    return name


def test_what_there_is_no_room_for_is_answered_by_the_fallback(tmp_path: Path, slow: list[FaultyRuntime]) -> None:
    async def test(client: Client) -> None:
        assert await warm(client) == "fast"
        slow[0].hang()
        first = asyncio.create_task(client.post(INFER, ONE))
        assert await asyncio.to_thread(slow[0].entered.wait, 10)
        queued = asyncio.create_task(client.post(INFER, GOOD))
        async with asyncio.timeout(10):
            while client.app.engine.pipeline.serving.dispatcher.scheduler.waiting.rows < 2:
                await asyncio.sleep(0)
        other = await client.post(INFER, ONE)
        assert (other.status, other.headers["x-tailcut-variant"]) == (200, "fast")
        assert other.json["outputs"][0]["data"] == [30.0]
        slow[0].release()
        answers = await asyncio.gather(first, queued)
        assert [answer.headers["x-tailcut-variant"] for answer in answers] == ["slow", "slow"]
        assert (await client.post(INFER, ONE)).headers["x-tailcut-variant"] == "slow"
        assert await counters(client, "tailcut_requests_total") == {
            ("infer", "slow", "ok", "off"): 3,
            ("infer", "fast", "ok", "off"): 1,
        }

    serve(tmp_path, test, '["fast"]')


def test_a_refused_fallback_is_left_out_and_the_next_is_taken(
    tmp_path: Path, slow: list[FaultyRuntime], caplog: pytest.LogCaptureFixture
) -> None:
    async def test(client: Client) -> None:
        assert await warm(client) == "spare"

    serve(tmp_path, test, '["fast", "spare"]', "fast")
    assert "fallback fast of version" in caplog.text
    assert "was refused by the quality gate: it is worse" in caplog.text


def test_a_switch_takes_the_fallback_along(tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        engine = client.app.engine
        await warm(client)
        before = engine.opened
        VALUES["slow"] = 2.0
        try:
            add(engine.manifest)
        finally:
            VALUES["slow"] = 1.0
        assert engine.follower is not None
        await engine.follower.look()
        assert engine.opened is not before
        await until(lambda: engine.opened.fallback is not None)
        await until_metric(client, "tailcut_variants_retiring", 0)
        assert engine.opened.fallback.variant.version == engine.opened.variant.version
        assert before.fallback is not None
        with pytest.raises(NotReady):
            before.fallback.served.dispatcher.check_room(1)

    serve(tmp_path, test, '["fast"]')


async def answered_by(client: Client, name: str) -> None:
    """Ask until a variant answers."""

    async def answers() -> bool:
        answer = await client.post(INFER, ONE)
        assert answer.status == 200
        found = answer.headers["x-tailcut-variant"]
        assert answer.json["outputs"][0]["data"] == [3 * VALUES[found]]
        return found == name

    await until(answers)


@pytest.mark.parametrize("named", ["promoted", "slow"])
def test_while_the_variant_to_serve_loads_the_fallback_answers(
    tmp_path: Path, slow: list[FaultyRuntime], gate: Gate, named: str
) -> None:
    gate.clear()

    async def test(client: Client) -> None:
        assert (await client.get("/v2/health/ready")).status == 200
        await answered_by(client, "fast")
        gate.set()
        await answered_by(client, "slow")
        assert await warm(client) == "fast", "it is kept as the fallback that it is"
        assert not (await counters(client, "tailcut_variants_retiring")).get((), 0)
        slow[0].hang()
        tasks = [asyncio.create_task(client.post(INFER, ONE)) for _ in range(4)]
        await until(lambda: any(t.done() and t.result().headers["x-tailcut-variant"] == "fast" for t in tasks))
        slow[0].release()
        await asyncio.gather(*tasks)

    serve(tmp_path, test, '["fast"]', named=named)


def test_the_fallback_answers_at_once_while_the_only_executor_is_replaced(
    tmp_path: Path, slow: list[FaultyRuntime], gate: Gate
) -> None:
    async def test(client: Client) -> None:
        await answered_by(client, "slow")
        await warm(client)
        slow[0].hang()
        gate.clear()
        first = asyncio.create_task(client.post(INFER, ONE, {"x-tailcut-timeout-ms": "20000"}))
        await until_metric(client, "tailcut_executors", 0)
        assert (await client.get("/v2/health/ready")).status == 200
        for _ in range(3):
            answer = await client.post(INFER, ONE, {"x-tailcut-timeout-ms": "20000"})
            assert (answer.status, answer.headers["x-tailcut-variant"]) == (200, "fast")
        gate.set()
        assert (await first).headers["x-tailcut-variant"] == "slow", "it was in the batch that runs once more"
        await answered_by(client, "slow")
        slow[0].release()

    serve(tmp_path, test, '["fast"]', timeout="200ms")


def test_a_fallback_that_does_not_fit_into_memory_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(host_state, "LoadingMemory", lambda: LoadingMemory(lambda: 100))

    async def test(client: Client) -> None:
        await until(lambda: "free are 100 B" in caplog.text)
        assert (await client.post(INFER, ONE)).headers["x-tailcut-variant"] == "slow"

    serve(tmp_path, test, '["fast"]')
    assert "fallback fast of version" in caplog.text
    assert "of model 'm' does not fit into memory" in caplog.text


def test_a_variant_that_cannot_be_opened_at_the_start_is_stood_in_for_and_tried_again(
    tmp_path: Path, slow: list[FaultyRuntime], gate: Gate, caplog: pytest.LogCaptureFixture
) -> None:
    gate.broken = True

    async def test(client: Client) -> None:
        await answered_by(client, "fast")
        follower = client.app.engine.follower
        assert follower is not None
        await until(lambda: follower.failure is not None)
        said = (await client.get("/v2/models/m")).json["promotion"]
        assert (said["state"], said["error"]) == ("failed", "slow cannot be opened")
        gate.broken = False
        follower.retry_s = 0.0
        async with follower.switching:
            await follower.look()
        await answered_by(client, "slow")
        assert await warm(client) == "fast"

    serve(tmp_path, test, '["fast"]')
    assert "the promoted variant cannot be served, variant fast" in caplog.text


def test_a_stop_while_the_variant_to_serve_loads_leaves_nothing_open(
    tmp_path: Path, slow: list[FaultyRuntime], gate: Gate
) -> None:
    gate.clear()

    async def test(client: Client) -> None:
        await answered_by(client, "fast")

    serve(tmp_path, test, '["fast"]')
    gate.set()
    block_until(lambda: not any(thread.name == "tailcut-loader" for thread in threading.enumerate()))
    for runtime in slow:
        with pytest.raises(InferenceError):  # it is closed
            runtime.run({"x": np.zeros((1, 2), np.float32)}, ("y",))
