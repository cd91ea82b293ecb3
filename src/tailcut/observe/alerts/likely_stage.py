"""Where requests probably lose their time: the stage whose time per request grew most, and of features the group."""

from __future__ import annotations

from collections.abc import Mapping

from tailcut.observe.alerts.minute_counts import Key, MinuteCounts
from tailcut.observe.exposition import REQUESTS
from tailcut.observe.outcomes import SHED_CODES
from tailcut.observe.path_metrics import FEATURE_SOURCE_ERRORS, FEATURE_SOURCE_SECONDS

STAGE_NS = "stage_ns"
"""Name under which nanoseconds of answered requests are counted by stage."""

ANSWERED = "answered"
"""Name under which answered requests are counted."""

_NOW, _BEFORE = (10, 0), (50, 10)
"""Minutes that are compared, and how many minutes ago they end."""

_STAGES_OF_CODES = {
    "feature_unavailable": "features",
    "feature_failed": "features",
    "feature_timeout": "features",
    **dict.fromkeys(SHED_CODES, "queue"),
    "executor_lost": "infer",
    "inference_failed": "infer",
    "infer_timeout": "infer",
    # The log says which of the two.
    "hook_failed": "preprocess or postprocess",
    "hook_timeout": "preprocess or postprocess",
}


def failures(counts: MinuteCounts, model: str, minutes: int) -> dict[str, float]:
    """Return how many requests the server failed or shed, by code, the most frequent code first."""
    found: dict[str, float] = {}
    for key in counts.keys(REQUESTS.series[0], model):
        code, number = key.label("code"), counts.sum(key, minutes)
        if number and (code in SHED_CODES or key.label("outcome") == "5xx"):
            found[code] = found.get(code, 0.0) + number
    return dict(sorted(found.items(), key=lambda item: -item[1]))


def likely_stage(counts: MinuteCounts, model: str, code: str = "") -> str:
    """Return the likely stage, of features with the group; empty if it is not known.

    Args:
        code: of most of the requests that failed, where it is about failures and not about time.
    """
    stage = _STAGES_OF_CODES.get(code, "") if code else _grown(counts, model, STAGE_NS, "stage")
    source = (FEATURE_SOURCE_ERRORS if code else FEATURE_SOURCE_SECONDS).series[0]
    group = _grown(counts, model, source, "group") if stage == "features" else ""
    return f"{stage}/{group}" if group else stage


def most_grown(now: Mapping[str, float], before: Mapping[str, float]) -> str:
    """Return what grew most, or, where nothing grew by 5 % of the whole, what is largest; empty if there is nothing."""
    grown = {name: value - before.get(name, 0.0) for name, value in now.items()}
    largest = max(grown, key=lambda name: grown[name], default="")
    if grown.get(largest, 0.0) < 0.05 * sum(now.values()):
        largest = max(now, key=lambda name: now[name], default="")
    return largest if now.get(largest) else ""


def _grown(counts: MinuteCounts, model: str, name: str, label: str) -> str:
    """Return the label whose counter grew most per answered request, the last minutes against the hour before."""
    found: list[dict[str, float]] = []
    for window in (_NOW, _BEFORE):
        requests = max(counts.sum(Key(model, ANSWERED), *window), 1.0)
        found.append({key.label(label): counts.sum(key, *window) / requests for key in counts.keys(name, model)})
    return most_grown(*found)
