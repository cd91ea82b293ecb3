"""The log of a real server, line by line: JSON objects whatever writes them, and an outage that is no flood."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import deployment
from tests.integration.faults.kit import until
from tests.integration.servers import PostgresServer
from tests.integration.serving import Served, as_bytes, connected
from tests.integration.sql_kit import Postgres, postgres_database
from tests.scale import ALL

pytestmark = pytest.mark.integration

FIELDS = {"time", "level", "logger", "message", "model"}
HOOKS = """
import logging
import sys
import threading
import warnings

import numpy as np

log = logging.getLogger("risk.hooks")


def preprocess(rows):
    case = rows[0]["id"]
    if case == 1:
        log.info("a line of mine")
    if case == 2:
        warnings.warn("a warning of mine")
    if case == 3:
        print("a print to stderr", file=sys.stderr, flush=True)
        print("a print to stdout", flush=True)
    if case == 4:
        raise RuntimeError("a bug of mine")
    if case == 5:
        threading.Thread(target=lambda: 1 / 0).start()
    return {"x": np.array([[row["id"], row["value"]] for row in rows], np.float32)}
"""


def lines(text: str) -> list[dict[str, Any]]:
    """Every line, read; one that is no object with all fields fails."""
    found = [json.loads(line) for line in text.splitlines()]
    for each in found:
        assert set(each) >= FIELDS, each
        assert datetime.fromisoformat(each["time"]).utcoffset() == timedelta(0)
        assert each["model"] == "m"
    return found


def test_every_line_is_an_object_whatever_writes_it(tmp_path: Path) -> None:
    deployment(tmp_path)
    (tmp_path / "line_hooks.py").write_text(HOOKS)
    settings = [
        'server.log="json"',
        'server.access_log="stderr"',
        "server.access_log_share=0.0",
        "server.drain=300ms",
        'model.preprocess="line_hooks:preprocess"',
        'pool.executor="process"',
    ]
    with Served(tmp_path, settings=settings, prepared=True) as server:
        for case in range(6):
            body, headers = {"rows": [{"id": case, "value": 2}]}, {"x-request-id": f"case-{case}"}
            assert server.request("POST", "/predict/m", body, headers)[0] == (500 if case == 4 else 200)
        assert server.request("GET", "/nowhere")[0] == 404
        server.signal(signal.SIGHUP)
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        found = lines(server.log)
        assert "a print to stdout" in server.output
    by_logger: dict[str, list[dict[str, Any]]] = {}
    for each in found:
        by_logger.setdefault(each["logger"], []).append(each)
    (mine,), (warned,), (printed,) = by_logger["risk.hooks"], by_logger["py.warnings"], by_logger["stderr"]
    assert (mine["level"], mine["message"], mine["request_id"]) == ("info", "a line of mine", "case-1")
    assert "a warning of mine" in warned["message"]
    assert (warned["level"], warned["request_id"]) == ("warning", "case-2")
    assert printed["message"] == "a print to stderr"
    (bug,) = [each for each in by_logger["tailcut.server"] if each.get("code") == "hook_failed"]
    assert (bug["level"], bug["request_id"], bug["error_type"]) == ("error", "case-4", "RuntimeError")
    assert "a bug of mine" in bug["traceback"]
    assert [each["error_type"] for each in by_logger["python"]] == ["ZeroDivisionError"]
    access = [(each["status"], each["request_id"]) for each in by_logger["tailcut.access"] if each["status"] != 503]
    assert access[0] == (500, "case-4")
    assert access[1][0] == 404
    said = [each["message"] for each in by_logger["tailcut.server"]]
    assert [
        text for text in ("is ready on", "SIGHUP ignored", "draining for") if not any(text in s for s in said)
    ] == []


IN_EXECUTORS = """
import gc
import logging
import sys
import warnings


def collect():
    gc.collect = collected
    logging.getLogger("library").info("a line of a library")
    warnings.warn("a warning of a library")
    print("a print of a library", flush=True)


if any("runtimes.remote.child" in word for word in sys.orig_argv):
    collected, gc.collect = gc.collect, collect  # is called once the variant is open
"""


def test_executors_in_processes_of_their_own_log_as_the_server_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(IN_EXECUTORS)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "site"), os.environ.get("PYTHONPATH", "")]))
    settings = ['server.log="json"', 'pool.executor="process"', "pool.executors=1", "server.drain=100ms"]
    with Served(tmp_path, settings=settings) as server:
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        found = {each["logger"]: each for each in lines(server.log)}
    assert (found["library"]["level"], found["library"]["message"]) == ("info", "a line of a library")
    assert "a warning of a library" in found["py.warnings"]["message"]
    assert found["stderr"]["message"] == "a print of a library"


@pytest.mark.parametrize(
    ("break_it", "code"),
    [
        (lambda folder: (folder / "model.onnx").unlink(), 3),
        (lambda folder: (folder / "model.onnx").write_bytes(b"no model"), 3),
    ],
)
def test_a_start_that_fails_is_an_object_too(tmp_path: Path, break_it: Callable[[Path], object], code: int) -> None:
    deployment(tmp_path)
    break_it(tmp_path)
    with Served(tmp_path, settings=['server.log="json"'], prepared=True, wait=False) as server:
        assert server.wait() == code
        found = lines(server.log)
    assert found[-1]["level"] in {"critical", "error"}
    assert any("model.onnx" in each["message"] and "hint: " in each["message"] for each in found)


def test_a_port_that_is_taken_is_an_object_too(tmp_path: Path) -> None:
    with Served(tmp_path) as server:
        command = [sys.executable, "-m", "tailcut", "serve", "--manifest", str(tmp_path), "--port", str(server.port)]
        environment = {**os.environ, "TAILCUT_SERVER__LOG": "json"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    (found,) = lines(done.stderr)
    assert done.returncode == 3
    assert "another process uses this port; hint: stop the other process" in found["message"]


# -- Outages ---------------------------------------------------------------------------------------------------------

GROUPS = """
[features]
entity = ["id"]
refresh_ahead = {ahead}
database = "{url}"

[[features.groups]]
name = "values"
key = ["id"]
columns = ["value"]
ttl = "200ms"
stale_for = "300ms"
sql = "SELECT keys.id, value FROM keys JOIN numbers USING (id)"

[[features.groups]]
name = "others"
key = ["id"]
columns = ["other"]
ttl = "200ms"
stale_for = "300ms"
sql = "SELECT keys.id, value AS other FROM keys JOIN numbers USING (id)"
"""
TIMEOUTS = ["features.timeout=1s", "slo.timeout=3s", 'server.log="json"']


async def load(server: Served, ended: asyncio.Event, statuses: list[int]) -> None:
    """Ask for entities, one after the other, until the end."""
    async with connected(server.port) as wire:
        number = 0
        while not ended.is_set():
            number += 1
            status, _, _ = await wire.ask(as_bytes({"entities": [number % 50 + 1]}, "/predict/m"))
            statuses.append(status)
            await asyncio.sleep(0.002)


async def outage(
    server: Served, stop: Callable[[], object], start: Callable[[], object], places: int, counted: bool = True
) -> list[int]:
    """Send load while a database is stopped, until some have failed, and started again; statuses meanwhile.

    Args:
        places: sources that the log tells apart.
        counted: whether to wait until the log says how many have failed, which it does every five seconds.
    """
    ended, statuses = asyncio.Event(), list[int]()
    clients = [asyncio.create_task(load(server, ended, statuses)) for _ in range(3)]
    await until(server, lambda: statuses.count(200) > 50)
    await asyncio.to_thread(stop)
    began = len(statuses)
    await until(server, lambda: statuses[began:].count(503) > 5, 60.0)
    if counted:
        await until(server, lambda: " more in " in server.log, 60.0)
    down = statuses[began:]
    await asyncio.to_thread(start)
    await until(server, lambda: server.log.count("answers again") >= places, 60.0)
    ended.set()
    await asyncio.gather(*clients)
    return down


def check_outage(log: str, place: str, seconds: float) -> None:
    """A line at its begin and at its end for both groups, and between them a first failure and a count now and then."""
    assert "sEcret" not in log
    assert "Traceback" not in log
    found = lines(log)
    begun = [each["message"] for each in found if "cannot be reached" in each["message"]]
    assert len(begun) == 1
    assert place in begun[0]
    assert "features.database" in begun[0].rpartition(";")[2], "the way out"
    back = [each["message"] for each in found if "answers again" in each["message"]]
    assert len(back) == 1
    assert place in back[0]
    failed = [each for each in found if each.get("code") == "feature_unavailable"]
    assert 1 <= len(failed) <= 2 + seconds / 5
    assert len({each["incident"] for each in failed}) == 1
    assert all(each["request_id"] for each in failed)


@pytest.fixture(scope="module")
def database(postgres: PostgresServer) -> Iterator[Postgres]:
    with postgres_database(postgres, "log_lines") as found:
        found.run("CREATE TABLE numbers(id bigint PRIMARY KEY, value float8)")
        found.run("INSERT INTO numbers SELECT id, 10 * id FROM generate_series(1, 100) AS id")
        yield found


@pytest.mark.parametrize("ahead", ["true", "false"])
def test_a_restart_of_postgresql_under_load_is_a_few_lines(
    tmp_path: Path, postgres: PostgresServer, database: Postgres, ahead: str
) -> None:
    url = database.url.replace("tailcut@", "tailcut:sEcret@")
    with Served(tmp_path, GROUPS.format(url=url, ahead=ahead), TIMEOUTS) as server:
        began_s = time.monotonic()
        counted = ALL or ahead == "false"
        down = asyncio.run(asyncio.wait_for(outage(server, postgres.stop, postgres.start, 1, counted), 150))
        assert 503 in set(down) <= {200, 503}
        check_outage(server.log, f"127.0.0.1:{postgres.port}", time.monotonic() - began_s)


def test_an_sqlite_file_that_is_locked_under_load_is_a_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "numbers.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE numbers(id INTEGER PRIMARY KEY, value REAL)")
        connection.executemany("INSERT INTO numbers VALUES (?, ?)", [(n, 10.0 * n) for n in range(1, 101)])
    connection.close()
    other = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    with Served(tmp_path, GROUPS.format(url=f"sqlite:///{path}", ahead="false"), TIMEOUTS) as server:
        lock = lambda: other.execute("BEGIN EXCLUSIVE")  # noqa: E731
        asyncio.run(asyncio.wait_for(outage(server, lock, lambda: other.execute("ROLLBACK"), 2, ALL), 150))
        log = server.log
    other.close()
    assert "Traceback" not in log
    said = [each["message"] for each in lines(log)]
    assert [sum(words in text for text in said) for words in (" fails: ", " answers again: ")] == [2, 2]
    assert len(said) <= 12
