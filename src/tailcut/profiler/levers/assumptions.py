"""What a recording and its payloads say of the levers before any is pulled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tailcut.cache.cache_advisor import AGAINST
from tailcut.profiler.forecast.idle_cost import FASTEST
from tailcut.profiler.forecast.state import Known
from tailcut.profiler.forecast.work import Work
from tailcut.profiler.levers.conversions import quicker_as_onnx
from tailcut.profiler.levers.gpu import batch_on_gpu, runtime_on_gpu
from tailcut.profiler.levers.priors import measured
from tailcut.profiler.payloads.cache_hits import answered_shares, entity_field, keys_of
from tailcut.profiler.payloads.diversity import WHOLE, Diversity
from tailcut.profiler.payloads.query_keys import read_asked
from tailcut.profiler.records import TORCH_ON_GPU, Recording, Stage

FEATURE_LIFE_S, PREDICTION_LIFE_S = 60.0, 30.0
"""How long cached features and answers are taken to live where nobody says it."""
CACHE_ENTRIES = 100_000
_COVERED = 0.8
"""Share of the time of all fetches of which has to be known what they ask for."""
_COMPUTES = 0.02
"""Share of the waits for queries from which on databases on the machine compute them, and do not only keep house."""


def know(
    recording: Recording,
    bodies: Sequence[bytes],
    diversity: Diversity | None,
    rate: float,
    known: Known | None = None,
    *,
    at_s: Sequence[float] | None = None,
) -> Known:
    """Fill in what the recording and the payloads say: family, cores, and which requests caches would have answered.

    Args:
        bodies: payloads in the order of the requests' numbers, which begin again where these end: caches are played
            over them once, and what repeats only because a load began again is no hit. Empty: nothing is known.
        rate: requests per second that they are laid out at.
        known: what the caller knows better; its fields that are set stay.
        at_s: when they came, ascending, where that is known.
    """
    known, pilot = known or Known(), recording.pilot
    if not known.family:
        known = replace(known, family=_family(recording))
    known = _know_models(known, recording)
    if known.family == TORCH_ON_GPU:
        model = _longest(_models_ns(recording))
        known = replace(
            known,
            runtime=known.runtime or runtime_on_gpu(recording.layers, model),
            batch_share=known.batch_share or batch_on_gpu(recording.layers, model),
        )
    if known.cores == 1:
        known = replace(known, cores=max(int(recording.machine.get("cores", "1")), 1))
    if known.path is None and pilot.path_ns:
        path = measured(pilot.path_ns, f"at {min(recording.rate, FASTEST):g} requests/s")
        known = replace(known, path=path, path_slope=pilot.path_slope, path_waits_ns=pilot.path_waits_ns)
    if not bodies or diversity is None:
        return known
    keys = keys_of(bodies, entity_field(diversity))
    came_s = np.arange(len(bodies)) / rate if at_s is None else np.asarray(at_s, dtype=np.float64)
    if not known.feature_hits:
        known = _know_features(known, recording, bodies, diversity, keys, came_s)
    if not known.prediction_hits:
        shares = answered_shares(keys, came_s, life_s=PREDICTION_LIFE_S, size=CACHE_ENTRIES)
        numbers = [one.number for one in recording.requests]
        whole = {number: bool(shares[number % len(bodies)] >= 1.0) for number in numbers}
        known = replace(known, prediction_hits=whole, prediction_life_s=PREDICTION_LIFE_S)
    return known


def _know_models(known: Known, recording: Recording) -> Known:
    """Fill in what is known of each model by the label of its calls."""
    layers = {one.model: one.addressed("quantisation") / max(1.0 - one.dispatch, 1e-9) for one in recording.layers}
    return replace(
        known,
        libraries=known.libraries or recording.pilot.libraries,
        products=known.products or layers,
        as_onnx=known.as_onnx or quicker_as_onnx(recording.conversions),
        refused=known.refused or tuple(why for one in recording.conversions for why in one.refused),
    )


def _know_features(
    known: Known,
    recording: Recording,
    bodies: Sequence[bytes],
    diversity: Diversity,
    keys: Sequence[Sequence[int]],
    came_s: npt.NDArray[np.float64],
) -> Known:
    """Fill in what a feature cache would have answered.

    Args:
        keys: of each payload, by the field that alone tells payloads apart, or by all of it.
    """
    known = replace(known, feature_life_s=FEATURE_LIFE_S)
    several = entity_field(diversity) == WHOLE
    if several:
        # Payloads differ in several fields, or in none that is seen: which of them fetches go by, these say themselves.
        asked = read_asked(recording, bodies, diversity, came_s, life_s=FEATURE_LIFE_S, size=CACHE_ENTRIES)
        if asked.requests and asked.covered >= _COVERED:
            return replace(known, asked=asked, feature_hits=asked.requests)
    shares = answered_shares(keys, came_s, life_s=FEATURE_LIFE_S, size=CACHE_ENTRIES)
    hits = {one.number: float(shares[one.number % len(bodies)]) for one in recording.requests}
    doubt = _doubt(diversity, float(np.mean(shares))) if several else ""
    return replace(known, feature_hits=hits, feature_doubt=doubt)


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


def share_cores(known: Known, recording: Recording, work: Work) -> Known:
    """Let databases that were seen to compute on the machine have its cores, for so much of the waits for queries.

    Args:
        known: what it says of the database stays.
        work: of the recording.
    """
    waited_ns, computed_ns = work.wait_of(Stage.SQL), database_ns(recording)
    if known.database_cores or known.database_beside or not waited_ns or computed_ns < _COMPUTES * waited_ns:
        return known
    return replace(
        known,
        database_cores=recording.pilot.other_cores,
        database_beside=True,
        database_share=min(computed_ns / waited_ns, 1.0),
    )


def database_ns(recording: Recording) -> float:
    """Return what databases on the machine computed per request."""
    count = len(recording.requests) + len(recording.untraced)
    return recording.pilot.database_s * 1e9 / count if count else 0.0


def _family(recording: Recording) -> str:
    """Name the library that takes most of the models' time, as the hooks said it; empty where nobody knows."""
    took_ns = dict[str, int]()
    for label, ns in _models_ns(recording).items():
        library = recording.pilot.libraries.get(label, "")
        took_ns[library] = took_ns.get(library, 0) + ns
    return _longest(took_ns)


def _longest(took_ns: Mapping[str, int]) -> str:
    return max(sorted(took_ns), key=lambda name: took_ns[name], default="")


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
