"""``tailcut export grafana``: a real Prometheus scrapes a served model, and every panel's query returns figures."""

from __future__ import annotations

import json
import math
import shutil
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.app_kit import FEATURES
from tests.integration.servers import Process, free_port
from tests.integration.serving import Served
from tests.wait_kit import block_until

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
]

MODEL = '[slo]\np95 = "30ms"\n[cache.tensor]\nenabled = true\n'


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[int]:
    """Run a Prometheus that scrapes a port every 0.2 s; yield its own port."""
    port, config = free_port(), folder / "prometheus.yml"
    jobs = [{"job_name": "tailcut", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}]
    config.write_text(json.dumps({"global": {"scrape_interval": "200ms"}, "scrape_configs": jobs}))
    flags = {
        "config.file": config,
        "storage.tsdb.path": folder / "tsdb",
        "web.listen-address": f"127.0.0.1:{port}",
    }
    with Process(["prometheus", *(f"--{name}={value}" for name, value in flags.items())], "ready to receive"):
        yield port


def read(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/{path}", timeout=10) as reply:
        found = json.load(reply)
    assert found["status"] == "success", found
    return found["data"]


def ask(port: int, query: str) -> list[dict[str, Any]]:
    return list(read(port, f"query?{urllib.parse.urlencode({'query': query})}")["result"])


def scrapes(port: int) -> bool:
    """Whether a Prometheus has scraped its target; it does not look for any in its first five seconds."""
    time.sleep(0.05)  # between two looks
    found = read(port, "targets")
    return any(each["health"] == "up" for each in found["activeTargets"])


def queries(folder: Path) -> Iterator[tuple[str, str]]:
    command = [sys.executable, "-m", "tailcut", "export", "grafana", "-m", str(folder)]
    made = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    for panel in made["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"].replace("$model", ".*").replace("$__rate_interval", "5s")


def test_every_panel_shows_figures_of_a_served_model(tmp_path: Path) -> None:
    lives = ["features.groups.values.ttl=300ms", "cache.entity.ttl=100ms"]  # there are hits and misses all the time
    with Served(tmp_path, MODEL + FEATURES, lives) as server, prometheus(tmp_path, server.port) as port:

        def scraped(query: str) -> bool:
            for number in range(5):
                assert server.post("/v2/models/m/infer")[0] == 200
                assert server.post("/v2/models/m/infer", {"inputs": []})[0] == 400
                server.post("/predict/m", {"entities": [{"id": number}, {"id": number + 5}]})
            found = ask(port, query)
            return bool(found) and all(math.isfinite(float(each["value"][1])) for each in found)

        block_until(partial(scrapes, port))
        seen = set()
        for title, query in queries(tmp_path):
            seen.add(title)
            try:
                block_until(partial(scraped, query))
            except TimeoutError:
                pytest.fail(f"{title}: {query} finds {ask(port, query)}")
    assert seen >= {
        "Latency",
        "Burn rate of the error budget",
        "p95 by stage",
        "Hit rate by group",
        "Hit rate by cache",
    }
