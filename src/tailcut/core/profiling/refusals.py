"""Why a lever is not worth pulling, known before it is tried; and what its estimate rests on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tailcut.core.profiling import priors
from tailcut.core.profiling.forecast import Forecast
from tailcut.core.profiling.levers import PARALLEL, LeverName, State, factor
from tailcut.core.profiling.priors import Prior
from tailcut.core.worth import AGAINST

LITTLE_MODEL = 0.05
MANY_ROWS = 32.0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What decides beside the forecasts.

    Attributes:
        met: the whole SLO is met as it was measured and as it is foretold, with a fifth of capacity to spare.
        missed: it was missed as it was measured, or the percentile is foretold to be beyond its limit.
        unmended: requests that failed where that alone misses the SLO: no lever mends it.
        model_share: of the time of the requests near the percentile.
        fetches: most that one request does.
        rows: that a request asks about, on average.
        aim: what is to be met, in words.
        limit_ms: of the percentile.
        now: without any lever.
        seen_ms: the percentile as it was measured, or as it is foretold where that is worse.
    """

    met: bool
    missed: bool
    unmended: int
    model_share: float
    fetches: int
    rows: float
    aim: str
    limit_ms: float
    now: Forecast
    seen_ms: float

    @property
    def off(self) -> float:
        """How many times what is foretold what was measured is; 1 where that is less."""
        return max(1.0, self.seen_ms / self.now.p95_ms) if self.now.p95_ms else 1.0


def refusal_of(lever: LeverName, state: State, facts: Facts) -> str:
    """Say why a lever is not to be pulled; empty where trying decides."""
    check = _REFUSALS.get(lever)
    found = check(lever, state, facts) if check else ""
    if found:
        return f"not worth it: {found}"
    if facts.met:
        return f"not needed: the SLO is met ({facts.seen_ms:.3g} of {facts.limit_ms:.3g} ms)"
    return ""


def weakness_of(lever: LeverName, facts: Facts) -> str:
    """Say why a lever that was tried gains little; empty where nothing in particular is known."""
    if lever in ("runtime", "INT8", "batching") and facts.model_share < LITTLE_MODEL:
        return f"the model is {facts.model_share:.1%} of the time"
    return ""


def _fetching(lever: LeverName, state: State, facts: Facts) -> str:
    if not facts.fetches:
        return "no query, cache or address was asked in any request"
    if lever == "concurrent I/O":
        return "no request fetches more than once" if facts.fetches < 2 else ""
    return _repeating(lever, state, facts)


def _repeating(lever: LeverName, state: State, _: Facts) -> str:
    hits = state.known.feature_hits if lever == "feature cache" else state.known.prediction_hits
    if not hits:
        return "nothing is known of repeats: give payloads"
    share = float(np.mean([float(one) for one in hits.values()]))
    return f"{share:.1%} of the requests repeat, fewer than {AGAINST:.0%}" if share < AGAINST else ""


def _modelling(lever: LeverName, state: State, facts: Facts) -> str:
    if not facts.model_share:
        return "no model was seen"
    if lever == "batching":
        return f"requests are batches already: {facts.rows:.0f} rows each" if facts.rows >= MANY_ROWS else ""
    if factor(state, lever).mid > 1.0:
        return ""
    return (
        "the model runs on a runtime of its own already"
        if lever == "runtime"
        else "a model this small gains nothing from INT8"
    )


def _executing(_: LeverName, state: State, __: Facts) -> str:
    return "there is one core" if state.known.cores < 2 else ""


_REFUSALS: dict[LeverName, Callable[[LeverName, State, Facts], str]] = {
    "feature cache": _fetching,
    "concurrent I/O": _fetching,
    "runtime": _modelling,
    "INT8": _modelling,
    "batching": _modelling,
    "prediction cache": _repeating,
    "more executors": _executing,
}


def basis_of(lever: LeverName, state: State) -> tuple[str, ...]:
    """Say what an estimate rests on."""
    known = state.known
    if lever in ("feature cache", "prediction cache"):
        hits = known.feature_hits if lever == "feature cache" else known.prediction_hits
        share = float(np.mean([float(one) for one in hits.values()])) if hits else 0.0
        life_s = known.feature_life_s if lever == "feature cache" else known.prediction_life_s
        return (f"{share:.0%} hits, as the payloads repeat{f' within {life_s:g} s' if life_s else ''}",)
    if lever in ("runtime", "INT8"):
        return (_said(factor(state, lever), "{:.3g} times quicker ({:.3g} to {:.3g})"),)
    if lever == "batching":
        share_of_row = known.batch_share or priors.batch_prior(known.family)
        return (_said(share_of_row, "{:.0%} of a row's time is shared by a batch ({:.0%} to {:.0%})"),)
    if lever == "serving path":
        return (f"prior: {known.path_cpu_ns / 1e6:.2f} ms a request inside the server, tailcut's own runs",)
    if lever == "more executors":
        return (f"{min(PARALLEL, known.cores)} processes on {known.cores} cores",)
    return ("as recorded",)


def _said(prior: Prior, text: str) -> str:
    if prior.measured:
        return f"{text.partition(' (')[0].format(prior.mid)}, {prior.source}"
    return f"prior: {text.format(prior.mid, prior.low, prior.high)}; {prior.source}"
