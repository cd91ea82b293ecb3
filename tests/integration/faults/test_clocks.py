"""Wall clocks jump, by NTP or by hand: deadlines, queues, caches and the pool do not notice."""

from __future__ import annotations

import ast
import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.app_kit import FEATURES, INFER
from tests.integration.faults.kit import counted, outcomes
from tests.integration.serving import Served, as_bytes, connected

ROOT = Path(__file__).parents[3]
PACKAGES = (
    "cache", "common", "features", "models", "observe", "pipeline", "protocol", "scheduler", "serving", "store",
    "transport",
)  # fmt: skip
WALL_CLOCKS = {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "time.strftime", "time.ctime"}
WALL_METHODS = {"now", "utcnow", "today"}
MAY_READ = {
    "features/feature_service.py": "the age of what other servers wrote to Redis, and :now of queries",
    "features/key_types.py": "no clock: keys that are dates are read from text",
    "features/sources/postgres.py": "no clock: columns that are dates have these types",
    "observe/alerts/evaluator.py": "which minutes of the history to look at, and since when an alarm stands",
    "observe/alerts/webhook.py": "the signed time of a message",
    "observe/drift_sink.py": "since when a column has been different",
    "observe/history_recorder.py": "the minute that rows belong to",
    "pipeline/shared_cache.py": "the age of what other servers wrote to Redis",
    "observe/request_log/record.py": "no clock: times are written for people",
    "observe/request_log/sink.py": "the time of arrivals: read once, when the log is opened; and names of files",
    "observe/live/live.py": "the time of a snapshot, for people",
    "observe/traces/sink.py": "the time of spans: read once for a trace, as a difference to the clock of the timings",
    "serving/observation.py": "which kept requests are of the last minutes",
    "protocol/access_log.py": "the time of a line",
    "serving/engine.py": "when the last request was, as Triton shows it",
    "transport/http1/connection.py": "the Date of a reply",
}
JUMP_S = 86_400 * 365
SITE = """
import os, time
real = time.time
real_ns = time.time_ns
def offset_s():
    try:
        with open(os.environ["FAULTS_CLOCK"]) as file:
            return float(file.read() or 0)
    except (KeyError, OSError):
        return 0.0
time.time = lambda: real() + offset_s()
time.time_ns = lambda: real_ns() + int(offset_s() * 1e9)
"""


def wall_clock_readers() -> Iterator[tuple[str, str]]:
    """(file, what it reads) for every name of a wall clock in the packages that serve."""
    for package in PACKAGES:
        for path in sorted((ROOT / "src" / "tailcut" / package).rglob("*.py")):
            name = path.relative_to(ROOT / "src" / "tailcut").as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    reads = [f"{node.module}.{alias.name}" for alias in node.names]
                elif isinstance(node, ast.Attribute):
                    whole = ast.unparse(node)
                    reads = [whole if node.attr not in WALL_METHODS or "date" not in whole else "datetime.datetime"]
                else:
                    continue
                for read in reads:
                    if read in WALL_CLOCKS or read in {"datetime.datetime", "datetime.date"}:
                        yield name, read


def test_only_what_tells_people_or_other_servers_the_time_reads_a_wall_clock() -> None:
    assert all((ROOT / "src" / "tailcut" / package).is_dir() for package in PACKAGES)
    assert {name for name, _ in wall_clock_readers()} == set(MAY_READ)


@pytest.mark.integration
@pytest.mark.parametrize("jump_s", [JUMP_S, -JUMP_S], ids=["forwards", "backwards"])
def test_a_jump_of_the_wall_clock_changes_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: float
) -> None:
    """In the middle of requests, of cached values' lives and of deadlines."""
    clock, site = tmp_path / "clock", tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(SITE)
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("FAULTS_CLOCK", str(clock))
    (tmp_path / "app").mkdir()

    async def main(server: Served) -> None:
        def last_ms() -> float:
            return float(server.get("/v2/models/m/stats")[1]["model_stats"][0]["last_inference"])

        async with connected(server.port) as wire:
            assert (await wire.ask(as_bytes({"entities": [1]}, "/predict/m")))[0] == 200
            before_ms = await asyncio.to_thread(last_ms)
            clock.write_text(str(jump_s))
            for _ in range(50):
                status, headers, _ = await wire.ask(as_bytes({"entities": [1]}, "/predict/m"))
                assert (status, headers["x-tailcut-cache"]) == (200, "hit")
                assert (await wire.ask(as_bytes()))[0] == 200
            after_ms = await asyncio.to_thread(last_ms)
            assert abs(after_ms - before_ms - jump_s * 1e3) < 60e3, "the jump reached the server"
            # A deadline that passes does so when its time is over, not a year later and not at once.
            began_s = time.monotonic()
            head = f"POST {INFER} HTTP/1.1\r\nhost: h\r\nx-tailcut-timeout-ms: 200\r\ncontent-length: 9\r\n\r\n"
            assert (await wire.ask(head.encode()))[0] == 408
            assert 0.2 <= time.monotonic() - began_s < 5
        assert counted(server, "tailcut_feature_source_calls_total") == 1
        assert set(outcomes(server)) == {"ok", "request_timeout"}

    with Served(tmp_path / "app", FEATURES) as server:
        asyncio.run(asyncio.wait_for(main(server), 40))
