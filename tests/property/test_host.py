"""Whatever is done to the models of a host at once: each request ends once, on one version, and nothing stays open."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.app_kit import GOOD, Answer, Connection
from tests.host_kit import HostClient, Runtimes, host_of
from tests.promotion_kit import Promotions, deployment
from tests.wait_kit import until

from tailcut.errors import NotReady
from tailcut.registry import Version

MODELS = ("a", "b")
FACTORS = (1.0, 2.0, 3.0)
OVERRIDES = (
    "pool.executor=thread",
    "pool.executors=1",
    "slo.timeout=20s",
    "server.kill=30s",
    "serve.follow=10ms",
    "batching.max_queue_rows=64",
)

_models = st.sampled_from(MODELS)
_acts = st.one_of(
    st.tuples(st.sampled_from(("ask", "leave", "load", "unload", "pin", "replace")), _models),
    st.tuples(st.sampled_from(("hold", "let", "release")), _models),
    st.tuples(st.just("promote"), _models, st.sampled_from(range(len(FACTORS)))),
    st.tuples(st.just("pass"), st.integers(0, 30)),
    st.tuples(st.sampled_from(("settle", "look")), _models),
    st.just(("index",)),
)
_plans = st.lists(_acts, min_size=5, max_size=40)


class Folder(NamedTuple):
    """Two models, each with a version per factor."""

    path: Path
    promotions: dict[str, Promotions]
    versions: dict[str, list[Version]]

    @property
    def factors(self) -> dict[str, float]:
        return {
            version.id: factor
            for versions in self.versions.values()
            for version, factor in zip(versions, FACTORS, strict=True)
        }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Folder:
    path = tmp_path_factory.mktemp("models")
    promotions = {name: Promotions(deployment(path / name, name=name)) for name in MODELS}
    versions = {name: [each.add(factor) for factor in FACTORS] for name, each in promotions.items()}
    return Folder(path, promotions, versions)


@pytest.fixture
def runtimes(folder: Folder) -> Iterator[Runtimes]:
    with pytest.MonkeyPatch.context() as patched:
        yield Runtimes(patched)


class Asked(NamedTuple):
    """A request that was sent."""

    model: str
    state: str
    connection: Connection
    task: asyncio.Task[Answer]


class Driver:
    """Does what a plan says to a host, and checks after each act that the host does not contradict itself."""

    def __init__(self, client: HostClient, folder: Folder, runtimes: Runtimes) -> None:
        self.client = client
        self.host = client.host
        self.folder = folder
        self.runtimes = runtimes
        self.asked: list[Asked] = []
        self.left: set[int] = set()
        self.managing: list[asyncio.Task[Any]] = []
        self.refused: list[tuple[str, str]] = []
        self.last_word: dict[str, str] = {}
        self._held: set[str] = set()

    async def act(self, what: str, *more: Any) -> None:
        """Do one thing; later ones may come before it has ended."""
        await getattr(self, f"_{what}")(*more)
        self.check()

    def check(self) -> None:
        """Compare what the host says of its models with what it has."""
        for name, engine in self.host.engines.items():
            found = self.host.readiness()["models"][name]
            assert found["state"] == engine.state
            assert found["ready"] == engine.is_ready
            if engine.state == "ready":
                assert engine.is_loaded
            if engine.state in {"unloaded", "failed", "loading"}:
                assert not engine.is_loaded
                assert not engine.is_ready
            assert ("reason" in found) == (engine.state == "failed")

    async def end(self) -> None:
        """Let everything go that is held, and stop."""
        for name in MODELS:
            await self._let(name)
            await self._release(name)
        await asyncio.gather(*self.managing)
        await asyncio.gather(*(each.task for each in self.asked), return_exceptions=True)

    def verdicts(self) -> None:
        """Check how requests ended, after all have."""
        wrong = [said for said, state in self.refused if "unloaded" not in said and state != "draining"]
        assert wrong == []
        sent = dict.fromkeys(MODELS, 0)
        for number, asked in enumerate(self.asked):
            sent[asked.model] += 1
            self._verdict(asked, left=number in self.left)
        for name, engine in self.host.engines.items():
            if self.host.state != "draining":
                assert engine.state == ("unloaded" if self.last_word.get(name) == "unload" else "ready")
            assert engine.in_flight == {}
            assert sum(engine.recorder.requests.values()) == sent[name], "each request ends once"

    def _verdict(self, asked: Asked, *, left: bool) -> None:
        reply = asked.task.result()
        assert reply.headers["x-tailcut-variant"] == "onnx" or asked.state != "ready"
        if reply.status == 200:
            assert asked.state == "ready"
            version = reply.headers["x-tailcut-version"]
            assert version in {each.id for each in self.folder.versions[asked.model]}
            assert reply.json["model_version"] == version
            factor = self.folder.factors[version]
            assert reply.json["outputs"][0]["data"] == [3.0 * factor, 7.0 * factor]
        elif left and asked.state == "ready":
            assert reply.json["code"] == "client_gone", reply.body
        else:
            assert (reply.status, reply.json["code"]) == (503, "not_ready"), reply.body
            assert asked.state != "ready", "what was ready answers what it admitted"

    # -- Acts ----------------------------------------------------------------------------------------------------------

    async def _ask(self, name: str) -> None:
        connection = self.client.connect("POST", f"/v2/models/{name}/infer")
        connection.send(_BODY)
        state = self.host.engine(name).state
        self.asked.append(Asked(name, state, connection, asyncio.ensure_future(connection.answer())))
        await asyncio.sleep(0)  # it is admitted in its first turn, or refused

    async def _leave(self, name: str) -> None:
        open_ = [n for n, each in enumerate(self.asked) if each.model == name and not each.task.done()]
        if open_:
            self.left.add(open_[-1])
            self.asked[open_[-1]].connection.disconnect()

    async def _load(self, name: str) -> None:
        async def load() -> None:
            try:
                await self.host.load(name)
            except NotReady as error:
                self.refused.append((error.message, self.host.state))

        self.managing.append(asyncio.ensure_future(load()))
        self.last_word[name] = "load"
        await asyncio.sleep(0)  # it is asked for in its first turn

    async def _unload(self, name: str) -> None:
        self.host.unload(name)
        self.last_word[name] = "unload"

    async def _hold(self, name: str) -> None:
        if name not in self._held:
            self._held.add(name)
            self.runtimes.hold(name)

    async def _let(self, name: str) -> None:
        if name in self._held:
            self._held.discard(name)
            self.runtimes.let(name)

    async def _pin(self, name: str) -> None:
        """Have a request stay for a while, and all behind it."""
        for fake in self.runtimes.opened.get(name, []):
            if not fake.closed:
                fake.hang()
        await self._ask(name)

    async def _replace(self, name: str) -> None:
        """Unload a model and have two clients load it again at once."""
        await self._unload(name)
        await self._load(name)
        await self._load(name)

    async def _release(self, name: str) -> None:
        for fake in self.runtimes.opened.get(name, []):
            fake.release()

    async def _promote(self, name: str, number: int) -> None:
        self.folder.promotions[name].promote(self.folder.versions[name][number])

    async def _pass(self, milliseconds: int) -> None:
        """Give the threads that load time to get on."""
        await asyncio.sleep(milliseconds / 1000)

    async def _settle(self, name: str) -> None:
        if name in self._held:
            return
        await self._release(name)
        engine = self.host.engine(name)
        await until(lambda: engine.state != "loading")

    async def _look(self, name: str) -> None:
        """Wait until a promotion is noticed, where there is one and the model follows."""
        engine = self.host.engine(name)
        wanted = self.folder.promotions[name].registry.promotion(name)
        if engine.follower is None or wanted is None:
            return
        begun = self.runtimes.entered.count(name)

        def noticed() -> bool:
            served = engine.opened.variant.version if engine.is_loaded else ""
            opening = self.runtimes.entered.count(name) > begun or name in self.runtimes.waiting
            return served == wanted.version or opening or engine.follower is None

        await until(noticed)

    async def _index(self) -> None:
        listed = await self.client.index()
        assert set(listed) == set(MODELS)


_BODY = json.dumps(GOOD).encode()


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(plan=[("pin", "a"), ("replace", "a"), ("pass", 30), ("release", "a")], drains=False)
@example(plan=[("promote", "a", 1), ("hold", "a"), ("look", "a"), ("unload", "a"), ("let", "a")], drains=False)
@example(plan=[("pin", "a"), ("promote", "a", 1), ("look", "a"), ("pass", 30), ("unload", "a")], drains=False)
@example(plan=[("hold", "a"), ("promote", "a", 1), ("pass", 30), ("look", "a"), ("let", "a")], drains=False)
@example(plan=[("pin", "b"), ("unload", "b"), ("load", "b"), ("pass", 30)], drains=True)
@example(plan=[("pin", "b"), ("replace", "b"), ("pass", 30), ("unload", "b")], drains=False)
@given(plan=_plans, drains=st.booleans())
def test_every_request_ends_once_and_nothing_stays_open(
    folder: Folder, runtimes: Runtimes, plan: list[tuple[Any, ...]], drains: bool
) -> None:
    """Loads, unloads, promotions, requests that leave, hung executors and slow starts, in any order."""

    async def main() -> None:
        client = host_of(folder.path, overrides=OVERRIDES)
        await client.app.start()
        driver = Driver(client, folder, runtimes)
        try:
            for act in plan:
                await driver.act(*act)
            if drains:
                client.host.drain()
                assert not client.host.is_ready
            await driver.end()
            driver.verdicts()
        finally:
            async with asyncio.timeout(30):
                await client.app.stop()
        await until(lambda: runtimes.open_now == {})

    runtimes.opened.clear()
    runtimes.factors = folder.factors
    for name, promotions in folder.promotions.items():
        promotions.promote(folder.versions[name][0])
    asyncio.run(main())
