"""A running deployment follows the registry: what is promoted is served, and what cannot be served changes nothing."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import GOOD, INFER, PATIENT, Client, counters, running, until_metric
from tests.promotion_kit import Promotions, deployment
from tests.wait_kit import until

from tailcut.common.fingerprint import Trust
from tailcut.errors import InferenceError
from tailcut.manifest import Manifest
from tailcut.models import variant_loader
from tailcut.models.background_loading import in_background
from tailcut.models.runtimes import open_runtime
from tailcut.registry import Registry
from tailcut.serving import deployment_loader
from tailcut.serving.promotion import Follower
from tailcut.testing.runtimes import FaultyRuntime, StubRuntime

ROWS = {"rows": [{"id": 1, "value": 2}]}
NEVER = 'serve.follow="1h"'
MODEL = "/v2/models/m"


class Bench:
    """A running application on a registry, looked after by hand."""

    def __init__(self, client: Client, promotions: Promotions) -> None:
        self.client = client
        self.promotions = promotions

    @property
    def follower(self) -> Follower:
        found = self.client.app.engine.follower
        assert found is not None
        return found

    async def promote(self, factor: float, **options: int) -> str:
        version = self.promotions.add(factor, **options)
        self.promotions.promote(version)
        await self.follower.look()
        return version.id

    async def answer(self) -> tuple[float, str]:
        """The factor by which the model answers, and the version that the reply names."""
        reply = await self.client.post(INFER, GOOD)
        assert reply.status == 200, reply.json
        assert reply.json["model_version"] == reply.headers["x-tailcut-version"]
        return reply.json["outputs"][0]["data"][0] / 3.0, reply.headers["x-tailcut-version"]

    async def metric(self, name: str) -> dict[tuple[str, ...], float]:
        return await counters(self.client, name)


Test = Callable[[Bench], Awaitable[None]]


def serve(directory: Path, test: Test, *overrides: str, **options: Any) -> None:
    manifest = deployment(directory, overrides=[NEVER, *PATIENT, *overrides], **options)
    promotions = Promotions(manifest)
    promotions.promote(promotions.add(1.0))

    async def main() -> None:
        async with running(manifest) as client:
            await test(Bench(client, promotions))

    asyncio.run(main())


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every runtime that is opened, with ``closed`` set when it is closed."""
    found: list[Any] = []

    class Watched:
        def __init__(self, runtime: Any) -> None:
            self._runtime = runtime
            self.closed = False
            self.run = runtime.run

        def close(self) -> None:
            self.closed = True
            self._runtime.close()

    def watched(*arguments: Any, **options: Any) -> Watched:
        watcher = Watched(open_runtime(*arguments, **options))
        found.append(watcher)
        return watcher

    monkeypatch.setattr(variant_loader, "open_runtime", watched)
    return found


async def retired(bench: Bench) -> None:
    """Wait until no old variant is left."""
    await until_metric(bench.client, "tailcut_variants_retiring", 0)


def test_what_is_promoted_is_served_from_then_on_and_the_old_one_is_closed(tmp_path: Path, opened: list[Any]) -> None:
    async def test(bench: Bench) -> None:
        assert (await bench.answer())[0] == 1.0
        version = await bench.promote(2.0)
        assert await bench.answer() == (2.0, version)
        assert (await bench.client.get(MODEL)).json["versions"] == [version]
        assert (await bench.client.get("/v2/health/ready")).json == {"ready": True, "state": "ready"}
        assert await bench.metric("tailcut_switches_total") == {("done",): 1, ("failed",): 0}
        await retired(bench)
        assert [runtime.closed for runtime in opened] == [True, False]

    serve(tmp_path, test)


def test_a_rollback_is_followed_too(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        await bench.promote(2.0)
        bench.promotions.registry.rollback("m")
        await bench.follower.look()
        assert (await bench.answer())[0] == 1.0

    serve(tmp_path, test)


def test_the_same_variant_promoted_again_is_not_loaded_again(tmp_path: Path, opened: list[Any]) -> None:
    async def test(bench: Bench) -> None:
        first = bench.promotions.registry.promotion("m")
        assert first is not None
        other = bench.promotions.add(2.0)
        bench.promotions.promote(other)
        bench.promotions.registry.promote("m", first.version, "onnx")
        await bench.follower.look()
        assert len(opened) == 1
        assert await bench.metric("tailcut_switches_total") == {("done",): 0, ("failed",): 0}

    serve(tmp_path, test)


def _corrupt(bench: Bench) -> None:
    version = bench.promotions.add(2.0)
    bench.promotions.promote(version)
    file = bench.promotions.artifact(version)
    file.chmod(0o644)
    file.write_bytes(file.read_bytes()[:-7])


def _no_batches(bench: Bench) -> None:
    bench.promotions.promote(bench.promotions.add(2.0, least_rows=2))


def _changed_hooks(bench: Bench) -> None:
    hooks = Path(str(sys.modules["app_hooks"].__file__))
    hooks.write_text(hooks.read_text() + "\nFACTOR = 2\n")
    bench.promotions.promote(bench.promotions.add(2.0))


def _gone(bench: Bench) -> None:
    (bench.promotions.registry.root / "models/m/promoted.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_corrupt, "bytes"),
        (_no_batches, "warm-up failed at 1 rows"),
        (_changed_hooks, "app_hooks.py changed since this server started"),
        (_gone, "model 'm' has no promoted version"),
    ],
)
def test_what_cannot_be_served_leaves_the_old_one_in_place_and_is_told_once(
    tmp_path: Path, spoil: Callable[[Bench], None], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def test(bench: Bench) -> None:
        spoil(bench)
        for _ in range(3):
            await bench.follower.look()
        assert (await bench.answer())[0] == 1.0
        ready = await bench.client.get("/v2/health/ready")
        assert ready.status == 200
        for page in (ready, await bench.client.get(MODEL), await bench.client.get(f"{MODEL}/ready")):
            assert page.json["promotion"]["state"] == "failed"
            assert said in page.json["promotion"]["error"]
        assert await bench.metric("tailcut_switches_total") == {("done",): 0, ("failed",): 1}
        assert await bench.metric("tailcut_switch_failed") == {(): 1}
        told = [record.getMessage() for record in caplog.records if "cannot be served" in record.getMessage()]
        assert len(told) == 1
        assert said in told[0]

    with caplog.at_level(logging.ERROR):
        serve(tmp_path, test, features=True)


def test_after_a_failure_the_next_promotion_is_tried(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        _corrupt(bench)
        await bench.follower.look()
        version = await bench.promote(3.0)
        assert await bench.answer() == (3.0, version)
        assert "promotion" not in (await bench.client.get(MODEL)).json
        assert await bench.metric("tailcut_switch_failed") == {(): 0}

    serve(tmp_path, test)


def test_a_variant_of_another_machine_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(bench: Bench) -> None:
        unverified = Trust(level="unverified", reason="numerics: avx2 there, avx512 here")
        monkeypatch.setattr(Registry, "trust", lambda *_: unverified)
        await bench.promote(2.0)
        assert (await bench.answer())[0] == 1.0
        assert "unverified here" in (await bench.client.get(MODEL)).json["promotion"]["error"]

    serve(tmp_path, test)


def test_tensors_of_another_form_are_refused(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        good = bench.promotions.registry.variant("m")
        wider = replace(good, inputs=(*good.inputs, good.inputs[0]), version="other")
        bench.promotions.promote(bench.promotions.add(2.0))
        bench.follower._registry.variant = lambda *_: wider  # type: ignore[method-assign]
        await bench.follower.look()
        assert "its inputs are" in (await bench.client.get(MODEL)).json["promotion"]["error"]

    serve(tmp_path, test)


class Slow:
    """Runtimes after the first hang when they are warmed up, until they are released."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.faulty: list[FaultyRuntime] = []
        monkeypatch.setattr(variant_loader, "open_runtime", self._open)

    def _open(self, *arguments: Any, **options: Any) -> Any:
        runtime = FaultyRuntime(open_runtime(*arguments, **options))
        self.faulty.append(runtime)
        if len(self.faulty) > 1:
            runtime.hang()
        return runtime

    async def entered(self, number: int) -> FaultyRuntime:
        await until(lambda: len(self.faulty) > number)
        assert await asyncio.to_thread(self.faulty[number].entered.wait, 20)
        return self.faulty[number]


def test_while_one_is_loaded_the_old_one_answers_and_of_two_promotions_the_last_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)

    async def test(bench: Bench) -> None:
        bench.promotions.promote(bench.promotions.add(2.0))
        looking = asyncio.create_task(bench.follower.look())
        second = await slow.entered(1)
        assert (await bench.answer())[0] == 1.0
        assert (await bench.client.get("/v2/health/ready")).json["promotion"] == {"state": "loading"}
        bench.promotions.promote(bench.promotions.add(3.0))
        second.release()
        (await slow.entered(2)).release()
        await looking
        assert (await bench.answer())[0] == 3.0
        assert await bench.metric("tailcut_switches_total") == {("done",): 1, ("failed",): 0}

    serve(tmp_path, test)


def test_stopping_abandons_what_is_being_loaded_and_it_is_closed_when_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    closed = asyncio.Event()

    async def test(bench: Bench) -> None:
        bench.promotions.promote(bench.promotions.add(2.0))
        looking = asyncio.create_task(bench.follower.look())
        second = await slow.entered(1)
        loop = asyncio.get_running_loop()
        close = second.close
        monkeypatch.setattr(second, "close", lambda: (close(), loop.call_soon_threadsafe(closed.set)))
        looking.cancel()
        bench.client.app.engine.drain()
        assert (await bench.answer())[0] == 1.0
        second.release()
        async with asyncio.timeout(20):
            await closed.wait()
        assert (await bench.answer())[0] == 1.0

    serve(tmp_path, test)


def test_a_request_under_way_ends_on_the_variant_that_it_began_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    faulty: list[FaultyRuntime] = []

    def opening_faulty(*arguments: Any, **options: Any) -> FaultyRuntime:
        faulty.append(FaultyRuntime(open_runtime(*arguments, **options)))
        return faulty[-1]

    monkeypatch.setattr(variant_loader, "open_runtime", opening_faulty)

    async def test(bench: Bench) -> None:
        first = (await bench.answer())[1]
        faulty[0].hang()
        under_way = asyncio.create_task(bench.answer())
        assert await asyncio.to_thread(faulty[0].entered.wait, 20)
        version = await bench.promote(2.0)
        assert await bench.answer() == (2.0, version)
        assert (await bench.metric("tailcut_variants_retiring"))[()] == 1
        faulty[0].release()
        assert await under_way == (1.0, first)
        await retired(bench)

    serve(tmp_path, test, 'pool.executor="thread"', "pool.executors=1")


@pytest.mark.parametrize("cache", ["entity", "tensor"])
def test_cached_answers_of_the_old_variant_are_not_given_and_are_there_again_after_a_rollback(
    tmp_path: Path, cache: str
) -> None:
    async def test(bench: Bench) -> None:
        async def ask() -> tuple[float, str]:
            reply = await bench.client.post("/predict/m", {"entities": [{"id": 1}]})
            return reply.json["predictions"][0]["y"], reply.headers["x-tailcut-cache"]

        assert [await ask(), await ask()] == [(11.0, "miss"), (11.0, "hit")]
        await bench.promote(2.0)
        assert [await ask(), await ask()] == [(22.0, "miss"), (22.0, "hit")]
        bench.promotions.registry.rollback("m")
        await bench.follower.look()
        assert await ask() == (11.0, "hit")

    other = {"entity": "tensor", "tensor": "entity"}[cache]
    serve(
        tmp_path,
        test,
        f"cache.{cache}.enabled=true",
        f"cache.{other}.enabled=false",
        'cache.entity.ttl="1h"',
        'cache.tensor.ttl="1h"',
        features=True,
    )


def test_a_version_that_a_client_names_is_that_version_or_nothing(tmp_path: Path) -> None:
    async def test(bench: Bench) -> None:
        first = (await bench.answer())[1]
        pinned = bench.client.connect("POST", f"{MODEL}/versions/{first}/infer")
        answering = asyncio.create_task(pinned.answer())
        await asyncio.sleep(0)  # its body is not there yet
        second = await bench.promote(2.0)
        pinned.send(b'{"inputs":[{"name":"x","shape":[1,2],"datatype":"FP32","data":[1,2]}]}')
        answer = await answering
        assert answer.status == 404
        assert first in answer.json["error"]
        assert second in answer.json["hint"]
        assert (await bench.client.post(f"{MODEL}/versions/{second}/infer", GOOD)).status == 200

    serve(tmp_path, test)


def test_a_registry_that_cannot_be_read_is_told_once_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: object) -> None:
        raise ConnectionError("no route to the registry")

    async def test(bench: Bench) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(Registry, "promotion_stamp", failing)
            for _ in range(3):
                await bench.follower.look()
        assert (await bench.answer())[0] == 1.0
        assert len([record for record in caplog.records if "no route" in record.getMessage()]) == 1
        version = await bench.promote(2.0)
        assert await bench.answer() == (2.0, version)

    serve(tmp_path, test)


@pytest.mark.parametrize("override", ['serve.follow="0s"', 'serve.variant="onnx"'])
def test_nothing_is_followed_where_that_is_off_or_a_variant_is_named(tmp_path: Path, override: str) -> None:
    async def test(bench: Bench) -> None:
        assert bench.client.app.engine.follower is None
        assert await bench.metric("tailcut_switches_total") == {}

    serve(tmp_path, test, override)


def test_what_is_promoted_while_the_deployment_loads_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = deployment(tmp_path, overrides=[NEVER])
    promotions = Promotions(manifest)
    promotions.promote(promotions.add(1.0))
    find = deployment_loader.find_variant

    def found(given: Manifest) -> Any:
        variant = find(given)
        promotions.promote(promotions.add(2.0))
        return variant

    monkeypatch.setattr(deployment_loader, "find_variant", found)

    async def main() -> None:
        async with running(manifest) as client:
            bench = Bench(client, promotions)
            assert (await bench.answer())[0] == 1.0
            await bench.follower.look()
            assert (await bench.answer())[0] == 2.0

    asyncio.run(main())


def test_it_says_at_start_where_the_speed_was_measured_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Registry, "trust", lambda *_: Trust(level="remeasure", reason="cores: 8 there, 2 here"))

    async def test(bench: Bench) -> None:
        assert (await bench.answer())[0] == 1.0

    serve(tmp_path, test)
    told = [record.getMessage() for record in caplog.records if "measured on another machine" in record.getMessage()]
    assert len(told) == 1
    assert "cores: 8 there, 2 here" in told[0]


def test_a_runtime_that_raises_anything_at_all_leaves_the_old_one_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(bench: Bench) -> None:
        stub = StubRuntime()
        for error in (SystemExit(3), MemoryError("no memory"), InferenceError("broken")):
            faulty = FaultyRuntime(stub)
            faulty.fail(error, times=1000)
            with monkeypatch.context() as patch:
                patch.setattr(variant_loader, "open_runtime", lambda *_, faulty=faulty, **__: faulty)
                await bench.promote(2.0 + bench.follower.failures)
            assert stub.closed
            stub.closed = False
        assert bench.follower.failures == 3
        assert (await bench.answer())[0] == 1.0

    serve(tmp_path, test)


def test_the_loader_is_the_only_thread_that_gives_way() -> None:
    """What a runtime starts while it is loaded has the usual priority afterwards."""
    if sys.platform != "linux":
        pytest.skip("priorities of threads are Linux's")
    ids: list[int] = []
    started, ended = threading.Event(), threading.Event()

    def pool() -> None:
        ids.append(threading.get_native_id())
        started.set()
        ended.wait(20)

    def load() -> int:
        threading.Thread(target=pool, daemon=True).start()
        assert started.wait(20)
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    async def main() -> None:
        usual = os.getpriority(os.PRIO_PROCESS, 0)
        interval_s = sys.getswitchinterval()
        inside = await in_background(load, lambda _: None)
        assert inside >= usual
        assert os.getpriority(os.PRIO_PROCESS, ids[0]) == usual
        assert sys.getswitchinterval() == interval_s
        assert os.getpriority(os.PRIO_PROCESS, 0) == usual
        ended.set()

    asyncio.run(main())


def test_what_arrives_as_its_task_is_cancelled_is_closed_beside_the_event_loop() -> None:
    """Seen by reading before: lost unclosed; and where it was closed, the loop stood still for as long."""
    dropped: list[str] = []
    began, answered, ended = threading.Event(), threading.Event(), threading.Event()

    def drop(result: str) -> None:
        began.set()
        if answered.wait(20):  # nobody answers while the event loop waits here
            dropped.append(result)
        ended.set()

    async def main(*, late: bool) -> None:
        loop = asyncio.get_running_loop()
        usual = loop.call_soon_threadsafe
        began.clear(), answered.clear(), ended.clear()

        def cancelling(callback: Callable[..., object], *given: object) -> None:
            steps = [lambda: callback(*given), task.cancel]
            usual(lambda: [step() for step in (steps if late else reversed(steps))])

        loop.call_soon_threadsafe = cancelling  # type: ignore[assignment, method-assign]
        task = asyncio.create_task(in_background(lambda: f"late {late}", drop))
        with pytest.raises(asyncio.CancelledError):
            await task
        loop.call_soon_threadsafe = usual  # type: ignore[method-assign]
        assert await asyncio.to_thread(began.wait, 20)
        answered.set()
        assert await asyncio.to_thread(ended.wait, 20)

    asyncio.run(main(late=True))
    asyncio.run(main(late=False))
    assert dropped == ["late True", "late False"]
