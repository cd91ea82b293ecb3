"""Promotions under load: a real server, 200 requests a second, and not one of them fails or is answered wrongly."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import pytest
from tests.app_kit import GOOD, samples
from tests.integration.serving import Served, Wire, as_bytes
from tests.promotion_kit import Promotions, deployment
from tests.scale import sized

pytestmark = pytest.mark.integration

RATE = 200.0
CONNECTIONS = 8
REQUEST = as_bytes(GOOD)
FOLLOW = 'serve.follow="50ms"'
PATIENT = 'slo.timeout="10s"'  # how fast it is, on a machine that others use, is not the question here


@contextmanager
def served(directory: Path, *settings: str, size: int = 1) -> Iterator[tuple[Served, Promotions]]:
    """A server of version 1.0, and the registry that it follows."""
    promotions = Promotions(deployment(directory))
    promotions.promote(promotions.add(1.0, size=size))
    with Served(directory, settings=(FOLLOW, PATIENT, *settings), prepared=True) as server:
        yield server, promotions


class Traffic:
    """Requests in an even rhythm, each due at its own time; counts every answer by what it said.

    A client that is told to close its connection goes elsewhere, as a load balancer sends it.
    """

    def __init__(self, port: int) -> None:
        self.factors: Counter[float] = Counter()
        self.wrong: list[object] = []
        self._told = 0
        self._port = port
        self._ended = asyncio.Event()

    @property
    def answered(self) -> int:
        return sum(self.factors.values())

    async def run(self, until: Callable[[], Awaitable[None]]) -> None:
        """Send until ``until`` has ended."""
        tasks = [asyncio.create_task(self._send(n)) for n in range(CONNECTIONS)]
        try:
            await until()
        finally:
            self._ended.set()
            await asyncio.gather(*tasks)

    async def reach(self, count: int) -> None:
        """Wait until so many more were answered."""
        wanted = self.answered + count
        async with asyncio.timeout(60):
            while self.answered < wanted:
                await asyncio.sleep(0.005)

    async def gone(self) -> None:
        """Wait until every client was told to close its connection."""
        async with asyncio.timeout(60):
            while self._told < CONNECTIONS:
                await asyncio.sleep(0.005)

    async def _send(self, number: int) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + number / RATE
        wire: Wire | None = None
        while not self._ended.is_set():
            await asyncio.sleep(max(due_s - loop.time(), 0))
            due_s += CONNECTIONS / RATE
            try:
                wire = wire or await Wire.open(self._port)
                status, headers, body = await wire.ask(REQUEST)
            except (OSError, asyncio.IncompleteReadError) as error:
                self.wrong.append(error)
                wire = None
                continue
            self._count(status, headers, body)
            if headers.get("connection") == "close":
                self._told += 1
                break
        if wire is not None:
            await wire.close()

    def _count(self, status: int, headers: dict[str, str], body: bytes) -> None:
        reply = json.loads(body)
        if status != 200 or reply["model_version"] != headers["x-tailcut-version"]:
            self.wrong.append((status, reply))
            return
        y, z = (output["data"] for output in reply["outputs"])
        factor = y[0] / 3.0
        if y != [3 * factor, 7 * factor] or z != [factor * n for n in (1, 2, 3, 4)]:
            self.wrong.append(reply)  # half of it by one version, half by another
        self.factors[factor] += 1


async def serves(server: Served, version: str) -> None:
    """Wait until the metadata name a version."""
    async with asyncio.timeout(30):
        while (await asyncio.to_thread(server.get, "/v2/models/m"))[1]["versions"] != [version]:
            await asyncio.sleep(0.01)


def switches(server: Served) -> dict[tuple[str, ...], float]:
    return samples(server.metrics(), "tailcut_switches_total")


def test_promotions_and_rollbacks_under_load_fail_no_request(tmp_path: Path) -> None:
    with served(tmp_path) as (server, promotions):
        versions = {factor: promotions.add(factor) for factor in (1.0, 2.0)}
        traffic = Traffic(server.port)

        async def operate() -> None:
            await traffic.reach(50)
            for _ in range(2):
                await asyncio.to_thread(promotions.promote, versions[2.0])
                await serves(server, versions[2.0].id)
                before = traffic.factors[1.0]
                await traffic.reach(50)
                assert traffic.factors[1.0] <= before + CONNECTIONS, "those under way at most"
                await asyncio.to_thread(promotions.registry.rollback, "m")
                await serves(server, versions[1.0].id)
                await traffic.reach(50)

        asyncio.run(traffic.run(operate))
        assert traffic.wrong == []
        assert set(traffic.factors) == {1.0, 2.0}
        assert switches(server) == {("done",): 4, ("failed",): 0}
        assert server.log.count("switched to variant onnx") == 4


def corrupt_promotion(promotions: Promotions) -> Callable[[], object]:
    """Damage an artifact; return what promotes it all the same, as the registry itself would refuse to."""
    bad = promotions.add(2.0)
    pointer = promotions.registry.root / "models" / "m" / "promoted.json"
    good = pointer.read_bytes()
    promotions.promote(bad)
    prepared = pointer.with_suffix(".bad")
    pointer.rename(prepared)
    pointer.write_bytes(good)
    file = promotions.artifact(bad)
    file.chmod(0o644)
    raw = bytearray(file.read_bytes())
    raw[len(raw) // 2] ^= 1
    file.write_bytes(raw)
    return lambda: prepared.replace(pointer)


def test_a_corrupt_promotion_leaves_the_old_version_serving(tmp_path: Path) -> None:
    promotions = Promotions(deployment(tmp_path))
    promotions.promote(promotions.add(1.0))
    damage = corrupt_promotion(promotions)
    with Served(tmp_path, settings=(FOLLOW,), prepared=True) as server:
        traffic = Traffic(server.port)

        async def operate() -> None:
            await traffic.reach(20)
            damage()
            await asyncio.to_thread(server.wait_until, lambda: "failed" in str(server.get("/v2/health/ready")[1]))
            assert (await asyncio.to_thread(server.get, "/v2/health/ready"))[0] == 200
            await traffic.reach(50)
            good = promotions.add(3.0)
            promotions.promote(good)
            await serves(server, good.id)
            await traffic.reach(20)

        asyncio.run(traffic.run(operate))
        assert traffic.wrong == []
        assert set(traffic.factors) == {1.0, 3.0}
        assert server.log.count("cannot be served") == 1
        assert switches(server) == {("done",): 1, ("failed",): 1}


def test_of_two_quick_promotions_the_last_wins(tmp_path: Path) -> None:
    with served(tmp_path) as (server, promotions):
        second, third = promotions.add(2.0), promotions.add(3.0)
        traffic = Traffic(server.port)

        async def operate() -> None:
            await traffic.reach(20)
            promotions.promote(second)
            promotions.promote(third)
            await serves(server, third.id)
            await traffic.reach(50)

        asyncio.run(traffic.run(operate))
        assert traffic.wrong == []
        assert traffic.factors[3.0] >= 50 - CONNECTIONS


def test_sigterm_in_the_middle_of_a_switch_loses_nothing_and_exits_with_0(tmp_path: Path) -> None:
    # A model that takes a moment to load.
    with served(tmp_path, 'server.drain="60s"', 'server.kill="90s"') as (server, promotions):
        version = promotions.add(2.0, size=20_000_000)
        traffic = Traffic(server.port)

        async def operate() -> None:
            await traffic.reach(50)
            promotions.promote(version)

            def loading() -> bool:
                state = server.get("/v2/health/ready")[1].get("promotion", {}).get("state")
                return state == "loading" or bool(switches(server)[("done",)])

            await asyncio.to_thread(server.wait_until, loading)
            server.signal(signal.SIGTERM)
            await traffic.gone()  # however long that takes them here
            await asyncio.sleep(0.4)  # within 0.3 s it counts as the same signal
            server.signal(signal.SIGTERM)  # there is nobody left to drain for
            assert await asyncio.to_thread(server.wait) == 0

        asyncio.run(traffic.run(operate))
        assert traffic.wrong == []
        assert traffic.answered > 50
        assert "Traceback" not in server.log


def test_memory_does_not_grow_with_the_number_of_switches(tmp_path: Path) -> None:
    megabyte = 1 << 20
    each = sized(8, 16)
    with served(tmp_path, size=4 * megabyte) as (server, promotions):  # 16 MiB of weights
        versions = [promotions.add(2.0, size=4 * megabyte), promotions.add(3.0, size=4 * megabyte)]

        def switch(number: int) -> int:
            version = versions[number % 2]
            promotions.promote(version)
            server.wait_until(lambda: server.get("/v2/models/m")[1]["versions"] == [version.id])
            server.wait_until(lambda: samples(server.metrics(), "tailcut_variants_retiring")[()] == 0)
            return server.worker_rss_bytes

        # The allocator gives memory back late and by chance, in steps of two models' worth: one peak in a round says
        # nothing of what is kept, and where half of the time is spent below does: to some 25 MiB.
        first, _, last = ([switch(number) for number in range(each)] for _ in range(3))
        grown_mib = (median(last) - median(first)) / megabyte
        assert grown_mib < 96, "less than six of the models, of sixteen or more that came and went"
        assert switches(server)[("done",)] == 3 * each
