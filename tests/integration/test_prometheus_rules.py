"""``tailcut export prometheus-rules``: a real Prometheus and Alertmanager, and a served model.

Every series and label that a rule names is on the server's /metrics, every rule is evaluated, every recording rule
returns figures, and an alert reaches Alertmanager.
"""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.app_kit import FEATURES
from tests.integration.servers import Process, free_port
from tests.integration.serving import Served
from tests.wait_kit import block_until

from tailcut.observe.latency_figures import LATENCY

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(shutil.which("prometheus") is None, reason="prometheus is not installed"),
    pytest.mark.skipif(shutil.which("prometheus-alertmanager") is None, reason="alertmanager is not installed"),
]

MODEL = '[slo]\np95 = "1us"\n[observe.alerts]\nshare_requests = 1\n'
_SELECTOR = re.compile(r"\b((?:tailcut|process)_\w+)(?:\{([^}]*)\})?")


def exported(folder: Path) -> str:
    command = [sys.executable, "-m", "tailcut", "export", "prometheus-rules", "-m", str(folder)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@contextmanager
def alertmanager(folder: Path) -> Iterator[int]:
    port, config = free_port(), folder / "alertmanager.yml"
    config.write_text(json.dumps({"route": {"receiver": "none"}, "receivers": [{"name": "none"}]}))
    flags = {
        "config.file": config,
        "storage.path": folder / "alertmanager",
        "web.listen-address": f"127.0.0.1:{port}",
        "cluster.listen-address": "",
    }
    with Process(["prometheus-alertmanager", *(f"--{name}={value}" for name, value in flags.items())], "Listening on"):
        yield port


@contextmanager
def prometheus(folder: Path, target: int, alerts: int, rules: Path) -> Iterator[int]:
    port, config = free_port(), folder / "prometheus.yml"
    jobs = [{"job_name": "tailcut", "static_configs": [{"targets": [f"127.0.0.1:{target}"]}]}]
    managers = [{"static_configs": [{"targets": [f"127.0.0.1:{alerts}"]}]}]
    made = {
        "global": {"scrape_interval": "200ms"},
        "rule_files": [str(rules)],
        "scrape_configs": jobs,
        "alerting": {"alertmanagers": managers},
    }
    config.write_text(json.dumps(made))
    flags = {"config.file": config, "storage.tsdb.path": folder / "tsdb", "web.listen-address": f"127.0.0.1:{port}"}
    with Process(["prometheus", *(f"--{name}={value}" for name, value in flags.items())], "ready to receive"):
        yield port


def ask(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as reply:
        return json.load(reply)


def scrapes(port: int) -> bool:
    """Whether a Prometheus has scraped its target; it does not look for any in its first five seconds."""
    time.sleep(0.05)  # between two looks
    found = ask(port, "/api/v1/targets")
    return any(each["health"] == "up" for each in found["data"]["activeTargets"])


def test_a_real_prometheus_evaluates_every_rule_and_an_alert_arrives(tmp_path: Path) -> None:
    with Served(tmp_path, MODEL + FEATURES) as server:
        text = exported(tmp_path)
        check_names(text, server.metrics(), after_requests=LATENCY.name)
        rules = tmp_path / "rules.yml"
        # The same rules, waiting for nothing.
        rules.write_text(re.sub(r"(for|interval): \w+", r"\1: 200ms", text))
        with alertmanager(tmp_path) as manager, prometheus(tmp_path, server.port, manager, rules) as port:

            def traffic() -> None:
                for number in range(5):
                    assert server.post("/v2/models/m/infer")[0] == 200
                    server.post("/predict/m", {"entities": [{"id": number}, {"id": number + 5}]})

            def found() -> dict[str, dict[str, Any]]:
                groups = ask(port, "/api/v1/rules")["data"]["groups"]
                return {f"{rule['name']} {rule['query']}": rule for group in groups for rule in group["rules"]}

            def recorded(name: str) -> bool:
                traffic()
                values = ask(port, f"/api/v1/query?query={name}")["data"]["result"]
                return bool(values) and any(math.isfinite(float(each["value"][1])) for each in values)

            block_until(partial(scrapes, port))
            for rule in yaml.safe_load(text)["groups"][0]["rules"]:
                block_until(partial(recorded, rule["record"]))
            block_until(lambda: all(rule["health"] == "ok" for rule in found().values()))
            block_until(partial(arrived, manager, "TailcutBurnRate"))
            metrics = server.metrics()
        check_names(text, metrics)


def arrived(manager: int, alert: str) -> bool:
    """Whether Alertmanager has an alert."""
    return any(each["labels"]["alertname"] == alert for each in ask(manager, "/api/v2/alerts"))


def check_names(text: str, metrics: str, after_requests: str = "") -> None:
    """Every selector of the rules selects a series of the page; but of ``after_requests``."""
    there = [sample for family in text_string_to_metric_families(metrics) for sample in family.samples]
    checked = set()
    for rule in (rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]):
        for name, conditions in _SELECTOR.findall(rule["expr"].replace(after_requests or "\0", "")):
            wanted = re.findall(r'(\w+)(!?=~?)"([^"]*)"', conditions)
            checked.add(name)
            assert any(
                sample.name == name and all(label in sample.labels for label, _, _ in wanted) for sample in there
            ), (name, conditions)
            for label, how, value in wanted:
                if how in {"=", "=~"}:
                    values = {sample.labels[label] for sample in there if sample.name == name}
                    assert {*value.split("|")} & values, (name, label, value, values)
        for labels in re.findall(r"by \(([\w, ]+)\)", rule["expr"]):
            for name, _ in _SELECTOR.findall(rule["expr"].replace(after_requests or "\0", "")):
                grouped = {label for sample in there if sample.name == name for label in sample.labels}
                assert {*labels.split(", ")} <= grouped, (name, labels)
    assert len(checked) >= 10
