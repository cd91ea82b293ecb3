"""The example's features, pilot and stacks on some weeks of its data: what training saw is what serving sees."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("pandas")

import httpx
import torch
import uvicorn
from tests.integration.flight_sample import AT, FIRST, flight_sample, needs_servers

import tailcut.manifest
from flight_risk import clock, serving
from flight_risk.columns import CATEGORICAL, NUMERIC
from flight_risk.model import load
from flight_risk.pilot.app import app
from flight_risk.settings import HERE, LEAD_S
from flight_risk.stacks import stack
from flight_risk.traffic import active_flights
from tailcut.errors import UnknownEntity
from tailcut.features import FeatureService


@dataclass
class Clock:
    now: float = AT


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with flight_sample(tmp_path_factory.mktemp("flight-risk")) as folder:
        yield folder


@pytest.fixture(scope="module", params=["embedded", pytest.param("real", marks=needs_servers)])
def environment(request: pytest.FixtureRequest, home: Path) -> Iterator[dict[str, str]]:
    with stack(kind=request.param) as variables:
        yield variables


def rows_of(environment: dict[str, str], asked: list[tuple[int, float]], **settings: str) -> list[dict[str, Any]]:
    """Fetch the features of (flight, moment) pairs through tailcut, each as of its own moment."""
    # What is asked here is which rows come, not how soon: the disk may be busy with the neighbours.
    overrides = {"features.cache": "off", "features.refresh_ahead": "false", "features.timeout": "20s"} | settings
    manifest = tailcut.manifest.load(
        HERE / "tailcut.toml", environment=environment, overrides=[f"{k}={v}" for k, v in overrides.items()]
    )
    moment = Clock()

    async def fetch() -> list[dict[str, Any]]:
        features = await FeatureService.open(manifest.deployment.features, resolve=lambda reference: lambda: moment.now)
        try:
            rows = []
            for flight, moment.now in asked:
                deadline_s = asyncio.get_running_loop().time() + 30
                rows += (await features.fetch([(flight,)], "", deadline_s)).rows
            return rows
        finally:
            await features.close()

    return asyncio.run(fetch())


def test_serving_sees_the_features_that_training_saw(environment: dict[str, str], home: Path) -> None:
    with np.load(home / "features.npz") as file:
        offline = dict(file)
    recent = np.flatnonzero(offline["sched_dep"] > FIRST + 12 * 86400)
    sample = np.random.default_rng(7).choice(recent, 120, replace=False)
    asked = [(int(offline["flight_id"][i]), float(offline["sched_dep"][i] - LEAD_S)) for i in sample]
    inputs = serving.preprocess(rows_of(environment, asked))
    np.testing.assert_array_equal(inputs["categorical"], offline["categorical"][sample])
    for position, name in enumerate(NUMERIC):
        np.testing.assert_allclose(
            inputs["numeric"][:, position], offline["numeric"][sample, position], rtol=1e-5, atol=1e-4, err_msg=name
        )
    known = ~np.isnan(inputs["numeric"])
    assert known.mean(axis=0).min() > 0.4, "a column that is hardly ever known proves nothing"
    assert (inputs["categorical"] > 0).mean(axis=0).min() > 0.5
    assert inputs["categorical"].shape[1] == len(CATEGORICAL)


@contextmanager
def served() -> Iterator[httpx.Client]:
    """The pilot behind a real uvicorn, in this process so that its clock can be held."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", ws="none"))
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{listening.getsockname()[1]}", timeout=30.0) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join(30.0)
            assert not thread.is_alive()


def test_pilot_and_tailcut_answer_alike(environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setenv("FLIGHT_RISK_DATABASE", environment["FLIGHT_RISK_DATABASE"])
    monkeypatch.setattr(clock, "now", lambda: float(AT))
    flights = [flight for airport in active_flights(AT).values() for flight in airport][::5]
    with served() as client:
        reply = client.post("/predict", json={"entities": flights})
        assert reply.status_code == 200
        pilot = [answer["risk"] for answer in reply.json()["predictions"]]
        missing = client.post("/predict", json={"entities": [flights[0], 1]})
        assert missing.status_code == 404
        assert missing.json()["detail"] == "unknown flight 1"
        assert client.post("/predict", json={"entities": ["x"]}).status_code == 422
    inputs = serving.preprocess(rows_of(environment, [(flight, AT) for flight in flights]))
    with torch.inference_mode():
        risk = load()(torch.from_numpy(inputs["numeric"]), torch.from_numpy(inputs["categorical"]))
    expected = [answer["risk"] for answer in serving.postprocess({"risk": risk.numpy()})]
    np.testing.assert_allclose(pilot, expected, atol=1e-5)
    assert len(set(pilot)) > len(pilot) / 2


def test_a_flight_off_the_board_is_unknown(environment: dict[str, str]) -> None:
    for cache in ("off", "memory"):
        with pytest.raises(UnknownEntity, match="flight_id=1"):
            rows_of(environment, [(1, AT)], **{"features.cache": cache})


@needs_servers
def test_redis_keeps_features_unchanged(home: Path) -> None:
    flights = active_flights(AT)["JFK"][:6]
    with stack(kind="real") as variables:
        plain = rows_of(variables, [(flight, AT) for flight in flights])
        twice = rows_of(variables, [(flight, AT) for flight in flights * 2], **{"features.cache": "redis"})
    np.testing.assert_equal(twice, plain * 2)


STACK_UNTIL_KILLED = """
import json, os, signal, sys
from flight_risk.stacks import stack
with stack() as environment:
    print(json.dumps(environment), flush=True)
    signal.pause()
"""


@needs_servers
def test_servers_stop_and_their_folder_goes_when_the_process_is_terminated(home: Path, tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o755)
    environment = {**os.environ, "PYTHONPATH": str(HERE.parent)}
    process = subprocess.Popen(
        [sys.executable, "-c", STACK_UNTIL_KILLED], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        assert process.stdout is not None
        assert process.stderr is not None
        told = json.loads(process.stdout.readline())
        assert told["FLIGHT_RISK_STACK"] == "real"
        children = _children(process.pid)
        folders = {os.readlink(f"/proc/{child}/cwd") for child in children}
        assert len(children) == 2
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM
        assert b"stack: real" in process.stderr.read()
    assert not any(Path(f"/proc/{child}").exists() for child in children)
    assert not any(Path(folder).exists() for folder in folders)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def test_an_unknown_or_unprepared_stack_is_refused_with_the_way_out(
    home: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match="FLIGHT_RISK_STACK"), stack(kind="cloud"):
        pass
    monkeypatch.setenv("FLIGHT_RISK_HOME", str(tmp_path))
    with pytest.raises(SystemExit, match=r"flight_risk\.prepare"), stack():
        pass
