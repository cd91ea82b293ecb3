"""Small runs on an idle machine, for benchmarks.profile_ladder: what a profile of the pilot cannot know."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from benchmarks.profile_ladder_queries import fetches_of, manifests_queries, pilots_share
from tailcut.cache.freshness import refresh_lead_s
from tailcut.common.slo import parse_duration_s
from tailcut.common.tensors import Arrays
from tailcut.errors import ArtifactError
from tailcut.manifest import Features, Manifest
from tailcut.models.runtimes import Runtime, open_runtime
from tailcut.models.runtimes.live import source_of
from tailcut.profiler.diversity import sent_payloads
from tailcut.profiler.forecast.state import Known
from tailcut.profiler.levers.priors import Prior, measured
from tailcut.profiler.payloads.cache_hits import keys_of
from tailcut.profiler.payloads.reuse_distance import cache_hits
from tailcut.registry import Registry

_SIZE = 100_000
"""Entries of a cache: more than there are flights."""
_CALLS = 200
_ROWS = (1, 8)
_PAUSE_S = 0.005
"""Between two calls: at the ladder's rates caches have other things in them when a request comes."""


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """The requests that the ladder measured at its first rate: numbers of one server's traffic, from its start.

    Attributes:
        warm_s: seconds of traffic before what is measured at the second rate.
    """

    rate: float
    first: int
    end: int
    warm_s: float


def known_of(manifest: Manifest, window: Window, rate: float) -> Known:
    """Run what is to be known of the levers.

    Args:
        rate: at which the pilot was profiled.
    """
    torch_ms, onnx_ms = _model_ms(manifest, "torch"), _model_ms(manifest, "onnx")
    bodies = sent_payloads(manifest.deployment.ladder.traffic, rate=window.rate, count=window.end).bodies
    asked = bodies[window.first : window.end]
    queries = manifests_queries(manifest, asked, rate)
    return Known(
        feature_hits=_feature_hits(manifest.deployment.features, bodies, window),
        family="torch",
        runtime=measured(torch_ms[1] / onnx_ms[1], f"a row: torch {torch_ms[1]:.2f}, ONNX {onnx_ms[1]:.2f} ms"),
        int8=_int8(manifest, onnx_ms[1]),
        batch_share=measured(_shared(onnx_ms), f"8 rows take {onnx_ms[8]:.2f} ms on ONNX"),
        fetches=fetches_of(queries, range(window.first, window.end), len(manifest.deployment.features.groups)),
        fetches_share=queries.database_share,
        database_share=pilots_share(asked),
    )  # fmt: skip


def _model_ms(manifest: Manifest, name: str) -> dict[int, float]:
    deployment = manifest.deployment
    variant = Registry.of(manifest).variant(deployment.name, name)
    runtime = open_runtime(variant, threads=1, source=source_of(manifest, variant.runtime))
    try:
        return {rows: _time_ms(runtime, rows) for rows in _ROWS}
    finally:
        runtime.close()


def _time_ms(runtime: Runtime, rows: int) -> float:
    draw = np.random.default_rng(0)
    inputs: Arrays = {
        "numeric": draw.normal(size=(rows, 25)).astype(np.float32),
        "categorical": np.ones((rows, 5), dtype=np.int64),
    }
    took_ms = []
    for _ in range(_CALLS):
        time.sleep(_PAUSE_S)
        began_ns = time.perf_counter_ns()
        runtime.run(inputs, ("risk",))
        took_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
    return median(took_ms)


def _int8(manifest: Manifest, onnx_ms: float) -> Prior:
    try:
        int8_ms = _model_ms(manifest, "int8-dynamic")[1]
    except ArtifactError as error:
        return measured(1.0, f"refused by the gate: {error.message}")
    return measured(onnx_ms / int8_ms, f"a row takes {int8_ms:.2f} ms in INT8")


def _shared(took_ms: Mapping[int, float]) -> float:
    """Which share of a row's time a batch takes once: T(n) = T(1) (share + (1 - share) n)."""
    return min(max((8 - took_ms[8] / took_ms[1]) / 7, 0.0), 1.0)


def _feature_hits(features: Features, bodies: Sequence[bytes], window: Window) -> dict[int, float]:
    """Share of a request's groups whose keys were all used within their TTL: what is in use is refreshed ahead.

    The traffic is played twice: the ladder's rungs share a Redis, which knows the flights from the rung before.
    """
    flights = _flights()
    twice = [*bodies, *bodies]
    at_s = np.arange(len(twice)) / window.rate
    asked = [msgspec.json.decode(body)["entities"] for body in twice]
    hits = np.zeros(len(twice))
    for group in features.groups:
        if group.preload:
            hits += 1
            continue
        used_s: dict[tuple[Any, ...], float] = {}
        life_s = parse_duration_s(str(group.ttl))
        for number, ids in enumerate(asked):
            keys = {tuple(flights[one][column] for column in group.key) for one in ids}
            hits[number] += all(at_s[number] - used_s.get(key, -1e9) < life_s for key in keys)
            used_s.update(dict.fromkeys(keys, at_s[number]))
    return dict(enumerate((hits[len(bodies) :] / len(features.groups)).tolist()))


def _flights() -> dict[int, dict[str, Any]]:
    from flight_risk.settings import home

    with closing(sqlite3.connect(f"file:{home() / 'flights.sqlite'}?mode=ro", uri=True)) as connection:
        connection.row_factory = sqlite3.Row
        rows = connection.execute("SELECT flight_id, carrier, number, origin, dest, tailnum FROM flights")
        return {row["flight_id"]: dict(row) for row in rows}


class Hits(NamedTuple):
    """By request's number, whether the entity cache answers it; and of the others, whether the tensor cache does."""

    entity: dict[int, bool]
    tensor: dict[int, bool]


def _reloaded_s(features: Features) -> float:
    """How often the features that live shortest are loaded where they are always asked for: ahead of their end."""
    life_s = min(parse_duration_s(group.ttl) for group in features.groups)
    return life_s - refresh_lead_s(life_s, 0.0)


def hits_at(manifest: Manifest, window: Window, rate: float) -> Hits:
    """Which of the window's requests the prediction caches would have answered, had they come at a rate of the ladder.

    After the first rate the server has answered others before: those at that rate, and then a warm-up. A flight's
    tensors are the same again as long as the tensor cache keeps them, but new whenever the features that live shortest
    are loaded again: they are of an airport, as it is now, and all of its flights share them.
    """
    # The traffic goes on: what came before the window is, at the first rate, its own beginning.
    before, warm = (0, window.first) if rate == window.rate else (window.end, round(window.warm_s * rate))
    count = max(window.end, 2 * before + warm)
    bodies = sent_payloads(manifest.deployment.ladder.traffic, rate=rate, count=count).bodies
    asked = [*bodies[before : 2 * before + warm], *bodies[window.first : window.end]]
    gaps_s = np.repeat([1 / window.rate, 1 / rate], [before, len(asked) - before])
    caches, keys = manifest.deployment.cache, keys_of(asked, "entities[]")
    counts = np.array([len(one) for one in keys])
    flat, at_s = np.array([key for one in keys for key in one]), np.repeat(np.cumsum(gaps_s), counts)
    entity = cache_hits(flat.tolist(), at_s, life_s=float(caches.entity.ttl_s), size=_SIZE)
    # Rows that are not known are looked up by their tensors, each for itself.
    either = entity.copy()
    loaded = (at_s // _reloaded_s(manifest.deployment.features)).astype(np.int64)
    tensors = [hash(one) for one in zip(flat[~entity].tolist(), loaded[~entity].tolist(), strict=True)]
    either[~entity] = cache_hits(tensors, at_s[~entity], life_s=float(caches.tensor.ttl_s), size=_SIZE)
    starts = np.cumsum(counts) - counts
    answered, without_model = (np.logical_and.reduceat(one, starts)[before + warm :] for one in (entity, either))
    numbers = range(window.first, window.end)
    return Hits(
        entity=dict(zip(numbers, answered.tolist(), strict=True)),
        tensor=dict(zip(numbers, (without_model & ~answered).tolist(), strict=True)),
    )
