"""The variant to serve beside what stands in for it: how it is warmed up, and what happens where that fails."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import INFER, Client, counters
from tests.promotion_kit import deployment
from tests.unit.serving.test_fallback_variant import ONE, VALUES, add, answered_by, serve
from tests.wait_kit import until

from tailcut.common.tensors import Arrays
from tailcut.errors import ArtifactError, NotReady, StartError
from tailcut.models import variant_loader
from tailcut.models.runtimes import Runtime, open_runtime
from tailcut.models.warm_up import WARM_UP_RUNS
from tailcut.registry import Registry
from tailcut.serving import deployment_loader, promotion
from tailcut.transport.asgi import ASGIApplication


class Watched:
    """Says whether it was closed."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self.run = runtime.run
        self.closed = threading.Event()

    def close(self) -> None:
        assert not self.closed.is_set(), "closed twice"
        self.closed.set()
        self._runtime.close()


class Opener:
    """Opens runtimes; the variant "slow" waits for ``may_open``, and fails while ``is_broken``."""

    def __init__(self) -> None:
        self.may_open = threading.Event()
        self.is_broken = False
        self.tries = 0
        self.opened: dict[str, list[Watched]] = {name: [] for name in VALUES}

    def __call__(self, variant: Any, **options: Any) -> Runtime:
        if variant.name == "slow":
            self.tries += 1
            assert self.may_open.wait(20)
            if self.is_broken:
                raise ArtifactError("slow cannot be opened")
        runtime = Watched(open_runtime(variant, **options))
        self.opened[variant.name].append(runtime)
        return runtime


@pytest.fixture
def opener(monkeypatch: pytest.MonkeyPatch) -> Opener:
    found = Opener()
    monkeypatch.setattr(variant_loader, "open_runtime", found)
    return found


async def variant(client: Client) -> str:
    answer = await client.post(INFER, ONE)
    assert answer.status == 200
    return answer.headers["x-tailcut-variant"]


class Disturbed:
    """As quick as its model once in as many calls as a warm-up makes of a batch size; others take the processor."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._calls = 0

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        self._calls += 1
        if self._calls % WARM_UP_RUNS:
            time.sleep(0.003)  # takes time: others have the processor
        return self._runtime.run(inputs, outputs)

    def close(self) -> None:
        self._runtime.close()


def test_what_loads_beside_its_fallback_is_judged_by_its_least_disturbed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(variant: Any, **options: Any) -> Runtime:
        runtime = open_runtime(variant, **options)
        return Disturbed(runtime) if variant.name == "slow" else runtime

    async def test(client: Client) -> None:
        await answered_by(client, "slow")
        config = (await client.get("/v2/models/m/config")).json
        assert config["parameters"]["executor"] == {"string_value": "inline"}

    monkeypatch.setattr(variant_loader, "open_runtime", opened)
    serve(tmp_path, test, '["fast"]', pool="{executors=1}")


@pytest.mark.parametrize(
    ("named", "says"),
    [("slow", "serve.variant = 'slow' cannot be served"), ("promoted", "the promoted variant cannot be")],
)
def test_what_nobody_follows_is_tried_again_too(
    tmp_path: Path,
    opener: Opener,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    named: str,
    says: str,
) -> None:
    opener.may_open.set()
    opener.is_broken = True

    async def test(client: Client) -> None:
        assert client.app.engine.follower is None
        await until(lambda: opener.tries > 2)
        assert await variant(client) == "fast"
        for path in ("/v2/models/m", "/v2/health/ready"):
            said = (await client.get(path)).json["promotion"]
            assert (said["state"], said["error"]) == ("failed", "slow cannot be opened")
        assert (await counters(client, "tailcut_switch_failed"))[()] == 1.0
        opener.is_broken = False
        await answered_by(client, "slow")
        assert "promotion" not in (await client.get("/v2/models/m")).json
        assert (await counters(client, "tailcut_switch_failed"))[()] == 0.0
        assert client.app.engine.opened.fallback is not None

    monkeypatch.setattr(promotion, "_RETRY_S", 0.02)
    serve(tmp_path, test, '["fast"]', named=named, follow="0s")
    assert says in caplog.text


@pytest.mark.parametrize("chosen", ["fast", "spare"])
def test_what_a_client_chose_is_not_replaced_by_what_is_tried_again(
    tmp_path: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch, chosen: str
) -> None:
    opener.may_open.set()
    opener.is_broken = True

    async def test(client: Client) -> None:
        engine = client.app.engine
        await until(lambda: opener.tries > 1)
        await engine.repository.load(variant=chosen)
        assert await variant(client) == chosen
        opener.is_broken = False
        assert engine.fallbacks._relieving is not None
        await asyncio.wait({engine.fallbacks._relieving}, timeout=10)
        assert await variant(client) == chosen
        assert engine.notices == {}

    monkeypatch.setattr(promotion, "_RETRY_S", 0.02)
    serve(tmp_path, test, '["fast"]', named="slow")


def test_a_first_load_that_hangs_holds_up_no_promotion(tmp_path: Path, opener: Opener) -> None:
    async def test(client: Client) -> None:
        engine = client.app.engine
        assert await variant(client) == "fast"
        assert engine.notices == {"promotion": {"state": "loading"}}
        Registry.of(engine.manifest).promote("m", engine.opened.variant.version, "spare")
        await answered_by(client, "spare")
        opener.may_open.set()
        await until(lambda: opener.opened["slow"])
        await until(opener.opened["slow"][0].closed.is_set)
        assert await variant(client) == "spare"

    serve(tmp_path, test, '["fast"]', follow="50ms")


def test_a_load_while_another_variant_stands_in_opens_nothing_twice(tmp_path: Path, opener: Opener) -> None:
    async def test(client: Client) -> None:
        repository = client.app.engine.repository
        assert await variant(client) == "fast"
        load = asyncio.create_task(repository.load())
        await asyncio.sleep(0)
        opener.may_open.set()
        async with asyncio.timeout(10):
            await load
        assert await variant(client) == "slow"
        await repository.load(variant="slow")
        assert len(opener.opened["slow"]) == 1
        assert (await counters(client, "tailcut_variants_retiring"))[()] == 0.0

    serve(tmp_path, test, '["fast"]', named="slow")


def test_a_load_of_something_else_does_not_wait_for_what_loads(tmp_path: Path, opener: Opener) -> None:
    async def test(client: Client) -> None:
        assert await variant(client) == "fast"
        async with asyncio.timeout(10):
            await client.app.engine.repository.load(variant="spare")
        assert await variant(client) == "spare"
        assert client.app.engine.notices == {}
        opener.may_open.set()

    serve(tmp_path, test, '["fast"]', named="slow")


def test_a_load_that_waits_for_what_loads_ends_with_the_server(tmp_path: Path, opener: Opener) -> None:
    async def test(client: Client) -> None:
        assert await variant(client) == "fast"
        load = asyncio.create_task(client.app.engine.repository.load())
        await asyncio.sleep(0)
        await client.app.stop()
        with pytest.raises(NotReady, match="stopped"):
            async with asyncio.timeout(10):
                await load
        opener.may_open.set()

    serve(tmp_path, test, '["fast"]', named="slow")


def fails(tmp_path: Path, test: Callable[[ASGIApplication], Any]) -> None:
    manifest = deployment(tmp_path, overrides=['serve.fallback=["fast"]', 'pool={executor="thread", executors=1}'])
    add(manifest)
    asyncio.run(test(ASGIApplication(manifest)))


def test_a_start_that_fails_closes_what_it_opened(
    tmp_path: Path, opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(*_: Any) -> Any:
        opener.may_open.set()  # only the one that stands in is open so far
        await until(lambda: opener.opened["slow"] and not loading())
        raise StartError("the store is away")

    async def test(app: ASGIApplication) -> None:
        with pytest.raises(StartError, match="the store is away"):
            await app.start()
        for name in ("fast", "slow"):
            (runtime,) = opener.opened[name]
            await until(runtime.closed.is_set)
        await app.stop()

    monkeypatch.setattr(deployment_loader, "open_features", refuse)
    fails(tmp_path, test)


def test_a_stop_that_comes_while_the_server_starts_closes_what_is_opened_last(tmp_path: Path, opener: Opener) -> None:
    async def test(app: ASGIApplication) -> None:
        start = asyncio.create_task(app.start())
        await asyncio.sleep(0)
        app.engine.drain()
        async with asyncio.timeout(20):
            await start
        opener.may_open.set()
        await until(lambda: opener.opened["slow"] and not loading())
        await app.stop()
        for name in ("fast", "slow"):
            (runtime,) = opener.opened[name]
            await until(runtime.closed.is_set)

    fails(tmp_path, test)


def loading() -> bool:
    return any(thread.name == "tailcut-loader" for thread in threading.enumerate())
