"""Alerts of a served model: from a planted fault to the metric, the log line, the webhook and the week before."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from tests.app_kit import FEATURES, INFER, deployment, running
from tests.history_kit import Run
from tests.observe_kit import Ended
from tests.wait_kit import until

from tailcut.common.timings import Stage, Timings
from tailcut.errors import StartError, TailcutError
from tailcut.manifest.schema.observe import Alerts as Settings
from tailcut.observe.alerts.evaluation import WEEK_S
from tailcut.observe.alerts.evaluator import AlertEvaluator
from tailcut.observe.alerts.probes import SystemProbes
from tailcut.observe.alerts.rules import ALERTS
from tailcut.observe.exposition import REQUESTS
from tailcut.observe.history import History
from tailcut.observe.path_metrics import FEATURE_SOURCE_SECONDS as SOURCE_SECONDS
from tailcut.transport.asgi import ASGIApplication

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
FAILING = """
def values(keys, context):
    raise OSError("the database is gone")
"""


class Receiver(BaseHTTPRequestHandler):
    """Keeps the messages."""

    got: ClassVar[list[dict[str, Any]]] = []

    def do_POST(self) -> None:
        assert self.headers["webhook-signature"].startswith("v1,")
        self.got.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing to the terminal."""


@contextmanager
def receiver() -> Iterator[str]:
    Receiver.got.clear()
    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook"
        server.shutdown()
        thread.join()


def alerting(url: str) -> list[str]:
    """Settings of a webhook in this process's own network."""
    names = {"webhook": url, "secret_file": "secret", "share_requests": 10, "allow_private": True}
    return [f"observe.alerts.{name}={json.dumps(value)}" for name, value in names.items()]


async def minute(app: ASGIApplication) -> None:
    """Have a minute end now, and wait until it is evaluated."""
    host = app.host
    assert host.observed.history is not None
    assert host.observed.alerts is not None
    before = host.observed.alerts.evaluations
    host.observed.history.take()
    await until(lambda: host.observed.alerts is not None and host.observed.alerts.evaluations > before)


def test_a_source_that_fails_is_alarmed_with_its_stage_and_sent_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "failing_source.py").write_text(FAILING)
    (tmp_path / "secret").write_text(SECRET)

    async def serve(url: str, fails: bool) -> str:
        manifest = deployment(
            tmp_path,
            FEATURES.replace("app_hooks", "failing_source"),
            [*alerting(url), 'observe.history.path="h.sqlite"'],
        )
        async with running(manifest) as client:
            for _ in range(2):
                for number in range(15 if fails else 0):
                    reply = await client.post("/predict/m", {"entities": [{"id": number}]})
                    assert reply.status >= 500
                await minute(client.app)
            if fails:
                await until(lambda: len(Receiver.got) == 2)
            return (await client.get("/metrics")).body.decode()

    caplog.set_level(logging.INFO)
    with receiver() as url:
        text = asyncio.run(serve(url, fails=True))
        assert {(each["type"], each["data"]["likely_stage"]) for each in Receiver.got} == {
            ("alarm.firing", "features/values")
        }
        assert {each["data"]["alert"] for each in Receiver.got} == {"errors", "burn_rate"}
        assert 'tailcut_alerts{alert="errors",model="m",severity="page"} 1.0' in text
        assert 'tailcut_alerts{alert="drift",model="m",severity="ticket"} 0.0' in text
        lines = [each.message for each in caplog.records if each.message.startswith("alarm ")]
        assert ["likely stage: features/values" in line for line in lines] == [True, True]
        again = asyncio.run(serve(url, fails=False))
        assert len(Receiver.got) == 2, "they were sent before the restart"
    assert 'tailcut_alerts{alert="errors",model="m",severity="page"} 1.0' in again
    assert (tmp_path / "h.alerts-m-8700.json").is_file()
    own = History(tmp_path / "h.sqlite").counts(0, 2**32, name=REQUESTS.series[0])
    assert sum(row.value for row in own) == 30, "what it reads after a restart"


def test_a_model_that_is_unloaded_is_gone_for_the_alerts(tmp_path: Path) -> None:
    async def serve() -> None:
        async with running(deployment(tmp_path, FEATURES, ['observe.history.path="h.sqlite"'])) as client:
            alerts = client.app.host.observed.alerts
            assert alerts is not None
            assert list(alerts._names()) == ["m"]
            client.app.host.unload("m")
            assert list(alerts._names()) == []

    asyncio.run(serve())


def answer(run: Run, milliseconds: np.ndarray) -> None:
    """Answer requests that took so long in their features and in the model, (requests, 2)."""
    ended = []
    for row in milliseconds:
        timings = Timings(0)
        timings.ns[Stage.FEATURES], timings.ns[Stage.INFER] = (round(ms * 1e6) for ms in row)
        ended.append(Ended(timings))
    run.recorder.on_requests("risk", ended)


def test_a_slow_query_is_found_in_a_real_history_and_named(tmp_path: Path) -> None:
    now_s = 1_800_000_000 // 300 * 300 + 95
    rng = np.random.default_rng(3)

    def traffic(run: Run, weather_ms: float) -> None:
        total_s = {"weather": 0.0, "routes": 0.0}
        for _ in range(61):
            answer(run, rng.lognormal(0, 0.3, (40, 2)) * (weather_ms, 6.0))
            total_s["weather"] += 0.04 * weather_ms
            total_s["routes"] += 0.04
            run.samples[:] = [SOURCE_SECONDS(seconds, group, "id") for group, seconds in total_s.items()]
            run.pass_s()
        run.end()

    path = tmp_path / "history.sqlite"
    traffic(Run(path, now_s - WEEK_S - 3660, process=False), 5.0)
    today = Run(path, now_s - 3660, process=False)
    traffic(today, 9.0)
    clock = {"now_s": float(now_s)}
    alerts = AlertEvaluator(
        Settings(), SystemProbes().read, lambda: ["risk"], history=lambda: today.history, wall_s=lambda: clock["now_s"]
    )
    alerts.restore()
    assert [[alarm.state for alarm in alerts.evaluate()] for _ in range(2)] == [[], ["firing"]]
    (alarm,) = alerts.active
    found = alarm.finding
    assert (found.alert, found.model, found.place) == ("p95_growth", "risk", "features/weather")


def test_after_a_restart_a_server_counts_the_requests_of_its_history(tmp_path: Path) -> None:
    now_s = 1_800_000_000.0

    def fires(code: str) -> bool:
        """Twice evaluated without another request."""
        run = Run(tmp_path / f"{code}.sqlite", now_s - 600, process=False)
        for _ in range(10):
            run.ask(*[1.0] * 50, code=code)
            run.pass_s()
        run.end()
        alerts = AlertEvaluator(
            Settings(), SystemProbes().read, lambda: ["risk"], history=lambda: run.history, wall_s=lambda: now_s
        )
        alerts.restore()
        return [len(alerts.evaluate()) for _ in range(2)] == [0, 1]

    assert [fires(code) for code in ("ok", "inference_failed")] == [False, True]


def test_alerts_can_be_switched_off_and_a_webhook_needs_its_secret(tmp_path: Path) -> None:
    async def names(*settings: str) -> set[str]:
        async with running(deployment(tmp_path, "", settings)) as client:
            assert (await client.post(INFER, {})).status == 400
            text = (await client.get("/metrics")).body.decode()
            return set(re.findall(rf'^{ALERTS.name}{{alert="(\w+)"', text, re.MULTILINE))

    (tmp_path / "secret").write_text(SECRET)
    assert asyncio.run(names()) == set(), "an application that tailcut is mounted in has none unasked"
    assert "errors" in asyncio.run(names('observe.history.path="h.sqlite"'))
    assert asyncio.run(names("observe.alerts.enabled=false", *alerting("http://127.0.0.1:1/"))) == set()
    assert "errors" in asyncio.run(names(*alerting("http://127.0.0.1:1/"))), "without a history"
    (tmp_path / "secret").unlink()
    with pytest.raises(StartError, match="secret_file"):
        asyncio.run(names(*alerting("http://127.0.0.1:1/")))
    (tmp_path / "secret").write_text("hunter2-hunter2-hunter2")
    with pytest.raises(TailcutError, match="whsec_") as refused:
        asyncio.run(names(*alerting("http://127.0.0.1:1/")))
    assert "hunter2" not in str(refused.value)
