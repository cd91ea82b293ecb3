"""The request log end to end: served over sockets, logged, and sent again by ``tailcut load``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app_kit import FEATURES, GOOD, INFER
from tests.integration.serving import Served

from tailcut import Client
from tailcut.cli.app import run
from tailcut.observe.request_log import Record, read_log

pytestmark = pytest.mark.integration

DRAIN = ("server.drain=50ms",)
LOG = """
[request_log]
path = "{path}"
share = "100%"
format = "{form}"
"""


def asked(record: Record) -> Any:
    """What a request asked for, and what it was answered, but for names of the run."""
    tensors = [(each.name, each.datatype, each.shape, each.data) for each in record.inputs or ()]
    answer = [(each.name, each.data) for each in record.outputs or ()], record.predictions
    return record.route, tensors, record.rows, record.entities, answer, record.code, record.priority


def ask(server: Served) -> None:
    """Send every kind of request over HTTP."""
    for body in (
        GOOD,
        {**GOOD, "inputs": [{**GOOD["inputs"][0], "shape": [1, 2], "data": [0.1, -0.0]}], "outputs": [{"name": "z"}],
         "parameters": {"priority": 2}},
    ):  # fmt: skip
        assert server.post(INFER, body)[0] == 200
    assert server.post("/predict/m", {"rows": [{"id": 3, "value": 1e-7}, {"id": 4, "value": 2}]})[0] == 200
    assert server.post("/predict/m", {"entities": [7, 8]})[0] == 200
    assert server.post("/predict/m", {"entities": [777]})[0] == 404
    assert server.post("/predict/m", {"no": "request"})[0] == 400
    with Client(f"http://127.0.0.1:{server.port}", model="m") as client:
        client.infer({"x": np.array([[1 / 3, 2]], np.float32)})


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_a_log_is_replayed_to_the_routes_that_it_came_from(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
    with Served(first, FEATURES + LOG.format(path="requests", form=form), DRAIN) as server:
        ask(server)
        server.signal()
        assert server.wait() == 0
    log = first / "requests"
    assert [path.stat().st_mode & 0o777 for path in log.iterdir()] == [0o600]
    assert log.stat().st_mode & 0o777 == 0o700
    records = read_log(log)
    assert [record.code for record in records] == ["ok"] * 4 + ["unknown_entity", "bad_request", "ok"]
    assert all(record.probability == 1 and record.total_ns and record.variant == "source" for record in records)
    assert records[3].timings_ns["features"] > 0

    with Served(second, FEATURES + LOG.format(path="again", form="jsonl"), DRAIN) as server:
        assert (
            run(["load", f"http://127.0.0.1:{server.port}", "--replay", str(log), "--warmup", "0s", "--speed", "2"])
            == 0
        )
        server.signal()
        assert server.wait() == 0
    said = capsys.readouterr()
    assert "1 of 7 requests are left out" in said.err
    assert f"(arrivals of {log} at 2 times their speed, seed 0, 0 s warm-up left out)" in said.out
    again = read_log(second / "again")
    sent = [record for record in records if record.code != "bad_request"]
    # Requests that come within a millisecond, on connections of their own, may change places.
    assert sorted(map(repr, map(asked, again))) == sorted(map(repr, map(asked, sent)))
    spans = [some[-1].time_ns - some[0].time_ns for some in (sent, again)]
    assert spans[1] == pytest.approx(spans[0] / 2, abs=2e9)


def test_a_kill_leaves_a_log_that_is_read(tmp_path: Path) -> None:
    with Served(tmp_path, LOG.format(path="requests", form="parquet")) as server:
        server.post(INFER)
        server.wait_until(lambda: any(path.stat().st_size for path in (tmp_path / "requests").iterdir()))
    # Leaving the block kills the server.
    (file,) = (tmp_path / "requests").iterdir()
    with file.open("ab") as torn:
        torn.write(json.dumps({"tailcut_log": 1}).encode()[:9])
    told: list[str] = []
    assert [record.code for record in read_log(tmp_path / "requests", told.append)] == ["ok"]
    assert "torn" in told[0]
