"""Profile a URL: from the client, and by Server-Timing where the server sends it."""

from __future__ import annotations

from tailcut.common.redaction import without_secrets
from tailcut.load import LoadPlan, LoadResult
from tailcut.load.plan import check_plan, parse_url
from tailcut.load.runner import OnProgress
from tailcut.profiler.attribution.server_timing import TAILCUT
from tailcut.profiler.outside import record_load, round_trip, with_notes
from tailcut.profiler.records import Recording, Stage

_SILENT = (
    "the server sends no Server-Timing, so its stages cannot be seen from here: profile the"
    " application itself (tailcut profile module:app), or let it send Server-Timing"
)
_NO_TOTAL = (
    "the server's Server-Timing has no total: time outside its parts may belong to the server or the network, "
    "and is shown as unattributed"
)


def record_url(plan: LoadPlan, *, on_progress: OnProgress | None = None) -> tuple[Recording, LoadResult]:
    """Send a load to a URL and make a recording of it.

    Args:
        plan: what is sent, and where to.
        on_progress: as in ``tailcut.load.run``.

    Raises:
        LoadTestError: the plan is wrong, or nobody listens.
        ProfileError: no request was answered.
    """
    check_plan(plan)
    trip_ns = round_trip(parse_url(plan.url))
    recording, result = record_load(
        plan, without_secrets(plan.url), known=TAILCUT, round_trip_ns=trip_ns, on_progress=on_progress
    )
    told = [span for one in recording.requests for span in one.spans if span.stage != Stage.NETWORK]
    if any(one.entered_ns >= 0 for one in recording.requests):
        return recording, result
    return with_notes(recording, _NO_TOTAL if told else _SILENT), result
