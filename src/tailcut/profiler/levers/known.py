"""What a recording, its payloads and its models' layers say of the levers."""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from tailcut.cache.cache_advisor import AGAINST
from tailcut.profiler.attribution.layers import Conversion, ModelLayers
from tailcut.profiler.attribution.span_table import Bools, Floats
from tailcut.profiler.levers.priors import Prior, measured
from tailcut.profiler.payloads.diversity import WHOLE, Diversity, key_of
from tailcut.profiler.payloads.fields import tables_of, values_of
from tailcut.profiler.records import TORCH_ON_GPU, Recording, Stage

FEATURE_LIFE_S, PREDICTION_LIFE_S = 60.0, 5.0
"""How long cached features and answers are taken to live."""
CACHE_ENTRIES = 100_000
_LEAST_MS = 0.001
_LEAST_LEFT = 0.05
"""Of the whole graph's time: two graphs that were timed apart differ by less without a reason."""
_REPLAY_MS = (0.03, 0.06, 0.15)
"""What a replayed CUDA graph takes beside its kernels, at best, usually, at worst: torch's took 0.05 and 0.06 ms,
onnxruntime's 0.12 to 0.14 (benchmarks/results/gpu.md)."""


@dataclass(frozen=True, kw_only=True)
class LeverAssumptions:
    """What is known of the levers here.

    Attributes:
        feature_hits: by request's number, which share of its fetches a feature cache answers; empty: not known.
        feature_doubt: why the payloads do not say what a feature cache would answer; empty where they do.
        prediction_hits: by request's number, whether a prediction cache answers it; empty: not known.
        family: what most of the models' time runs on: "torch", "sklearn", "onnxruntime", ...; empty: not known.
        libraries: the same by the label of a model's calls.
        as_onnx: how many times quicker steps and models get as ONNX, by the label of their calls; only those that were
            converted and timed.
        refused: why others have no exact form as ONNX.
        products: share of a model's operators that multiply by weights, by its label, where its layers were timed.
        runtime: how many times quicker the model gets on another runtime, where that was measured.
        batch_share: share of a row's time that a batch takes once, where that was measured.
        cores: that the service may use.
    """

    feature_hits: Mapping[int, float] = field(default_factory=dict)
    feature_doubt: str = ""
    prediction_hits: Mapping[int, bool] = field(default_factory=dict)
    family: str = ""
    libraries: Mapping[str, str] = field(default_factory=dict)
    as_onnx: Mapping[str, Prior] = field(default_factory=dict)
    refused: tuple[str, ...] = ()
    products: Mapping[str, float] = field(default_factory=dict)
    runtime: Prior | None = None
    batch_share: Prior | None = None
    cores: int = 1


def know(
    recording: Recording,
    bodies: Sequence[bytes],
    diversity: Diversity | None,
    rate: float,
    *,
    at_s: Sequence[float] | None = None,
) -> LeverAssumptions:
    """Gather what is known.

    Args:
        bodies: payloads in the order of the requests' numbers, which begin again where these end: caches are played
            over them once, and what repeats only because a load began again is no hit. Empty: nothing is known.
        diversity: of the payloads.
        rate: requests per second that they are laid out at.
        at_s: when they came, ascending, where that is known.
    """
    models_ns = _models_ns(recording)
    libraries = recording.pilot.libraries
    of_library: defaultdict[str, int] = defaultdict(int)
    for label, ns in models_ns.items():
        of_library[libraries.get(label, "")] += ns
    known = LeverAssumptions(
        family=_longest(of_library),
        libraries=libraries,
        as_onnx=_as_onnx(recording.conversions),
        refused=tuple(why for one in recording.conversions for why in one.refused),
        products={one.model: one.addressed("quantisation") / max(1.0 - one.dispatch, 1e-9) for one in recording.layers},
        cores=max(int(recording.machine.get("cores", "1")), 1),
    )
    if known.family == TORCH_ON_GPU:
        known = _know_gpu(known, recording.layers, _longest(models_ns))
    if not bodies or diversity is None:
        return known
    keys = keys_of(bodies, entity_field(diversity))
    came_s = np.arange(len(bodies)) / rate if at_s is None else np.asarray(at_s, dtype=np.float64)
    shares = answered_shares(keys, came_s, life_s=PREDICTION_LIFE_S, size=CACHE_ENTRIES)
    features = answered_shares(keys, came_s, life_s=FEATURE_LIFE_S, size=CACHE_ENTRIES)
    return replace(
        known,
        prediction_hits={one.number: bool(shares[one.number % len(bodies)] >= 1.0) for one in recording.requests},
        feature_hits={one.number: float(features[one.number % len(bodies)]) for one in recording.requests},
        feature_doubt=_doubt(diversity, float(np.mean(features))) if entity_field(diversity) == WHOLE else "",
    )


def _doubt(diversity: Diversity, whole: float) -> str:
    """Say that fetches may go by a field that repeats, where payloads do not."""
    fields = [stream for stream in diversity.streams[1:] if not stream.constant]
    most = max(fields, key=lambda stream: stream.repeats, default=None)
    if most is None or whole >= AGAINST or most.repeats < AGAINST:
        return ""
    return (
        f"which field of the payload fetches go by: {most.name} repeats in {most.repeats:.0%} of the look-ups, whole"
        f" payloads in {whole:.1%}"
    )


def _as_onnx(conversions: Sequence[Conversion]) -> dict[str, Prior]:
    """Return how many times quicker each call of an estimator gets in the graph, by its label, as far as measured.

    What an estimator does beside its last step goes with the graph of all of it; where only the last step has one, the
    rest stays as it is.
    """
    found: dict[str, Prior] = {}
    for one in conversions:
        if one.last and one.last_graph_ms is not None:
            found[one.last] = _times(one.last_ms, one.last_graph_ms)
        if one.graph_ms is None:
            continue
        rest = one.run_ms, one.graph_ms
        if one.last and one.last_graph_ms is not None:
            left_ms = max(one.graph_ms - one.last_graph_ms, _LEAST_LEFT * one.graph_ms)
            rest = max(one.run_ms - one.last_ms, 0.0), left_ms
        for label in (one.model, *one.steps):
            found.setdefault(label, _times(*rest))
    return found


def _times(run_ms: float, graph_ms: float) -> Prior:
    took = f"{run_ms:.3g} ms a call, {graph_ms:.3g} as ONNX, on a request's input"
    return measured(max(run_ms, _LEAST_MS) / max(graph_ms, _LEAST_MS), took)


def _know_gpu(known: LeverAssumptions, layers: Sequence[ModelLayers], model: str) -> LeverAssumptions:
    """Fill in what a CUDA graph and batches win over torch on a GPU, where the kernels of a run are known.

    A graph leaves out the gaps between kernels, and rows of a batch share them. What lower precision wins, and what
    kernels of several rows share, only a build can tell.
    """
    one = next((one for one in layers if one.model == model and one.device is not None and one.run_ms > 0), None)
    if one is None or one.device is None or one.device.kernel_ms <= 0:
        return known
    kernel_ms = one.device.kernel_ms
    high, mid, low = (max(one.run_ms / (kernel_ms + replay_ms), 1.0) for replay_ms in _REPLAY_MS)
    why = f"kernels are {kernel_ms:.3g} of a run's {one.run_ms:.3g} ms, and a CUDA graph leaves out the gaps"
    share = max(1.0 - kernel_ms / one.run_ms, 0.0)
    return replace(
        known,
        runtime=Prior(low=low, mid=mid, high=high, source=f"{why}; half precision comes on top"),
        batch_share=Prior(low=share, mid=share, high=1.0, source=f"the GPU waits {share:.0%} of a run"),
    )


def _models_ns(recording: Recording) -> dict[str, int]:
    """Time of models by their labels, what lies in them and has spans of its own left out."""
    took_ns = dict[str, int]()
    for one in recording.requests:
        for span in one.spans:
            length_ns = span.end_ns - span.start_ns
            above = one.spans[span.parent] if span.parent >= 0 else None
            if above is not None and above.stage == Stage.MODEL:
                took_ns[above.label] = took_ns.get(above.label, 0) - length_ns
            if span.stage == Stage.MODEL:
                took_ns[span.label] = took_ns.get(span.label, 0) + length_ns
    return took_ns


def _longest(took_ns: Mapping[str, int]) -> str:
    return max(sorted(took_ns), key=lambda name: took_ns[name], default="")


# -- Hits of a cache ---------------------------------------------------------------------------------------------------


# Which requests a cache would have answered: the log of payloads, played through one.

_BODY = "body."


def entity_field(diversity: Diversity) -> str:
    """Name the field that alone tells requests apart: what they ask about. Else the whole payload."""
    varying = [stream.name for stream in diversity.streams[1:] if not stream.constant]
    # Of a load to several paths: what is asked about is in the body, and keys have the path beside it.
    within = [name for name in varying if name.startswith(_BODY)]
    if within and "path" in varying:
        varying.remove("path")
    return varying[0] if len(varying) == 1 else WHOLE


def keys_of(bodies: Sequence[bytes], field: str = WHOLE) -> list[list[int]]:
    """What each request looks up: its values of a field, or itself where it has none or is not JSON."""
    known: dict[bytes, list[int]] = {}
    return [known[body] if body in known else known.setdefault(body, _keys(body, field)) for body in bodies]


def answered_shares(keys: Sequence[Sequence[int]], at_s: Floats, *, life_s: float, size: int) -> Floats:
    """Share of each request's look-ups that a cache answers, shape [n].

    Args:
        keys: of each request; at least one.
        at_s: when requests come, ascending, shape [n].
        life_s, size: of the cache's entries, and how many it holds.
    """
    counts = np.array([len(one) for one in keys], dtype=np.int64)
    flat = [key for one in keys for key in one]
    hits = cache_hits(flat, np.repeat(at_s, counts), life_s=life_s, size=size)
    if not len(counts):
        return np.zeros(0)
    starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)[:-1]])
    return np.add.reduceat(hits.astype(np.float64), starts) / counts


def cache_hits(keys: Sequence[int], at_s: Sequence[float] | Floats, *, life_s: float, size: int) -> Bools:
    """Play a cache bounded in both ways: entries live ``life_s``, the least recently used of ``size`` is evicted.

    Args:
        keys: looked up one after the other, shape [n].
        at_s: when, ascending, shape [n].

    Returns:
        Whether each look-up was answered from the cache, shape [n].
    """
    born_s: OrderedDict[int, float] = OrderedDict()
    hits = np.zeros(len(keys), dtype=bool)
    for number, (key, now_s) in enumerate(zip(keys, at_s, strict=True)):
        born = born_s.get(key)
        if born is not None and now_s - born < life_s:
            hits[number] = True
        else:
            born_s[key] = float(now_s)
        born_s.move_to_end(key)
        if len(born_s) > size:
            born_s.popitem(last=False)
    return hits


def _keys(body: bytes, field: str) -> list[int]:
    if field != WHOLE:
        try:
            payload = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return [key_of(body)]
        looked_up = values_of(payload, tables_of(field))
        path = payload.get("path") if field.startswith(_BODY) and isinstance(payload, dict) else None
        found = [key_of(msgspec.json.encode((path, value))) for name, value in looked_up if name == field]
        if found:
            return found
    return [key_of(body)]
