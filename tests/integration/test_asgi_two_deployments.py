"""Two deployments mounted in one application, over a socket: each answers by its own code, or the start is refused."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from tests.app_kit import save_model
from tests.integration.servers import free_port
from tests.integration.serving import HOST, START_TIMEOUT_S
from tests.integration.test_asgi_mounted import request, wait_ready

pytestmark = pytest.mark.integration

MANIFEST = """
name = "{name}"
[model]
source = "model.onnx"
preprocess = "{module}:preprocess"
inputs = [{{ name = "x", shape = [-1, 2] }}]
outputs = [{{ name = "y", shape = [-1] }}]
[serve]
variant = "source"
"""
HOOKS = """
import numpy as np

def preprocess(rows):
    from {helpers} import factor
    return {{"x": np.array([[row["v"] * factor, 0] for row in rows], np.float32)}}
"""
APP = """
from contextlib import asynccontextmanager

import tailcut
from fastapi import FastAPI

first, second = tailcut.asgi("{first}"), tailcut.asgi("{second}")

@asynccontextmanager
async def lifespan(app):
    async with first.lifespan(app), second.lifespan(app):
        yield

app = FastAPI(lifespan=lifespan)
late = FastAPI()
for each in (app, late):
    each.mount("/first", first)
    each.mount("/second", second)
"""


def write(folder: Path, name: str, module: str, helpers: str, factor: int) -> None:
    """A deployment that answers v times its factor."""
    (folder / name).mkdir()
    save_model(folder / name / "model.onnx")
    (folder / name / f"{module}.py").write_text(HOOKS.format(helpers=helpers))
    (folder / name / f"{helpers}.py").write_text(f"factor = {factor}\n")
    (folder / name / "tailcut.toml").write_text(MANIFEST.format(name=name, module=module))


@contextmanager
def serving(folder: Path, first: str, second: str, name: str = "app") -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """The application under uvicorn; its process and port."""
    (folder / "two_app.py").write_text(APP.format(first=first, second=second))
    port = free_port()
    command = [sys.executable, "-m", "uvicorn", "--log-level", "info", "--host", HOST, "--port", str(port)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([*command, f"two_app:{name}"], cwd=folder, stdout=log, stderr=log)
    try:
        yield process, port
    finally:
        process.terminate()
        try:
            process.wait(20)
        finally:
            process.kill()


def answer(port: int, path: str, value: float) -> tuple[int, dict[str, object]]:
    status, _, body = request(port, "POST", path, {"rows": [{"v": value}]})
    return status, msgspec.json.decode(body)


@pytest.mark.parametrize(
    ("modules", "helpers", "clash"),
    [
        (("my_model", "my_model"), ("a_help", "b_help"), "my_model"),
        (("a_model", "b_model"), ("helpers", "helpers"), "helpers"),
    ],
    ids=["module", "lazy helper"],
)
def test_modules_of_one_name_stop_the_application(
    tmp_path: Path, modules: tuple[str, str], helpers: tuple[str, str], clash: str
) -> None:
    for name, module, helper, factor in zip("ab", modules, helpers, (1, 100), strict=True):
        write(tmp_path, name, module, helper, factor)
    with serving(tmp_path, "a/tailcut.toml", "b/tailcut.toml") as (process, _):
        assert process.wait(START_TIMEOUT_S) == 3
    log = (tmp_path / "log").read_text()
    assert f"imports {clash} from" in log
    assert f"{tmp_path}/a/{clash}.py" in log
    assert f"{tmp_path}/b/{clash}.py" in log
    assert "rename one of the two files" in log


def test_modules_of_their_own_names_answer_by_themselves(tmp_path: Path) -> None:
    write(tmp_path, "a", "a_model", "helpers", 1)
    write(tmp_path, "b", "b_model", "b_help", 100)
    with serving(tmp_path, "a/tailcut.toml", "b/tailcut.toml") as (_, port):
        wait_ready(port, "/first/v2/health/ready", tmp_path)
        assert answer(port, "/second/predict/b", 7)[1]["predictions"] == [{"y": 700.0}]
        assert answer(port, "/first/predict/a", 7)[1]["predictions"] == [{"y": 7.0}]


def test_one_deployment_mounted_twice_answers_twice(tmp_path: Path) -> None:
    write(tmp_path, "a", "a_model", "helpers", 3)
    with serving(tmp_path, "a/tailcut.toml", "a/../a") as (_, port):
        wait_ready(port, "/second/v2/health/ready", tmp_path)
        for path in ("/first/predict/a", "/second/predict/a"):
            assert answer(port, path, 7)[1]["predictions"] == [{"y": 21.0}]


def test_started_by_its_first_request_the_second_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, "a", "my_model", "a_help", 1)
    write(tmp_path, "b", "my_model", "b_help", 100)
    with serving(tmp_path, "a/tailcut.toml", "b/tailcut.toml", "late") as (_, port):
        wait_ready(port, "/first/v2/health/ready", tmp_path)
        assert answer(port, "/first/predict/a", 7)[1]["predictions"] == [{"y": 7.0}]
        give_up_s = time.monotonic() + START_TIMEOUT_S
        while "my_model" not in str(answer(port, "/second/predict/b", 7)[1]["error"]):
            assert time.monotonic() < give_up_s
        status, body = answer(port, "/second/predict/b", 7)
        assert (status, "rename one of the two files" in str(body["hint"])) == (503, True)
        assert answer(port, "/first/predict/a", 7)[0] == 200
