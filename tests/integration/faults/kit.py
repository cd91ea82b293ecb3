"""What the tests of faults share: what a worker holds, its executors' processes, and models that go wrong on cue."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from prometheus_client.parser import text_string_to_metric_families
from tests.app_kit import samples
from tests.integration.serving import Served

IDS = """
name = "m"

[model]
source = "model.onnx"
inputs = [{ name = "id", shape = [-1, 1], datatype = "INT64" }]
outputs = [{ name = "y", shape = [-1, 1] }]

[serve]
variant = "source"
"""
KNOWN = 100


def save_table(path: Path) -> None:
    """Save id (n, 1) INT64 -> y (n, 1): 10 * id. An id from ``KNOWN`` on makes the whole batch fail."""
    table = numpy_helper.from_array(np.arange(KNOWN, dtype=np.float32) * 10, "table")
    graph = helper.make_graph(
        [helper.make_node("Gather", ["table", "id"], ["y"])],
        "table",
        [helper.make_tensor_value_info("id", TensorProto.INT64, ["n", 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 1])],
        [table],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def save_slow(path: Path, steps: int) -> None:
    """Save x (n, 2) -> y (n), z (n, 2), whose time is that of so many products with a matrix of 512 by 512."""
    random = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(random.normal(size=(2, 512)).astype(np.float32), "in"),
        numpy_helper.from_array((random.normal(size=(512, 512)) / 23).astype(np.float32), "w"),
        numpy_helper.from_array(random.normal(size=(512, 2)).astype(np.float32), "out"),
        numpy_helper.from_array(np.array([1], dtype=np.int64), "axis"),
    ]
    nodes = [helper.make_node("MatMul", ["x", "in"], ["h0"])]
    for step in range(steps):
        nodes.append(helper.make_node("MatMul", [f"h{step}", "w"], [f"p{step}"]))
        nodes.append(helper.make_node("Tanh", [f"p{step}"], [f"h{step + 1}"]))
    nodes.append(helper.make_node("MatMul", [f"h{steps}", "out"], ["z"]))
    nodes.append(helper.make_node("ReduceSum", ["z", "axis"], ["y"], keepdims=0))
    values = {
        name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", ["n", 2]), ("y", ["n"]), ("z", ["n", 2]))
    }
    graph = helper.make_graph(nodes, "slow", [values["x"]], [values["y"], values["z"]], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def ids(*values: int) -> dict[str, Any]:
    """A request for these ids."""
    return {"inputs": [{"name": "id", "shape": [len(values), 1], "datatype": "INT64", "data": list(values)}]}


def counted(server: Served, name: str, *labels: str) -> float:
    """The sum of a metric's samples that have all of these values of labels."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(server.metrics())
        for sample in family.samples
        if sample.name == name and set(labels) <= set(sample.labels.values())
    )


def outcomes(server: Served) -> dict[str, float]:
    """Requests by how they ended."""
    found: dict[str, float] = {}
    for (_, _, outcome, _), count in samples(server.metrics(), "tailcut_requests_total").items():
        found[outcome] = found.get(outcome, 0) + count
    return found


def open_files(server: Served) -> int:
    """Files, sockets and pipes that the worker has open."""
    return len(os.listdir(f"/proc/{server.worker_pid}/fd"))


def children(pid: int) -> list[int]:
    """Processes that any of its threads started."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


def executors(server: Served) -> list[int]:
    """The processes of the worker's executors."""
    return [
        pid
        for pid in children(server.worker_pid)
        if b"tailcut.models.runtimes.remote.child" in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    ]


@contextmanager
def paused(*pids: int) -> Iterator[None]:
    """Processes that do not run for a while; those that are gone at the end are left alone."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGCONT)
            except ProcessLookupError:
                continue


async def until(server: Served, condition: Any, timeout_s: float = 20.0) -> None:
    """Wait for a condition beside what the event loop does meanwhile."""
    await asyncio.to_thread(server.wait_until, condition, timeout_s)


def wait_refused(server: Served) -> None:
    """Wait until the port is closed: the drain has ended, and the server is stopping."""
    give_up_s = time.monotonic() + 20
    while True:
        try:
            server.get("/v2/health/live")
        except ConnectionRefusedError:
            return
        except OSError:
            pass  # cut off on the way
        assert time.monotonic() < give_up_s, "the port stayed open"
        time.sleep(0.01)
