"""Which hosts keep a history, and where."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from pathlib import Path

import pytest
from tests.app_kit import GOOD, INFER, Client, deployment
from tests.host_kit import add_models

from tailcut.manifest import load
from tailcut.manifest.host import HostManifest, load_host
from tailcut.observe.history import History
from tailcut.serving.host import Host
from tailcut.serving.observation import history_path
from tailcut.transport.asgi import ASGIApplication


def named(tmp_path: Path, path: str) -> HostManifest:
    deployment(tmp_path)
    return HostManifest.of(load(tmp_path, environment={}, overrides=[f'observe.history.path="{path}"']))


@pytest.mark.parametrize(
    ("path", "by_default", "expected"),
    [
        ("", True, ".tailcut/history.sqlite"),
        ("", False, None),
        ("off", True, None),
        ("off", False, None),
        ("h.sqlite", True, "h.sqlite"),
        ("h.sqlite", False, "h.sqlite"),
    ],
)
def test_where_the_history_is(tmp_path: Path, path: str, by_default: bool, expected: str | None) -> None:
    found = history_path(named(tmp_path, path), by_default=by_default)
    assert found == (None if expected is None else tmp_path.resolve() / expected)


def test_several_models_have_one_history_in_the_folder_of_the_host(tmp_path: Path) -> None:
    host = load_host([add_models(tmp_path, a=1.0, b=2.0)], environment={})
    assert history_path(host, by_default=True) == tmp_path.resolve() / ".tailcut" / "history.sqlite"


@pytest.mark.parametrize(
    ("setting", "expected"),
    [("enabled=true", logging.INFO), ("enabled=false", logging.WARNING), ('off=["drift"]', logging.WARNING)],
)
def test_drift_is_a_warning_where_no_alert_tells_of_it(tmp_path: Path, setting: str, expected: int) -> None:
    deployment(tmp_path)
    host = Host.of(load(tmp_path, environment={}, overrides=[f"observe.alerts.{setting}"]))
    host.observed.begin(in_application=False)
    assert host.observed.drift.alarm_level == expected


@pytest.mark.parametrize("path", ["", "h.sqlite"])
def test_a_mounted_application_keeps_one_only_where_it_is_named(tmp_path: Path, path: str) -> None:
    async def main() -> None:
        app = ASGIApplication(named(tmp_path, path))
        await app.start()
        assert (await Client(app).post(INFER, GOOD)).status == 200
        text = (await Client(app).get("/metrics")).body.decode()
        assert ("tailcut_history_rows_total" in text) == bool(path)
        await app.stop()

    asyncio.run(main())
    assert "tailcut-store" not in {thread.name for thread in threading.enumerate()}
    assert not (tmp_path / ".tailcut").exists()
    if path:
        now_s = time.time()
        rows = History(tmp_path / path).latency(now_s - 600, now_s + 600, stage="request", bucket_s=1200)
        assert sum(row.requests for row in rows) == 1
