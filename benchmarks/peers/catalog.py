"""The servers that are measured: what each needs installed, how it is started, what it is asked."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

SERVED = Path(__file__).resolve().parent / "served"
NUMERIC = (f"onnxruntime=={version('onnxruntime')}",)
"""In every environment: the model's runtime must be the same, or the model would be compared and not the server."""


@dataclass(frozen=True)
class Task:
    """The model that is served.

    Args:
        model: ONNX file.
        name: of the model in paths.
        rows: largest batch.
        blocks: a batch takes so long that it must not run on an event loop.
        latency_ms: what BentoML's batching is told to stay under.
        deadline_ms: told to the servers that have such a setting; 0: their default.
    """

    model: Path
    name: str = "mlp"
    rows: int = 32
    blocks: bool = False
    latency_ms: int = 1000
    deadline_ms: int = 0


@dataclass(frozen=True)
class Peer:
    """A server, in one configuration.

    Args:
        requirements: pinned; an environment is made of them (none: this one's).
        command: of (python, port, task, folder for its files) -> arguments.
        path: where requests go; ``{name}`` is the model's.
        form: "row" for {"x": [numbers]}, "rows" for {"x": [[numbers]]}, "oip" for an Open Inference Protocol body.
        env: in addition to what every peer is told.
        setting: in words, for the table.
    """

    name: str
    package: str
    requirements: tuple[str, ...]
    command: Callable[[str, int, Task, Path], Sequence[str]]
    path: str
    form: str
    setting: str
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def environment(self) -> str:
        """Name of its environment; configurations of one package share one."""
        return self.package

    def environ(self, task: Task) -> dict[str, str]:
        """Return the environment variables that its server is started with."""
        told = {"PEER_MODEL": str(task.model), "PEER_MAX_ROWS": str(task.rows), "PEER_LATENCY_MS": str(task.latency_ms)}
        if task.deadline_ms:
            told["PEER_TIMEOUT_S"] = str(task.deadline_ms / 1000)
        if task.blocks:
            told["PEER_BLOCKS"] = "1"
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        return {**os.environ, **threads, **told, "PYTHONPATH": str(SERVED), **_QUIET, **self.env}


_QUIET = {"BENTOML_DO_NOT_TRACK": "True", "LIT_SERVER_DISABLE_CLIENT": "1", "NO_COLOR": "1"}


def _script(file: str) -> Callable[[str, int, Task, Path], Sequence[str]]:
    return lambda python, port, task, folder: [python, str(SERVED / file), str(port)]


def _mosec(python: str, port: int, task: Task, folder: Path) -> Sequence[str]:
    command = [python, str(SERVED / "mosec_app.py"), "--address", "127.0.0.1", "--port", str(port)]
    deadline = ["--timeout", str(task.deadline_ms)] if task.deadline_ms else []
    return [*command, "--log-level", "error", *deadline]


def _bentoml(python: str, port: int, task: Task, folder: Path) -> Sequence[str]:
    return [
        python, "-m", "bentoml", "serve", "bentoml_app:Predict", "--working-dir", str(SERVED),
        "--host", "127.0.0.1", "--port", str(port),
    ]  # fmt: skip


def _mlserver(python: str, port: int, task: Task, folder: Path) -> Sequence[str]:
    """Write MLServer's two settings files; three ports in a row are its own."""
    own = folder / f"mlserver-{port}"
    own.mkdir(parents=True, exist_ok=True)
    server = {
        "host": "127.0.0.1", "http_port": port, "grpc_port": free_port(), "metrics_port": free_port(),
        "parallel_workers": int(task.blocks), "debug": False,
    }  # fmt: skip
    model = {
        "name": task.name, "implementation": "mlserver_runtime.OnnxModel", "max_batch_size": task.rows,
        "max_batch_time": 0.002,
    }  # fmt: skip
    (own / "settings.json").write_text(json.dumps(server))
    (own / "model-settings.json").write_text(json.dumps(model))
    return [str(Path(python).parent / "mlserver"), "start", str(own)]


def free_port() -> int:
    """Return a port of the loopback that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _noop(python: str, port: int, task: Task, folder: Path) -> Sequence[str]:
    return [sys.executable, "-m", "benchmarks.noop", str(port)]


def _noop_own(python: str, port: int, task: Task, folder: Path) -> Sequence[str]:
    return [sys.executable, "-m", "benchmarks.noop_own", str(port)]


def _tailcut(python: str, port: int, task: Task, folder: Path) -> Sequence[str]:
    return [sys.executable, "-m", "tailcut", "serve", "--manifest", str(task.model.parent), "--port", str(port)]


INFER = "/v2/models/{name}/infer"
NOOP = Peer("no-op", "granian", (), _noop, INFER, "oip", "Granian RSGI handler that reads the body, nothing else")
NOOP_OWN = Peer("no-op, own HTTP", "tailcut", (), _noop_own, INFER, "oip", "the same on tailcut's own HTTP/1.1")
TAILCUT = Peer("tailcut", "tailcut", (), _tailcut, INFER, "oip", "defaults; batching auto; timings and metrics on")
NOOP_BINARY = Peer("no-op, binary", "granian", (), _noop, INFER, "binary", "the same handler, takes the same bytes")
TAILCUT_BINARY = Peer("tailcut, binary", "tailcut", (), _tailcut, INFER, "binary", "binary tensors both ways")

PEERS = (
    Peer(
        "FastAPI", "fastapi", ("fastapi==0.165.0", "uvicorn[standard]==0.54.0"), _script("fastapi_app.py"), "/predict",
        "row", "uvicorn, uvloop and httptools, one worker, no batching",
    ),
    *(
        Peer(
            f"Mosec, {wait} ms", "mosec", ("mosec==0.9.8",), _mosec, "/inference", "row",
            f"max_wait_time {wait} ms, one worker", {"PEER_WAIT_MS": str(wait)},
        )
        for wait in (2, 10)
    ),
    Peer(
        "LitServe", "litserve", ("litserve==0.2.19",), _script("litserve_app.py"), "/predict", "row",
        "batch_timeout 2 ms, one worker",
    ),
    Peer(
        "BentoML", "bentoml", ("bentoml==1.4.39",), _bentoml, "/predict", "rows",
        "adaptive batching, one worker",
    ),
    Peer(
        "MLServer", "mlserver", ("mlserver==1.7.1", "uvloop==0.21.0"), _mlserver, INFER, "oip",
        "adaptive batching, max_batch_time 2 ms, V2 protocol; in its own process, or one worker where the model blocks",
    ),
)  # fmt: skip
