"""Where requests probably lose their time: the stage whose time per request grew most, and of features the group."""

from __future__ import annotations

from tailcut.observe.alerts.minute_counts import MinuteCounts
from tailcut.observe.alerts.series import FEATURE_SOURCE_ERRORS, FEATURE_SOURCE_SECONDS, REQUESTS
from tailcut.observe.outcomes import SHED_CODES

STAGE_NS = "stage_ns"
"""Name under which nanoseconds of answered requests are counted by stage; "request" is the whole."""

STAGE_REQUESTS = "stage_requests"
"""As ``STAGE_NS``, of requests that met the stage."""

_NOW_MINUTES, _BEFORE_MINUTES = 10, 50
_LEAST_REQUESTS = 50
_LEAST_GROWTH = 0.05
_PLACES_OF_CODES = {
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


def likely_place(counts: MinuteCounts, model: str, *, errors: bool = False, shed: bool = False) -> str:
    """Return the likely place; empty if nothing tells.

    The last minutes are compared with the rest of the last hour; where that has too few requests, or no stage grew, it
    is the stage that takes most of the time.

    Args:
        errors: whether it is about requests that failed: then the most frequent error's code tells.
        shed: whether requests that were shed are among them.
    """
    if errors and (code := top_code(counts, model, _NOW_MINUTES, shed=shed)):
        stage = _PLACES_OF_CODES.get(code, "")
        return _failing_group(counts, model) if stage == "features" else stage
    now = _per_request(counts, model, _NOW_MINUTES, 0)
    before = _per_request(counts, model, _BEFORE_MINUTES, _NOW_MINUTES)
    grown = {stage: now[stage] - before.get(stage, 0.0) for stage in now}
    whole = sum(now.values())
    largest = max(grown, key=lambda stage: grown[stage], default="")
    if not before or grown.get(largest, 0.0) < _LEAST_GROWTH * whole:
        largest = max(now, key=lambda stage: now[stage], default="")
    return _with_group(counts, model) if largest == "features" else largest


def top_code(counts: MinuteCounts, model: str, minutes: int, *, shed: bool = False) -> str:
    """Return the code of the server's most frequent error; empty without errors.

    Args:
        shed: whether requests that were refused or dropped for want of capacity count, too.
    """
    found: dict[str, float] = {}
    for key in counts.keys(REQUESTS, model):
        code = key.label("code")
        if shed if code in SHED_CODES else key.label("outcome") == "5xx":
            found[code] = found.get(code, 0.0) + counts.sum(key, minutes)
    return max((code for code in found if found[code]), key=lambda code: found[code], default="")


def grown_group(now: dict[str, float], before: dict[str, float]) -> str:
    """Return the place of the feature group whose source takes most more time per request; "features" if none does."""
    grown = {group: value - before.get(group, 0.0) for group, value in now.items()}
    largest = max(grown, key=lambda group: grown[group], default="")
    return f"features/{largest}" if grown.get(largest, 0.0) > 0 else "features"


def _per_request(counts: MinuteCounts, model: str, minutes: int, ago: int) -> dict[str, float]:
    """Return nanoseconds per answered request by stage; empty with too few requests."""
    requests = counts.total(STAGE_REQUESTS, model, minutes, ago, stage="request")
    if requests < _LEAST_REQUESTS:
        return {}
    return {
        stage: counts.sum(key, minutes, ago) / requests
        for key in counts.keys(STAGE_NS, model)
        if (stage := key.label("stage")) != "request"
    }


def _failing_group(counts: MinuteCounts, model: str) -> str:
    """Return the place of the feature group whose source failed most often."""
    found: dict[str, float] = {}
    for key in counts.keys(FEATURE_SOURCE_ERRORS, model):
        group = key.label("group")
        found[group] = found.get(group, 0.0) + counts.sum(key, _NOW_MINUTES)
    worst = max(found, key=lambda group: found[group], default="")
    return f"features/{worst}" if found.get(worst) else _with_group(counts, model)


def _with_group(counts: MinuteCounts, model: str) -> str:
    groups: list[dict[str, float]] = []
    for minutes, ago in ((_NOW_MINUTES, 0), (_BEFORE_MINUTES, _NOW_MINUTES)):
        requests = max(counts.total(STAGE_REQUESTS, model, minutes, ago, stage="request"), 1.0)
        keys = counts.keys(FEATURE_SOURCE_SECONDS, model)
        groups.append({key.label("group"): counts.sum(key, minutes, ago) / requests for key in keys})
    return grown_group(groups[0], groups[1])
