"""A server under load for some seconds: neither memory nor files grow.

In ``make test-all`` half a minute at 70 % of capacity; ``benchmarks.soak`` has half an hour of it.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path

import numpy as np
import pytest
from tests.app_kit import FEATURES, GOOD, INFER
from tests.integration.faults.kit import executors, open_files
from tests.integration.serving import HOST, Served, as_bytes, connected
from tests.scale import sized

from tailcut.load import LoadPlan, measure

pytestmark = pytest.mark.integration

SHARE = sized(0.5, 0.7)
"""Of its capacity. In ``make test`` other servers may take half of the machine after that was measured."""
CLIENTS = 8
LEGS, LEG_S, WARM = 8, sized(0.7, 3.0), 3
REST_S = sized(0.2, 0.5)
"""After a leg, for the server to see that its clients are gone."""
GROWTH = 0.02
"""Of the memory after the warm-up: some two megabytes, where thousands of requests come."""


async def capacity(port: int, seconds: float) -> float:
    """Ask as fast as answers come; return how many came per second."""

    async def ask(clients: AsyncExitStack) -> int:
        wire = await clients.enter_async_context(connected(port))
        answered = 0
        while time.monotonic() < until_s:
            status, _, _ = await wire.ask(request)
            answered += status == 200
        return answered

    request = as_bytes(GOOD)
    until_s = time.monotonic() + seconds
    async with AsyncExitStack() as clients:
        return sum(await asyncio.gather(*[ask(clients) for _ in range(CLIENTS)])) / seconds


def rss_bytes(server: Served) -> int:
    """Resident memory of the worker and of its executors' processes."""
    pids = [server.worker_pid, *executors(server)]
    pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("kind", ["inline", pytest.param("process", marks=pytest.mark.whole)])
def test_memory_and_files_do_not_grow(tmp_path: Path, kind: str) -> None:
    bodies = tmp_path / "bodies.jsonl"
    bodies.write_text(json.dumps(GOOD) + "\n")
    settings = (f"pool.executor={kind}", "pool.executors=1", "slo.timeout=5s")
    with Served(tmp_path, FEATURES, settings=settings) as server:
        rate = SHARE * asyncio.run(capacity(server.port, sized(1.0, 2.0)))
        held: list[int] = []
        files: list[int] = []
        for leg in range(LEGS):
            samples, _ = measure(
                LoadPlan(
                    url=f"http://{HOST}:{server.port}{INFER}",
                    rate=rate,
                    duration_s=LEG_S,
                    warmup_s=0.0,
                    payloads=str(bodies),
                    timeout_s=10.0,
                    connections=CLIENTS,
                    seed=leg,
                )
            )
            assert np.mean(samples.status == 200) > 0.99
            time.sleep(REST_S)
            held.append(rss_bytes(server))
            files.append(open_files(server))
        said = f"{rate:.0f} requests/s; MiB {[round(each / 2**20, 2) for each in held]}; files {files}"
        assert held[-1] < (1 + GROWTH) * held[WARM - 1], said
        assert max(files[WARM:]) <= max(files[:WARM]), said
        assert "Traceback" not in server.log
