"""Why a lever is not worth pulling, known before it is tried; and what its estimate rests on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import numpy as np

from tailcut.cache.cache_advisor import AGAINST
from tailcut.profiler.attribution.own_code import LARGE_CODE
from tailcut.profiler.forecast.fetches import at_once_already
from tailcut.profiler.forecast.forecast import Forecast
from tailcut.profiler.forecast.state import Known, LeverName, State
from tailcut.profiler.levers import preprocessing, priors
from tailcut.profiler.levers.levers import PARALLEL
from tailcut.profiler.levers.priors import Prior
from tailcut.profiler.levers.speed_factors import factor, of_longest
from tailcut.profiler.records import TORCH_ON_GPU, Stage

LITTLE_MODEL = 0.05
MANY_ROWS = 32.0


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What decides beside the forecasts.

    Attributes:
        met: the whole SLO is met as it was measured and as it is foretold, with a fifth of capacity to spare, and
            nothing speaks against what is foretold.
        within: it is met as it was measured, at the rate that is asked about.
        missed: it was missed as it was measured; at another rate, the percentile is foretold to be beyond its limit.
        unmended: requests that failed where that alone misses the SLO: no lever mends it.
        model_share, code_share, fetch_share: of the time of the requests near the percentile; the user's own code;
            databases, caches and other services.
        fetches: most that one request does.
        rows: that a request asks about, on average.
        aim: what is to be met, in words.
        limit_ms: of the percentile.
        now: without any lever.
        measured_ms: the percentile as it was measured; 0 where that was at another rate.
        seen_ms: the worse of the two.
        held: locks and connection pools that are simulated, in sentences.
        limits: those of them at which the capacity ends as it is, in sentences.
        doubts: why the forecasts are not to be believed as they stand.
        background_calls: by stage, what of it ran for no request in particular.
        hints: what is no lever and comes first, in sentences: code that holds the event loop, statements that a request
            runs again and again, code that takes much of the slowest requests.
        unseen_workers: what child processes computed, where their calls were not seen; empty: that is known.
        writes: a statement that requests change a database with; empty: none is seen.
    """

    met: bool
    within: bool
    missed: bool
    unmended: int
    model_share: float
    code_share: float
    fetch_share: float
    fetches: int
    rows: float
    aim: str
    limit_ms: float
    now: Forecast
    measured_ms: float
    seen_ms: float
    held: tuple[str, ...] = ()
    limits: tuple[str, ...] = ()
    doubts: tuple[str, ...] = ()
    background_calls: Mapping[Stage, str] = field(default_factory=dict)
    hints: tuple[str, ...] = ()
    unseen_workers: str = ""
    writes: str = ""

    @property
    def told_ms(self) -> float:
        """What is said of the percentile: as it was measured, where it was."""
        return self.measured_ms or self.seen_ms

    @property
    def off(self) -> float:
        """How many times what is foretold what was measured is; 1 where that is less."""
        return max(1.0, self.seen_ms / self.now.p95_ms) if self.now.p95_ms else 1.0


def figure(value: float) -> str:
    """Three digits, and no power of ten."""
    return f"{value:.3g}" if value < 999.5 else f"{value:,.0f}"


def refusal_of(lever: LeverName, state: State, facts: Facts) -> str:
    """Say why a lever is not to be pulled; empty where trying decides."""
    if lever == "prediction cache" and facts.writes:
        return f"not safe: requests write ({facts.writes}), but a request answered by a cache would not"
    if lever == "no process pool" and facts.unseen_workers:
        return f"not known: {facts.unseen_workers}"
    check = _REFUSALS.get(lever)
    found = check(lever, state, facts) if check else ""
    unseen = (_unseen(lever, facts) or _unknown(lever, state, facts)) if found else ""
    if unseen:
        return f"not known: {unseen}"
    if found:
        return f"not worth it: {found}"
    if facts.met:
        return f"not needed: the SLO is met ({figure(facts.told_ms)} of {figure(facts.limit_ms)} ms)"
    return ""


def _unseen(lever: LeverName, facts: Facts) -> str:
    """Say what the lever is aimed at that ran, but in no request."""
    stages: tuple[Stage, ...] = ()
    if lever == "preprocessing":
        stages = (Stage.PREPROCESS,)
    elif lever in ("runtime", "INT8", "batching") and not facts.model_share:
        stages = (Stage.MODEL,)
    elif lever in ("feature cache", "concurrent I/O") and not facts.fetches:
        stages = (Stage.SQL, Stage.CACHE, Stage.HTTP)
    ran = next((facts.background_calls[stage] for stage in stages if stage in facts.background_calls), "")
    return f"{ran} for no request in particular, so the wait of a request for it is unknown" if ran else ""


def _unknown(lever: LeverName, state: State, facts: Facts) -> str:
    """Say that nobody knows what another runtime wins over the model's, or what fetches ask for."""
    family = state.known.family
    if lever in ("feature cache", "prediction cache") and not _hits(lever, state):
        return "what repeats: give payloads" if lever == "prediction cache" or facts.fetches else ""
    if lever == "feature cache" and facts.fetches:
        return state.known.feature_doubt
    if lever != "runtime" or not facts.model_share or family in priors.RUNTIMES:
        return ""
    if state.known.runtime is not None or factor(state, lever).measured:
        return ""  # it was measured here
    what = f"what leaving {family} wins" if family else "the runtime that the model runs on"
    return f"{what}; `tailcut build` measures it"


def weakness_of(lever: LeverName, facts: Facts) -> str:
    """Say why a lever that was tried gains little; empty where nothing in particular is known."""
    if lever in ("runtime", "INT8", "batching") and facts.model_share < LITTLE_MODEL:
        return f"the model is {facts.model_share:.1%} of the time"
    if lever == "feature cache" and facts.code_share >= LARGE_CODE and facts.code_share > facts.fetch_share:
        return f"fetches are a small part; {_own_code(facts)}"
    return ""


def _own_code(facts: Facts) -> str:
    return (
        f"your own code is {facts.code_share:.0%} of the time: features that it computes of repeating entities are "
        "cached too (see at best)"
    )


def _fetching(lever: LeverName, state: State, facts: Facts) -> str:
    if not facts.fetches:
        nothing = "no request fetches from a database, a cache or an address"
        computes = lever == "feature cache" and facts.code_share >= LARGE_CODE
        return f"{nothing}; {_own_code(facts)}" if computes else nothing
    if lever == "concurrent I/O":
        if facts.fetches < 2:
            return "no request fetches more than once"
        return (
            "each request's fetches already run concurrently" if at_once_already(state.work, state.service.held) else ""
        )
    return _repeating(lever, state, facts)


def _hits(lever: LeverName, state: State) -> Mapping[int, float]:
    return state.known.feature_hits if lever == "feature cache" else state.known.prediction_hits


def _repeating(lever: LeverName, state: State, _: Facts) -> str:
    hits = _hits(lever, state)
    if not hits:
        return "nothing is known of repeats"
    share = float(np.mean([float(one) for one in hits.values()]))
    if lever == "feature cache" and state.known.asked.requests:
        return f"{share:.1%} of what is fetched repeats, less than {AGAINST:.0%}" if share < AGAINST else ""
    return f"{share:.1%} of the requests repeat, fewer than {AGAINST:.0%}" if share < AGAINST else ""


def _modelling(lever: LeverName, state: State, facts: Facts) -> str:
    if not facts.model_share:
        return "no model was seen"
    if lever == "batching":
        return f"requests are already batches: {facts.rows:.0f} rows each" if facts.rows >= MANY_ROWS else ""
    if factor(state, lever).mid > 1.0:
        return ""
    if state.known.family == TORCH_ON_GPU:
        return (
            "a CUDA graph would take as long as a run does; `tailcut build` tells what half precision wins"
            if lever == "runtime"
            else "INT8 variants are for the processor; half precision comes with the runtimes for a GPU"
        )
    return _no_quicker(lever, state)


def _no_quicker(lever: LeverName, state: State) -> str:
    found = of_longest(state, lever)
    if lever == "runtime":
        return "the model already runs on its own runtime"
    if found == priors.NO_INT8_OF_TREES or found.measured:
        return f"INT8 speeds up products with large matrices: {found.source.removeprefix('measured: ')}"
    return "a model this small gains nothing from INT8"


def _preprocessing(_: LeverName, state: State, __: Facts) -> str:
    if preprocessing.slow_steps(state):
        return ""
    most = preprocessing.slow_steps(state, 0.0)
    return f"{most[0].named} is {most[0].share:.1%} of the time" if most else "no transformer and no tokenizer was seen"


def _executing(_: LeverName, state: State, __: Facts) -> str:
    return "there is one core" if state.known.cores < 2 else ""


_REFUSALS: dict[LeverName, Callable[[LeverName, State, Facts], str]] = {
    "feature cache": _fetching,
    "concurrent I/O": _fetching,
    "preprocessing": _preprocessing,
    "runtime": _modelling,
    "INT8": _modelling,
    "batching": _modelling,
    "prediction cache": _repeating,
    "more executors": _executing,
}


def basis_of(lever: LeverName, state: State) -> tuple[str, ...]:
    """Say what an estimate rests on."""
    known = state.known
    if lever in ("feature cache", "prediction cache", "preprocessing"):
        return preprocessing.basis(state) if lever == "preprocessing" else (_hits_said(lever, known),)
    if lever in ("runtime", "INT8"):
        return (_said(factor(state, lever), "{:.3g} times quicker ({:.3g} to {:.3g})"),)
    if lever == "batching":
        share_of_row = known.batch_share or priors.batch_prior(known.family)
        return (_said(share_of_row, "{:.0%} of a row's time is shared by a batch ({:.0%} to {:.0%})"),)
    if lever == "serving path":
        path = known.path or priors.PATH
        in_ms = msgspec.structs.replace(path, low=path.low / 1e6, mid=path.mid / 1e6, high=path.high / 1e6)
        return (_said(in_ms, "{:.2f} ms of a core a request in tailcut's path ({:.2f} to {:.2f})"),)
    return (_recorded_basis(lever, state),)


def _recorded_basis(lever: LeverName, state: State) -> str:
    """The same of levers that rest on what was recorded and on no factor."""
    if lever == "more executors":
        return f"{min(PARALLEL, state.known.cores)} processes on {state.known.cores} cores"
    if lever == "no background work":
        return f"{figure(state.work.late_ns / 1e6)} ms of a core a request after its reply, as recorded"
    if lever == "no process pool":
        took_ms = state.work.process_of() / 1e6
        return f"{figure(took_ms)} ms of a core a request in worker processes, taken by the service's own process"
    return "as recorded, and no fetch needs another's answer" if lever == "concurrent I/O" else "as recorded"


def _hits_said(lever: LeverName, known: Known) -> str:
    hits = known.feature_hits if lever == "feature cache" else known.prediction_hits
    share = float(np.mean([float(one) for one in hits.values()])) if hits else 0.0
    life_s = known.feature_life_s if lever == "feature cache" else known.prediction_life_s
    what = "the payloads repeat"
    if lever == "feature cache" and known.asked.requests:
        by = f" (by {', '.join(known.asked.by)})" if known.asked.by else ""
        what = f"what is asked for{by} repeats"
    return f"{share:.0%} hits, as {what}{f' within {life_s:g} s' if life_s else ''}"


def _said(prior: Prior, text: str) -> str:
    if prior.measured:
        return f"{text.partition(' (')[0].format(prior.mid)}, {prior.source}"
    return f"prior: {text.format(prior.mid, prior.low, prior.high)}; {prior.source}"
