"""What could not be followed is tried again, what hangs is overtaken, and what goes wrong on the way is told."""

from __future__ import annotations

import asyncio
import logging
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.serving.test_opening_following import MODEL, Bench, Slow, retired, serve

from tailcut.models.runtimes.priority import short_turns
from tailcut.serving import promotion
from tailcut.serving.host_state import LoadingMemory


def corrupt(bench: Bench, factor: float) -> str:
    version = bench.promotions.add(factor)
    bench.promotions.promote(version)
    file = bench.promotions.artifact(version)
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-7])
    return version.id


async def state(bench: Bench) -> dict[str, str]:
    found: dict[str, str] = (await bench.client.get(MODEL)).json.get("promotion", {})
    return found


def test_an_artifact_that_was_built_again_is_followed_although_the_promotion_is_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        version = corrupt(bench, 2.0)
        await bench.follower.look()
        assert (await state(bench))["state"] == "failed"
        pointer = bench.promotions.registry.promotion_stamp("m")
        bench.promotions.add(2.0)
        assert bench.promotions.registry.promotion_stamp("m") == pointer
        await bench.follower.look()
        assert await bench.answer() == (2.0, version)
        assert await state(bench) == {}

    monkeypatch.setattr(promotion, "_RETRY_S", 0.0)
    serve(tmp_path, test)


def test_what_fails_again_in_the_same_way_is_counted_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        return len([record for record in caplog.records if "cannot be served" in record.getMessage()])

    async def test(bench: Bench) -> None:
        corrupt(bench, 2.0)
        for _ in range(3):
            await bench.follower.look()
        assert (bench.follower.failures, told()) == (3, 1)
        corrupt(bench, 3.0)
        for _ in range(2):
            await bench.follower.look()
        assert (bench.follower.failures, told()) == (5, 2)
        assert (await bench.answer())[0] == 1.0

    monkeypatch.setattr(promotion, "_RETRY_S", 0.0)
    serve(tmp_path, test)


def test_a_promotion_that_does_not_fit_into_memory_is_told_with_the_figures_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = [100]

    async def test(bench: Bench) -> None:
        bench.client.app.engine.host.memory = LoadingMemory(lambda: free[0])
        version = await bench.promote(2.0)
        found = await state(bench)
        assert found["state"] == "failed"
        assert f"variant 'onnx' of version {version} of model 'm' does not fit into memory" in found["error"]
        assert "free are 100 B" in found["error"]
        assert (await bench.answer())[0] == 1.0
        assert (await bench.client.get("/v2/health/ready")).status == 200
        free[0] = 1 << 30
        await bench.follower.look()
        assert await bench.answer() == (2.0, version)
        assert await state(bench) == {}

    monkeypatch.setattr(promotion, "_RETRY_S", 0.0)
    serve(tmp_path, test)


def test_tries_become_rarer_until_something_else_is_promoted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: Bench) -> None:
        loop = asyncio.get_running_loop()
        corrupt(bench, 2.0)
        pauses = []
        for _ in range(6):
            await bench.follower.look()
            pauses.append(round(bench.follower.retry_s - loop.time(), -1))
            monkeypatch.setattr(bench.follower, "retry_s", 0.0)
        assert pauses == [30, 60, 120, 240, 480, 600]
        corrupt(bench, 3.0)
        await bench.follower.look()
        assert round(bench.follower.retry_s - loop.time(), -1) == 30
        await bench.follower.look()
        assert bench.follower.failures == 7, "not before its time"

    serve(tmp_path, test)


def test_a_registry_that_goes_and_comes_back(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Gone: the old variant answers on and everybody is told. Back: nothing is loaded anew, later promotions count."""

    async def test(bench: Bench) -> None:
        root = bench.promotions.registry.root
        away = root.with_name("away")
        root.rename(away)
        for _ in range(2):
            await bench.follower.look()
        assert (await bench.answer())[0] == 1.0
        assert (await state(bench))["state"] == "failed"
        assert "model 'm' has no promoted version" in (await state(bench))["error"]
        away.rename(root)
        await bench.follower.look()
        assert await state(bench) == {}
        assert bench.follower.switches == 0
        assert await bench.answer() == (await bench.answer())
        version = await bench.promote(2.0)
        assert await bench.answer() == (2.0, version)
        shutil.rmtree(root)

    serve(tmp_path, test)


def test_a_registry_that_cannot_be_read_shows_until_it_can_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []

    async def test(bench: Bench) -> None:
        monkeypatch.setattr(bench.client.app.engine, "say", said.append)
        models = bench.promotions.registry.root / "models"
        away = models.with_name("away")
        models.rename(away)
        models.symlink_to("models")  # reading it fails with ELOOP, for root too
        for _ in range(2):
            await bench.follower.look()
        ready = await bench.client.get("/v2/health/ready")
        assert ready.status == 200
        assert ready.json["promotion"]["state"] == "unreadable"
        assert "Too many levels of symbolic links" in ready.json["promotion"]["error"]
        assert await bench.metric("tailcut_registry_unreachable") == {(): 1}
        assert (await bench.answer())[0] == 1.0
        models.unlink()
        away.rename(models)
        await bench.follower.look()
        assert await state(bench) == {}
        assert await bench.metric("tailcut_registry_unreachable") == {(): 0}
        assert said == ["the registry can be read again"]

    serve(tmp_path, test)


def test_loading_that_hangs_is_overtaken_by_the_next_promotion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(monkeypatch)
    closed = asyncio.Event()

    async def test(bench: Bench) -> None:
        bench.promotions.promote(bench.promotions.add(2.0))
        looking = asyncio.create_task(bench.follower.look())
        hanging = await slow.entered(1)
        loop = asyncio.get_running_loop()
        close = hanging.close
        monkeypatch.setattr(hanging, "close", lambda: (close(), loop.call_soon_threadsafe(closed.set)))
        bench.promotions.promote(bench.promotions.add(3.0))
        (await slow.entered(2)).release()
        await looking
        assert (await bench.answer())[0] == 3.0
        assert not closed.is_set()
        hanging.release()
        async with asyncio.timeout(20):
            await closed.wait()
        assert (await bench.answer())[0] == 3.0

    monkeypatch.setattr(promotion, "_PATIENCE_S", 0.01)
    serve(tmp_path, test)


def test_a_switch_that_fails_at_the_last_step_leaves_nothing_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = []

    def failing(manifest: Any, running: Any, warm: Any, recorder: Any) -> None:
        monkeypatch.setattr(warm.runtimes[0], "close", lambda: closed.append(True), raising=False)
        raise RuntimeError("no thread can be started")

    async def test(bench: Bench) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(promotion, "open_beside", failing)
            await bench.promote(2.0)
        assert (await bench.answer())[0] == 1.0
        assert "no thread can be started" in (await state(bench))["error"]
        assert closed == [True]
        await bench.follower.look()
        assert (await bench.answer())[0] == 2.0

    monkeypatch.setattr(promotion, "_RETRY_S", 0.0)
    serve(tmp_path, test)


def test_an_old_variant_that_does_not_close_is_told_and_its_executors_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    stopped = []

    def failing() -> None:
        raise RuntimeError("device lost")

    async def test(bench: Bench) -> None:
        old = bench.client.app.engine.opened
        stop = old.served.dispatcher.stop

        async def stopping(timeout_s: float) -> None:
            await stop(timeout_s)
            stopped.append(old)

        fake = SimpleNamespace(close=failing)
        monkeypatch.setattr(old, "warm", old.warm._replace(runtimes=[fake]))
        monkeypatch.setattr(old.served.dispatcher, "stop", stopping)
        await bench.promote(2.0)
        await retired(bench)
        assert (await bench.answer())[0] == 2.0
        assert stopped == [old]

    with caplog.at_level(logging.ERROR):
        serve(tmp_path, test, 'pool.executor="inline"')
    told = [record for record in caplog.records if "did not close" in record.getMessage()]
    assert len(told) == 1
    assert "device lost" in str(told[0].exc_info[1])  # type: ignore[index]


def test_the_turns_of_threads_are_as_before_when_the_last_of_several_blocks_ends() -> None:
    usual_s = sys.getswitchinterval()
    first, second = short_turns(), short_turns()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert sys.getswitchinterval() < usual_s
    second.__exit__(None, None, None)
    assert sys.getswitchinterval() == usual_s
