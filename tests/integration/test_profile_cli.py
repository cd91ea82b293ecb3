"""``tailcut profile`` as people run it, once per kind of target."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.app_kit import GOOD, INFER, deployment
from tests.integration.planting import brief_trial
from tests.integration.servers import load_stub

from tailcut.cli.app import run
from tailcut.profiler import pilot

pytestmark = pytest.mark.integration

SHORT = ("--duration", "1s", "--warmup", "200ms", "--rate", "40", "--no-levers")
APP = """
import sqlite3
import threading

database = sqlite3.connect("file:shared?mode=memory&cache=shared", uri=True, check_same_thread=False)
asked = threading.Event()


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = (await receive())["body"]
    rows = database.execute("SELECT 1, ?", (len(body),)).fetchall()
    asked.wait(0.012)
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})
"""


def profile(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    # As the installed command: without the folder that it is started in on the import path.
    command = [sys.executable, "-P", "-m", "tailcut", "profile", *arguments]
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "200"}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=120, check=False, cwd=folder, env=environment
    )


def run_here(*arguments: str) -> int:
    """Run the command in this process; return its exit code."""
    before = list(sys.path)
    try:
        return run(arguments)
    finally:
        sys.path[:] = before


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with load_stub() as (url, _):
        yield url


def test_an_application_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "my_app.py").write_text(APP)
    (tmp_path / "queue.py").write_text("raise RuntimeError('this is no module of the standard library')\n")
    (tmp_path / "bodies.jsonl").write_text("".join(f'{{"entities": [{number % 5}]}}\n' for number in range(20)))
    kept = ("--json", "out/profile.json", "--html", "out/profile.html", "--raw", "out/raw.bin")
    flags = ("--payloads", "bodies.jsonl", "--slo", "p95=5ms", "--path", "predict")
    # Seldom enough for a busy machine: the application can do one request at a time.
    done = profile("my_app:app", *SHORT, "--rate", "20", "--duration", "2s", *flags, *kept, folder=tmp_path)
    assert done.returncode == 1, done.stderr  # the SLO is missed: a request takes 12 ms
    assert "SLO p95 MISSED" in done.stdout
    assert "of the p95 request is waiting for another thread at my_app.py:14" in done.stdout
    assert "SELECT ?, ?" in done.stdout
    assert "entities[]" in done.stdout
    assert "note: 20 payloads were sent 1.9 times over" in done.stdout
    found = json.loads((tmp_path / "out" / "profile.json").read_text())
    assert (found["kind"], found["target"]) == ("pilot", "my_app:app")
    share = {line["stage"]: line["near_share"] for line in found["budget"]["lines"]}
    assert share["wait"] > 0.4
    page = (tmp_path / "out" / "profile.html").read_text()
    again = profile("--from", "out/profile.json", "--html", "out/again.html", folder=tmp_path)
    assert again.returncode == 1
    assert again.stdout == done.stdout
    assert (tmp_path / "out" / "again.html").read_text() == page


def test_a_deployment_by_its_own_timings(tmp_path: Path) -> None:
    deployment(tmp_path, "")
    # A log with times: what is sent are the payloads in it.
    lines = (json.dumps({"time": number * 3600, "payload": GOOD}) for number in range(3))
    (tmp_path / "bodies.jsonl").write_text("\n".join(lines))
    flags = ("--payloads", "bodies.jsonl", "--path", INFER, "--slo", "p95=500ms")
    done = profile(".", *SHORT, *flags, "--json", "profile.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Slow layers of m source" in done.stdout
    assert "Profiling cost the server nothing" in done.stdout
    found = json.loads((tmp_path / "profile.json").read_text())
    stages = {line["stage"] for line in found["budget"]["lines"]}
    assert {"network", "receive", "decode", "model", "encode"} <= stages
    assert found["budget"]["failed"] == 0
    assert (found["diversity"]["timed"], found["diversity"]["span_s"]) == (True, 7200.0)


RANKER = """
import time
import torch

class Words(torch.nn.Module):
    def forward(self, ids):
        time.sleep(0.020)
        return ids * 2.0

words = Words()

def tidy(row):
    time.sleep(0.005)
    return float(row["value"])

def prepare(rows):
    values = words(torch.tensor([[tidy(row), 1.0] for row in rows]))
    return {"x": values.numpy()}
"""


def test_what_the_hooks_of_a_mounted_deployment_call_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, with a short load."""
    monkeypatch.setattr(pilot, "_trial", brief_trial)
    monkeypatch.chdir(tmp_path)
    deployment(tmp_path, "")
    (tmp_path / "ranker.py").write_text(RANKER)
    (tmp_path / "mounted.py").write_text('import tailcut\n\nmodel = tailcut.asgi("tailcut.toml")\n')
    manifest = (tmp_path / "tailcut.toml").read_text()
    (tmp_path / "tailcut.toml").write_text(
        manifest.replace("[model]", 'python_path = ["."]\n[model]\npreprocess = "ranker:prepare"')
    )
    (tmp_path / "bodies.jsonl").write_text(json.dumps({"rows": [{"value": 1.5}]}) + "\n")
    flags = (*SHORT, "--payloads", "bodies.jsonl", "--rate", "10", "--path", "/predict/m", "--layers", "off")
    assert run_here("profile", "mounted:model", *flags, "--json", "profile.json") == 0
    found = json.loads((tmp_path / "profile.json").read_text())
    lines = RANKER.splitlines()
    (step,) = [one for one in found["budget"]["steps"] if one["label"] == "Words"]
    assert step["place"] == f"ranker.py:{lines.index(next(line for line in lines if 'values = words(' in line)) + 1}"
    assert step["mean_ms"] >= 20
    (hook,) = [one for one in found["budget"]["culprits"] if one["label"] == "preprocess prepare"]
    assert hook["place"] == f"ranker.py:{lines.index('def prepare(rows):') + 1}"
    assert hook["functions"][0]["function"].startswith("tidy (ranker.py:")
    assert not [note for note in found["notes"] if "has no hook" in note]


def test_a_url_from_outside(url: str, tmp_path: Path) -> None:
    secrets = (f"{url}/timing/0?key=s3cret", "--header", "Authorization: Bearer s3cret")
    done = profile(*secrets, *SHORT, "--json", "profile.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    kept = (tmp_path / "profile.json").read_text()
    assert "s3cret" not in kept + done.stdout
    found = json.loads(kept)
    assert found["target"] == f"{url}/timing/0?…"
    stages = {line["stage"] for line in found["budget"]["lines"]}
    assert {"network", "model", "wait"} <= stages
    silent = profile(f"{url}/delay/5", *SHORT, folder=tmp_path)
    assert silent.returncode == 0, silent.stderr
    assert "the server sends no Server-Timing" in silent.stdout
    assert "of the p95 request is unattributed" in silent.stdout


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("nowhere",), 2, "is neither an application nor a deployment nor a URL"),
        (("my_app.py",), 2, "give module:attribute"),
        (("http://127.0.0.1:9/",), 3, "cannot connect"),
        (("a:b", "--loop", "trio"), 2, "--loop is 'trio'"),
        (("a:b", "--rate", "0"), 2, "--rate is 0"),
        (("a:b", "--shape", "ids"), 2, "--shape"),
        (("a:b", "--payloads", "absent.jsonl"), 2, "absent.jsonl"),
        (("http://127.0.0.1:9/", "--path", "/x"), 2, "write the path into the URL"),
        (("--from", "absent.json"), 2, "absent.json"),
        (("a:b", "--payloads", "two.jsonl", "--log", "one.jsonl"), 2, "line 1 of one.jsonl has the time True"),
    ],
)
def test_what_cannot_be_profiled_is_said(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], arguments: tuple[str, ...], code: int, text: str
) -> None:
    (tmp_path / "two.jsonl").write_text("{}\n{}\n")
    (tmp_path / "one.jsonl").write_text('{"time": true, "payload": {}}')
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(tmp_path)
        assert run_here("profile", *arguments) == code
    said = capfd.readouterr()
    assert said.out == ""
    assert text in said.err
