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
from tailcut.manifest import load
from tailcut.models.runtimes import open_runtime
from tailcut.pipeline.request_context import RequestContext
from tailcut.protocol.app import Application
from tailcut.protocol.data_plane import DataPlane
from tailcut.protocol.open_inference.codec import Inference, InferenceCodec
from tailcut.protocol.predict import PredictReplies
from tailcut.serving.engine import Engine
from tailcut.serving.host import Host

_NUMBER = 300
_REPEAT = 11
_HEADERS = {"content-length": str(len(BODY_FLOATS)), "content-type": "application/json"}


class _Body:
    async def __call__(self) -> bytes:
        return BODY_FLOATS

    async def client_disconnect(self) -> None:
        await asyncio.get_running_loop().create_future()

    def __aiter__(self) -> Any:
        raise NotImplementedError


def profile(model: Path) -> dict[str, float]:
    """Return microseconds per part; the last is the whole."""
    return asyncio.run(_profile(model))


async def _profile(model: Path) -> dict[str, float]:
    host = Host.of(load(model.parent))
    await host.start()
    engine, application = host.only, Application(DataPlane(host))
    body = _Body()
    path = engine.pipeline
    codec = InferenceCodec("mlp", path.serving.version, path.specs, path.outputs, max_rows=1024)
    inference = codec.decode(BODY_FLOATS)
    parts = _alone(engine, codec, inference)
    parts["one event-loop turn"] = await _time_async(lambda: asyncio.sleep(0))
    parts["admit, run and hand back one row, alone"] = await _time_async(lambda: _one(engine, inference))
    # A second request in flight: what asks now may find others to share a batch with, and is queued and planned.
    other = engine.begin("infer", perf_counter_ns())
    parts["admit, queue, plan, run and hand back one row"] = await _time_async(lambda: _one(engine, inference))
    engine.end(other, "ok")
    parts["whole request without HTTP, alone"] = await _time_async(
        lambda: application.handle("POST", "/v2/models/mlp/infer", _HEADERS, body)
    )
    await host.stop(1.0)
    return parts


def _alone(engine: Engine, codec: InferenceCodec, inference: Inference) -> dict[str, float]:
    """Time what needs no event loop."""
    outputs = engine.pipeline.outputs
    runtime = open_runtime(engine.opened.variant, threads=1)
    result = runtime.run(inference.inputs, outputs)
    array = inference.inputs["x"]
    data, spec = array.ravel().tolist(), engine.pipeline.specs[0]
    replies = PredictReplies()
    context = _answered(engine)

    def begin_end() -> None:
        engine.end(engine.begin("infer", perf_counter_ns()), "ok")

    parts = {
        "decode JSON, make and check the array": _time(lambda: codec.decode(BODY_FLOATS)),
        "of which numpy array from the list": _time(lambda: np.array(data, dtype=np.float32)),
        "of which the check for NaN and infinity": _time(lambda: spec.check_values(array)),
        "session.run on one row": _time(lambda: runtime.run(inference.inputs, outputs)),
        "encode the reply": _time(lambda: codec.encode(inference, result)),
        "Server-Timing and the other headers": _time(lambda: replies.headers(context, _HEADERS)),
        "count the request (all histograms)": _time(lambda: engine.sinks.request(context)),
        "begin and end a request": _time(begin_end),
    }
    runtime.close()
    return parts


def _answered(engine: Engine) -> RequestContext:
    """Return the record of a request that has been through the usual stages."""
    context = engine.begin("infer", perf_counter_ns())
    engine.pipeline.admit(context, 1)
    for stage in (0, 1, 7, 8, 10):
        context.timings.lap(stage, perf_counter_ns())
    engine.end(context, "ok")
    return context


async def _one(engine: Engine, inference: Inference) -> None:
    path = engine.pipeline
    context = engine.begin("infer", perf_counter_ns())
    path.admit(context, 1)
    await path.infer(context, inference.inputs, 1, path.outputs)
    engine.end(context, "ok")


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
