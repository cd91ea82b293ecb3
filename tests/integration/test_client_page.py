"""What docs/how-to/serve.md, client.md and in-process.md print runs as it is printed: a manifest, requests, code."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx
import pytest
from fastapi.testclient import TestClient
from onnx import TensorProto, helper, numpy_helper
from tests.docs.pages import ROOT, blocks, commands
from tests.integration.serving import Served

from tailcut.errors import Shed

pytestmark = pytest.mark.integration

PAGES = ROOT / "docs" / "how-to"
PATIENT = 'slo.timeout="10s"'  # what is answered is the question here, not how soon on a machine that others use


def printed(page: str, language: str) -> list[str]:
    """The blocks of a page."""
    return [text for each, text in blocks(PAGES / page) if each == language]


def prepare(folder: Path) -> None:
    """Write the model, and the manifest of serve.md."""
    save_model(folder / "risk.onnx")
    (manifest,) = (text for text in printed("serve.md", "toml") if "risk.onnx" in text)
    (folder / "tailcut.toml").write_text(manifest)


def save_model(path: Path) -> None:
    """Save features (n, 2) -> probability (n): the sigmoid of their sum."""
    axis = numpy_helper.from_array(np.array([1], dtype=np.int64), "axis")
    nodes = [
        helper.make_node("ReduceSum", ["features", "axis"], ["sum"], keepdims=0),
        helper.make_node("Sigmoid", ["sum"], ["probability"]),
    ]
    inputs = [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["n", 2])]
    outputs = [helper.make_tensor_value_info("probability", TensorProto.FLOAT, ["n"])]
    graph = helper.make_graph(nodes, "risk", inputs, outputs, [axis])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def test_code_of_the_client(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = "\n".join(printed("client.md", "python"))
    assert "http://127.0.0.1:8700" in code
    assert "timeout_s=0.25" in code
    prepare(tmp_path)
    with Served(tmp_path, settings=(PATIENT,), prepared=True) as server:
        names: dict[str, object] = {"__name__": "page"}
        code = code.replace(":8700", f":{server.port}").replace("timeout_s=0.25", "timeout_s=10.0")
        exec(compile(code.replace("timeout_s=1.0", "timeout_s=10.0"), "client.md", "exec"), names)
        names["client"].close()  # type: ignore[attr-defined]
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("{'probability': ")
    assert " source " in said[0]
    assert said[1] == "(2,) off"
    assert said[2].startswith("input 'features' has datatype 'FP64', expected FP32 -> ")
    assert said[3] == "['source']"
    assert len(said[4].strip("[]").split(", ")) == 10


def test_requests_to_what_is_served(tmp_path: Path) -> None:
    prepare(tmp_path)
    requests = [command for command in commands(PAGES / "serve.md") if command[0] == "curl"]
    assert len(requests) == 2
    with Served(tmp_path, settings=(PATIENT,), prepared=True) as server:
        for _, url, _, body in requests:
            host, path = url.removeprefix("http://").split("/", 1)
            assert host == "127.0.0.1:8700"
            status, said = server.post(f"/{path}", json.loads(body))
            assert status == 200, said
            assert "probability" in json.dumps(said)


def test_code_of_an_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAILCUT_SLO__TIMEOUT", "10s")
    (code,) = (text for text in printed("serve.md", "python") if 'asgi("tailcut.toml")' in text)
    names: dict[str, Any] = {}
    exec(compile(code, "serve.md", "exec"), names)

    async def ask() -> Any:
        app = httpx.ASGITransport(names["app"])
        async with names["model"].lifespan(), httpx.AsyncClient(transport=app, base_url="http://app") as client:
            return (await client.post("/model/predict/risk", json={"rows": [{"age": 41, "income": 2300}]})).json()

    assert asyncio.run(ask())["predictions"][0].keys() == {"probability"}


def test_code_of_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    prepare(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TAILCUT_SLO__TIMEOUT", "10s")
    alone, application = printed("in-process.md", "python")
    exec(compile(alone, "in-process.md", "exec"), {})
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("{'probability': ")
    assert said[1] == "(2,)"
    names: dict[str, Any] = {}
    exec(compile(application.replace("deadline_s=2.0", "deadline_s=10.0"), "in-process.md", "exec"), names)
    app = names["app"]
    with TestClient(app) as client:
        assert client.post("/decisions", json={"age": -4, "income": 1}).json() == {"accepted": True}
        assert client.post("/decisions", json={"age": 4, "income": 1}).json() == {"accepted": False}
        assert 'route="local_predict"' in client.get("/metrics").text

        class Full:
            async def predict(self, rows: object, deadline_s: float) -> object:
                raise Shed("no room", retry_after_s=2.0)

        app.dependency_overrides[names["risk_model"]] = Full
        shed = client.post("/decisions", json={"age": 4, "income": 1})
        assert (shed.status_code, shed.json()["code"]) == (429, "shed")
