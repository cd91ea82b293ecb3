"""A small made-up recording: a pilot whose handler recomputes features, asks the database twice and runs a model."""

from __future__ import annotations

import numpy as np

from tailcut.profiler.attribution.layers import DISPATCH, ModelLayers, layers_of, operators_of
from tailcut.profiler.levers.advice import Advice, LeverAdvice
from tailcut.profiler.records import (
    Moment,
    ProfiledProcess,
    RecordedRequest,
    RecordedSpan,
    Recording,
    StackSample,
    Stage,
)

MS = 1_000_000
QUERIES = ("SELECT * FROM flights WHERE id = {}", "SELECT delay FROM weather WHERE origin = 'JFK' AND ts < {}")


def recording(count: int = 400, seed: int = 0) -> Recording:
    """Requests every 20 ms; one in twelve waits for the loop, the slow tail recomputes for longer."""
    rng = np.random.default_rng(seed)
    requests, samples, moments = [], [], []
    for number in range(count):
        at = number * 20 * MS
        slow = float(rng.lognormal(0.0, 0.45))
        parts = [
            (Stage.DECODE, "pydantic", "", 0.4),
            (Stage.SQL, QUERIES[0].format(number), "features.py:42", 2.1 * slow),
            (Stage.SQL, QUERIES[1].format(number), "features.py:57", 1.2),
            (Stage.CODE, "recompute (features.py:60)", "features.py:60", 9.0 * slow),
            (Stage.MODEL, "torch FlightRisk", "app.py:31", 1.6),
            (Stage.ENCODE, "json", "", 0.2),
        ]
        wait = int(6 * MS) if number % 12 == 0 else 0
        entered = at + wait + MS // 4
        total = sum(int(ms * MS) for _, _, _, ms in parts)
        root_end = entered + total + MS // 2
        spans = [RecordedSpan(stage=Stage.FRAMEWORK, label="fastapi", start_ns=entered, end_ns=root_end)]
        begin = entered + MS // 4
        for stage, label, place, ms in parts:
            end = begin + int(ms * MS)
            spans.append(RecordedSpan(stage=stage, label=label, place=place, start_ns=begin, end_ns=end, parent=0))
            if stage == Stage.CODE:
                samples += _samples(label, place, begin, end)
            begin = end
        if wait:
            moments.append(Moment(stage=Stage.LOOP, start_ns=at, end_ns=at + wait, label="flush", place="audit.py:9"))
        failed = number % 100 == 99
        requests.append(
            RecordedRequest(
                number=number,
                intended_ns=at,
                sent_ns=at + 20_000,
                done_ns=root_end + MS // 5,
                entered_ns=entered,
                left_ns=root_end,
                status=500 if failed else 200,
                method="POST",
                path="/predict",
                endpoint="predict (app.py:20)",
                spans=tuple(spans),
            )
        )
    return Recording(
        target="pilot:app",
        rate=50.0,
        duration_s=count / 50,
        requests=tuple(requests),
        moments=tuple(moments),
        samples=tuple(samples),
        sample_interval_ns=2 * MS,
        machine={"cpu": "a processor", "cores": "2"},
        pilot=ProfiledProcess(
            loop="uvloop", threads=40, hooks=("fastapi", "sqlite3", "torch"), versions={"fastapi": "0.115"}
        ),
        notes=("redis is imported before the hooks: its calls are not seen",),
    )


def _samples(label: str, place: str, begin: int, end: int) -> list[StackSample]:
    found = []
    for look in range(len(range(begin + MS, end, 2 * MS))):
        inner = "rolling_mean (features.py:71)" if look % 4 else "as_row <script> (features.py:88)"
        stack = ("predict (app.py:20)", "recompute (features.py:60)", inner)
        found.append(StackSample(stack=stack, weight_ns=2 * MS, place=inner, code=(label, place)))
    return found


def layers() -> ModelLayers:
    """Of a small model on the CPU."""
    return ModelLayers(
        model="FlightRisk",
        runtime="torch 2.13.0",
        inputs="#0 float32 [1, 25]",
        runs=50,
        run_ms=0.56,
        profiled_ms=1.2,
        layers=layers_of(
            [("head", "Linear", 1, 0.3, "aten::addmm"), ("norm", "LayerNorm", 2, 0.1, "aten::layer_norm")]
        ),
        operators=operators_of([("aten::addmm", 4, 0.3), ("aten::layer_norm", 2, 0.1), (DISPATCH, 1, 0.2)]),
        device_note="not here: no CUDA device",
        notes=("torch runs on 1 threads here",),
    )


def advice() -> Advice:
    """Pull one lever, leave another."""
    return Advice(
        rate=50.0,
        percentile="p95",
        limit_ms=25.0,
        p95_ms=28.6,
        capacity=41.0,
        limited_by="the event loop's thread",
        levers=(
            LeverAdvice(
                lever="feature cache",
                order=1,
                reason="two queries and the code around them go",
                p95_ms=(9.0, 12.0),
                bound_p95_ms=4.0,
                capacity=310.0,
                after_p95_ms=(9.0, 12.0),
                basis=("62 % hits, as the payloads repeat",),
            ),
            LeverAdvice(
                lever="INT8",
                order=0,
                reason="not worth it: the model is 6 % of the time",
                p95_ms=(28.1, 28.4),
                bound_p95_ms=27.0,
                capacity=44.0,
                basis=("prior: somewhere else",),
            ),
        ),
        summary=("in this order: feature cache", "INT8: not worth it: the model is 6 % of the time"),
        notes=("other processes used 3% of this machine's cores meanwhile",),
    )
