"""A small recorded ladder: figures as a real climb gives them, with a refused rung, a saturated pilot and a setback."""

from __future__ import annotations

from tailcut.common.statistics import Percentiles
from tailcut.report.ladder.file import Capacity, LadderRecord, Measurement, PilotFacts, RungRecord

SLO = "p95=25ms,errors=0.1%"


def shape(p95: float, count: int = 600) -> Percentiles:
    return Percentiles(
        count=count, mean=p95 * 0.6, p50=p95 * 0.55, p90=p95 * 0.9, p95=p95, p99=p95 * 1.6, p999=p95 * 2, max=p95 * 3
    )


def seen(
    name: str, rate: float, p95: float, round_: int, stages: dict[str, float], *, answered: float = 1.0
) -> Measurement:
    noise = (1.0, 0.93, 1.08)[round_]
    requests = int(rate * 15)
    return Measurement(
        round=round_ + 1,
        rate_name=name,
        rate=rate,
        requests=requests,
        answered=int(requests * answered),
        sheds=0,
        errors={"timeout": requests - int(requests * answered)} if answered < 1 else {},
        offered_rps=rate,
        throughput_rps=rate * answered,
        goodput_rps=rate * answered,
        latency_ms=shape(p95 * noise),
        lag_ms=shape(0.2),
        stages_ms={**stages, "total": sum(stages.values())} if stages else {},
        cache={"hit": 300, "miss": 300} if stages.get("entity_cache") else {},
        cpu_s_per_1000=p95 * 0.3 * noise,
    )


def rung(
    name: str,
    at_40: float,
    at_200: float,
    stages: dict[str, float],
    rate: float,
    added: tuple[str, ...] = (),
    auc: float = 0.7462,
    answered: float = 1.0,
) -> RungRecord:
    return RungRecord(
        name=name,
        pilot=name == "pilot",
        added=added,
        settings=added,
        command=("python", "-m", "tailcut", "serve"),
        quality={"auc": auc, "log_loss": 0.5021, "accuracy": 0.79},
        measurements=tuple(
            one
            for round_ in range(3)
            for one in (
                seen("comfortable", 38.5, at_40, round_, stages),
                seen("200", 200.0, at_200, round_, stages, answered=answered),
            )
        ),
        capacity=Capacity(
            objectives=SLO,
            rate=rate,
            confirmed=True,
            limit="p95 (limit 25 ms): 4 of 40 requests are already later (at 2.4 req/s)"
            if rate == 0
            else f"p95 (limit 25 ms): 61 of 1200 requests are already later (at {rate * 1.05 + 4:.4g} req/s)",
            complete=True,
        ),
    )


def sample() -> LadderRecord:
    slow = {"validate": 0.05, "features": 9.1, "preprocess": 0.4, "queue": 1.1, "infer": 6.2, "encode": 0.05}
    cached = {**slow, "features": 0.6}
    onnx = {**cached, "infer": 1.6, "queue": 0.5}
    batched = {**onnx, "queue": 0.8}
    full = {"validate": 0.05, "entity_cache": 0.08, "features": 0.3, "preprocess": 0.2, "queue": 0.3, "infer": 0.8}
    refused = RungRecord(
        name="+ INT8 dynamic",
        added=("serve.variant=int8-dynamic",),
        variant="int8-dynamic",
        refused="not faster here: 1.92 ms against 1.61 ms at batch 1 (ratio 1.19, rounds 1.12-1.25)",
    )
    return LadderRecord(
        created="2026-01-05T10:00:00+00:00",
        deployment="flight-risk",
        command="tailcut ladder",
        commit="0123456789ab",
        machine={"cpu": "Example CPU @ 2.5 GHz", "cores": "2", "memory": "7.8 GiB", "python": "3.11.7"},
        versions={"tailcut": "0.1.0", "onnxruntime": "1.31.0", "torch": "2.13.0"},
        settings={"rounds": "3", "measured": "15 s per rung, rate and round, after 3 s of it"},
        slo=SLO,
        quality_budget={"auc": 0.004, "log_loss": 0.004},
        pilot=PilotFacts(
            unloaded_p95_ms=31.2,
            meets_slo_unloaded=False,
            saturation_rate=55.0,
            saturation_limit="p95 (limit 125 ms)",
            comfortable_rate=38.5,
            note="It is 70 % of the pilot's own capacity: 55 req/s without a growing queue.",
        ),
        rate_names=("comfortable", "200"),
        rungs=(
            rung("pilot", 78.0, 1000.0, {}, 0.0, answered=0.28),
            rung("tailcut, every lever off", 24.0, 980.0, slow, 31.0, answered=0.31),
            rung("+ feature cache", 13.5, 260.0, cached, 112.0, ("features.cache=redis",), answered=0.99),
            rung("+ ONNX fp32", 4.1, 12.0, onnx, 410.0, ("serve.variant=onnx",)),
            refused,
            rung("+ micro-batching, warm executors", 4.3, 9.1, batched, 655.0, ("batching.mode=auto",)),
            rung("+ prediction caches", 2.6, 4.9, full, 1480.0, ("cache.entity.enabled=true",), auc=0.7461),
        ),
        notes=("Server pinned to core 0, load to core 1; databases not pinned: they take time on both.",),
    )
