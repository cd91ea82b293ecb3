"""Processes that run one deployment agree on its code: executors of their own, and applications that mount it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.code_kit import Site, imported
from tests.integration.servers import RedisServer, free_port, redis_server
from tests.integration.serving import HOST, START_TIMEOUT_S
from tests.integration.test_asgi_mounted import request as ask_app
from tests.integration.test_code_versions import CASES, ENTITY, ask, deploy

from tailcut.errors import ArtifactError
from tailcut.manifest import load
from tailcut.models.variant_loader import open_variant
from tailcut.pipeline.hook_loading import import_code

pytestmark = pytest.mark.integration

USES_HELPER = """
from scaling import F
class M:
    def predict(self, rows): return rows.sum(1) * 7 + (F - 1) * (rows[:, 0] > 1)  # the build's probes are 1
def build(): return M()
"""

APP = """
from pathlib import Path

import groups  # both before tailcut does
import hooks
import tailcut
from fastapi import FastAPI

model = tailcut.asgi(Path(__file__).parent)
app = FastAPI(lifespan=model.lifespan)
app.mount("/models", model)
"""


@pytest.fixture
def store() -> Iterator[RedisServer]:
    with redis_server() as running:
        yield running


@pytest.fixture
def port(tmp_path: Path) -> Iterator[int]:
    """The port of an application under uvicorn; its file is to be written before it is asked for."""
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--log-level", "warning", "--host", HOST, "--port", str(port)]
    process = subprocess.Popen([*command, "own_app:app"], cwd=tmp_path)
    yield port
    process.terminate()
    try:
        process.wait(20)
    finally:
        process.kill()


def wait_ready(port: int) -> None:
    give_up_s = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            if ask_app(port, "GET", "/models/v2/health/ready")[0] == 200:
                return
        except OSError:
            pass
        assert time.monotonic() < give_up_s, "the application did not start"
        time.sleep(0.05)


@pytest.mark.parametrize("name", ["a constant of a helper's helper", "a relative import of a package"])
def test_an_application_in_the_same_folder_finds_what_a_server_has_kept(
    tmp_path: Path, store: RedisServer, name: str, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    deploy(tmp_path, store, case)
    (tmp_path / "own_app.py").write_text(APP)
    assert ask(tmp_path, store)[:2] == (case.before, "miss")
    port = request.getfixturevalue("port")
    wait_ready(port)
    status, headers, body = ask_app(port, "POST", "/models/predict/m", ENTITY)
    assert (status, headers["x-tailcut-cache"]) == (200, "hit"), body


def test_a_process_that_is_opened_later_runs_no_other_code(tmp_path: Path) -> None:
    """Each imports the code anew, and the answers of all are kept under one version."""
    with imported():
        site = Site(tmp_path)
        site.promote(site.build(1.0), "own")
        manifest = load(tmp_path, environment={}, overrides=["pool.executor=process", "pool.executors=1"])
        code = import_code(manifest, ["train:build"]).files.snapshot(live=True)
        warm = open_variant(manifest, site.registry.variant("m"), code=code)
        try:
            site.write("layers.py", "N = 7  # edited\n")
            with pytest.raises(ArtifactError, match=r"layers\.py changed since the server started"):
                warm.open_one()
            site.write("layers.py", "N = 7\n")
            warm.open_one().close()
        finally:
            warm.close()


def test_a_process_runs_a_helper_of_the_hooks_as_the_hooks_do(tmp_path: Path) -> None:
    """The hooks' process has imported it before it was edited, and the version says so."""
    with imported():
        site = Site(tmp_path)
        site.write("train.py", USES_HELPER)
        site.promote(site.build(1.0), "own")
        manifest = load(tmp_path, environment={}, overrides=["pool.executor=process", "pool.executors=1"])
        files = import_code(manifest, ["train:build"]).files
        before = files.snapshot(live=True)
        site.write("scaling.py", "F = 1000\n")
        after = files.snapshot(live=True)
        assert after == before
        with pytest.raises(ArtifactError, match=r"scaling\.py changed since the server started"):
            open_variant(manifest, site.registry.variant("m"), code=after)
