"""An application that calls real libraries, path by path, and times each call itself."""

from __future__ import annotations

import contextlib
import io
import json
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import lightgbm
import numpy as np
import onnxruntime
import openvino
import requests
import urllib3
import xgboost
from onnx import TensorProto, helper, numpy_helper
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

naps: list[int] = []
NAP_S = 0.05
"""Long beside what a client does for a request itself."""

rng = np.random.default_rng(0)
ROWS = rng.normal(size=(20_000, 8)).astype(np.float32)
FEW = ROWS[:200]
CLASSES = (FEW[:, 0] > 0).astype(np.int64)


class Sleepy(BaseHTTPRequestHandler):
    """Answers after a while."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        time.sleep(NAP_S)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"ok")

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


server = ThreadingHTTPServer(("127.0.0.1", 0), Sleepy)
threading.Thread(target=server.serve_forever, daemon=True).start()
URL = f"http://127.0.0.1:{server.server_port}/sleepy"


def graph() -> bytes:
    """A stack of layers that takes some milliseconds."""
    weight = numpy_helper.from_array((rng.normal(size=(512, 512)) / 23).astype(np.float32), "w")
    nodes = []
    for step in range(40):
        nodes += [
            helper.make_node("MatMul", [f"x{step}" if step else "x", "w"], [f"h{step}"]),
            helper.make_node("Tanh", [f"h{step}"], [f"x{step + 1}" if step < 39 else "y"]),
        ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 512]) for name in "xy")
    made = helper.make_graph(nodes, "stack", [x], [y], [weight])
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9).SerializeToString()


STACK = rng.normal(size=(32, 512)).astype(np.float32)
MODEL = graph()
# One thread each, as all models here: with more they wait for cores that a neighbour has.
alone = onnxruntime.SessionOptions()
alone.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(MODEL, alone)
core = openvino.Core()
compiled = core.compile_model(core.read_model(io.BytesIO(MODEL)), "CPU", {"INFERENCE_NUM_THREADS": 1})
forest = RandomForestClassifier(60, random_state=0, n_jobs=1).fit(FEW, CLASSES)
pipeline = make_pipeline(StandardScaler(), forest)
pipeline.fit(FEW, CLASSES)
boosted = xgboost.XGBClassifier(n_estimators=60, n_jobs=1).fit(FEW, CLASSES)
booster = boosted.get_booster()
leaves = lightgbm.LGBMClassifier(n_estimators=60, n_jobs=1, verbose=-1).fit(FEW, CLASSES)
ridge = Ridge().fit(FEW, FEW[:, 0])
pooled = urllib3.PoolManager()
kept, kept_async = httpx.Client(), httpx.AsyncClient()  # to make one takes longer than to ask

MODELS: dict[str, Callable[[], Any]] = {
    "/sklearn": lambda: forest.predict_proba(ROWS),
    "/pipeline": lambda: pipeline.predict(ROWS),
    "/onnxruntime": lambda: session.run(None, {"x": STACK}),
    "/openvino": lambda: compiled(STACK),
    "/xgboost": lambda: booster.inplace_predict(ROWS),
    "/xgboost-sklearn": lambda: boosted.predict_proba(ROWS),
    "/lightgbm": lambda: leaves.booster_.predict(ROWS, num_threads=1),
    "/lightgbm-sklearn": lambda: leaves.predict_proba(ROWS),
}
CALLS: dict[str, Callable[[], Any]] = {
    "/requests": lambda: requests.get(URL, timeout=5).text,
    "/urllib3": lambda: pooled.request("GET", URL).data,
    "/urllib": lambda: urllib.request.urlopen(URL, timeout=5).read(),
    "/httpx": lambda: kept.get(URL).text,
}


async def by_httpx() -> None:
    await kept_async.get(URL)


WAITS: dict[str, Callable[[], Awaitable[None]]] = {"/httpx-async": by_httpx}


@contextlib.contextmanager
def timed() -> Iterator[None]:
    began_ns = time.perf_counter_ns()
    yield
    naps.append(time.perf_counter_ns() - began_ns)


async def app(scope: Any, receive: Any, send: Any) -> None:
    """ASGI, without a framework."""
    path = scope["path"]
    await receive()
    with timed():
        if path in WAITS:
            await WAITS[path]()
        else:
            (MODELS | CALLS)[path]()
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": json.dumps(path).encode()})
