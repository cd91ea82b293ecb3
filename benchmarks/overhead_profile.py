"""Where each microsecond of the request path goes: every part alone, in a tight loop."""

from __future__ import annotations

import asyncio
import timeit
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np

from benchmarks.mlp import BODY_FLOATS
from tailcut.engine.engine import Engine
from tailcut.manifest import load
from tailcut.server.app import Application

_NUMBER = 300
_REPEAT = 11


class _Body:
    async def __call__(self) -> bytes:
        return BODY_FLOATS

    async def client_disconnect(self) -> None:
        await asyncio.get_running_loop().create_future()

    def __aiter__(self) -> Any:
        raise NotImplementedError


def profile(model: Path) -> dict[str, float]:
    """Return microseconds per part, largest sum last."""
    return asyncio.run(_profile(model))


async def _profile(model: Path) -> dict[str, float]:
    engine = Engine(load(model.parent))
    await engine.start()
    application = Application(engine)
    headers = {"content-length": str(len(BODY_FLOATS)), "content-type": "application/json"}
    route = "/v2/models/mlp/infer"
    body = _Body()
    await application.handle("POST", route, headers, body)
    if application._codec is None:
        raise RuntimeError("the codec was not opened")
    _, codec = application._codec
    inference = codec.decode(BODY_FLOATS)
    outputs = engine.path.outputs
    runtime = engine.path.dispatcher._executors[0]._runtime  # type: ignore[attr-defined]  # looked at, not used
    result = runtime.run(inference.inputs, outputs)
    spec = engine.path.specs[0]
    array = inference.inputs["x"]
    data = array.ravel().tolist()
    call = engine.begin("infer", perf_counter_ns())
    for stage in (0, 1, 2, 7, 8, 10):
        call.timings.lap(stage, perf_counter_ns())
    engine.end(call, "ok")

    def begin_end() -> None:
        engine.end(engine.begin("infer", perf_counter_ns()), "ok")

    parts: dict[str, float] = {
        "decode JSON, make and check the array": _time(lambda: codec.decode(BODY_FLOATS)),
        "of which numpy array from the list": _time(lambda: np.array(data, dtype=np.float32)),
        "of which the check for NaN and infinity": _time(lambda: spec.check_values(array)),
        "session.run on one row": _time(lambda: runtime.run(inference.inputs, outputs)),
        "encode the reply": _time(lambda: codec.encode(inference, result)),
        "Server-Timing and the other headers": _time(lambda: application._headers(call, headers)),
        "count the request (all histograms)": _time(
            lambda: engine.recorder.request(call.timings, "infer", "source", "ok", "off")
        ),
        "begin and end a request": _time(begin_end),
        "one event-loop turn": await _time_async(lambda: asyncio.sleep(0)),
        "queue, plan, run and hand back one row": await _time_async(
            lambda: engine.path.infer(engine.begin("infer", perf_counter_ns()), inference.inputs, 1, outputs)
        ),
        "whole request without HTTP": await _time_async(lambda: application.handle("POST", route, headers, body)),
    }
    await engine.stop(1.0)
    return parts


def _time(work: Callable[[], object]) -> float:
    return median(timeit.repeat(work, number=_NUMBER, repeat=_REPEAT)) / _NUMBER * 1e6


async def _time_async(work: Callable[[], Any]) -> float:
    samples = []
    for _ in range(_REPEAT):
        started_ns = perf_counter_ns()
        for _ in range(_NUMBER):
            await work()
        samples.append((perf_counter_ns() - started_ns) / _NUMBER / 1000)
    return median(samples)
