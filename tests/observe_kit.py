"""What the tests of metrics share: a request that has ended."""

from __future__ import annotations

from dataclasses import dataclass

from tailcut.common.timings import Timings
from tailcut.observe.recorder import Recorder
from tailcut.observe.sinks import FinishedBatch


@dataclass
class Ended:
    """A request as sinks receive it."""

    timings: Timings
    route: str = "infer"
    variant: str = "onnx"
    code: str = "ok"
    cache: str = "off"
    tenant: str = ""


def record(recorder: Recorder, timings: Timings, route: str, variant: str, code: str, cache: str) -> None:
    """Count one request."""
    recorder.on_requests("m", [Ended(timings, route, variant, code, cache)])


def batch(rows: int, duration_ns: int) -> FinishedBatch:
    """A batch that ran."""
    return FinishedBatch("onnx", "1", rows, duration_ns, (), ())
