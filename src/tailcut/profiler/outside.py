"""A recording of a server from outside: the load's samples and Server-Timing."""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from contextlib import suppress

import msgspec
import numpy as np

from tailcut.common.redaction import without_secrets
from tailcut.errors import ProfileError
from tailcut.load import LoadPlan, LoadResult, Samples, measure, summarise_run
from tailcut.load.machine import machine_facts
from tailcut.load.plan import TargetUrl, check_plan, parse_url
from tailcut.load.runner import OnProgress
from tailcut.profiler.attribution.server_timing import TAILCUT, Timed
from tailcut.profiler.records import RecordedRequest, Recording, Stage

_CONNECTS = 7
_CONNECT_S = 5.0
_KEEPS_UP = 0.98
_COMFORTABLE = 0.7


def record_load(
    plan: LoadPlan,
    target: str,
    *,
    known: Mapping[str, tuple[Stage, str]] | None = None,
    round_trip_ns: int = 0,
    on_progress: OnProgress | None = None,
) -> tuple[Recording, LoadResult]:
    """Send a load and make a recording from the client's samples and the server's Server-Timing.

    Args:
        plan: what is sent.
        target: name for the report.
        known: stages of the server's metrics by name.
        round_trip_ns: of a bare connection, where the server tells no total; 0: not known.
        on_progress: as in ``tailcut.load.run``.

    Returns:
        the recording, its requests those after the warm-up; and the load's own figures.

    Raises:
        LoadTestError: the plan is wrong, or nobody listens.
        ProfileError: no request was answered, or the rate is more than the target bears.
    """
    samples, facts = measure(plan, on_progress=on_progress)
    result = summarise_run(plan, samples, facts)
    if not result.answered:
        raise unanswered(result, target)
    check_rate(result, target)
    recording = Recording(
        target=target,
        rate=plan.rate or result.offered_rps,
        duration_s=facts.window_s,
        requests=requests_of(samples, known, round_trip_ns),
        machine=machine_facts(),
        notes=tuple(load_notes(result)),
    )
    return recording, result


def requests_of(
    samples: Samples, known: Mapping[str, tuple[Stage, str]] | None = None, round_trip_ns: int = 0
) -> tuple[RecordedRequest, ...]:
    """Make a record of each request after the warm-up."""
    # A metric that no reply gave a duration (the cache's outcome, say) tells no time.
    columns = {name: column for name, column in samples.stages_ms.items() if not np.isnan(column).all()}
    timed = Timed(tuple(columns), known)
    first = int(np.searchsorted(samples.intended_ns, samples.measured_from_ns))
    times = zip(samples.intended_ns.tolist(), samples.sent_ns.tolist(), samples.done_ns.tolist(), strict=True)
    values = {name: column.tolist() for name, column in columns.items()}
    found = []
    for number, moments in enumerate(times):
        status = int(samples.status[number])
        if number < first or status == 0:  # a run that was stopped early never sent it
            continue
        took = {name: column[number] for name, column in values.items() if column[number] == column[number]}
        found.append(timed.request(number, moments, status, took, round_trip_ns=round_trip_ns))
    return tuple(found)


def check_rate(result: LoadResult, target: str) -> None:
    """Refuse a rate that is more than the target sustains.

    Raises:
        ProfileError: its answers did not keep up; with a rate that it sustains.
    """
    # Requests in flight at the window's edges are no backlog: at low rates they alone are more than 2 %. Nor are
    # errors; but a refusal (429) says that it was too much.
    borne_rps = result.replied_rps - result.sheds / result.window_s
    if borne_rps >= _KEEPS_UP * result.offered_rps - 3.0 / result.window_s:
        return
    digits = 0 if borne_rps >= 15 else 1
    refused = f" and refused {result.sheds} requests" if result.sheds else ""
    raise ProfileError(
        f"{target} cannot sustain {result.offered_rps:.4g} requests/s: it answered {borne_rps:.4g}/s{refused},"
        " and the profile would show only its queue",
        hint=f"profile it at a rate that it sustains, such as --rate {max(_COMFORTABLE * borne_rps, 0.5):.{digits}f}",
    )


def load_notes(result: LoadResult) -> list[str]:
    """Say what of the load makes figures weaker than they look."""
    notes = [text for text in result.warnings if "nothing is judged" not in text]
    if result.failed:
        notes.insert(0, "not answered: " + ", ".join(f"{name} {count}" for name, count in _failures(result).items()))
    return notes


def unanswered(result: LoadResult, target: str) -> ProfileError:
    """Say why a load got no answer at all."""
    kinds = ", ".join(f"{name} {count}" for name, count in _failures(result).items())
    first = next(iter(result.bodies.items()), None)
    said = f"; the first {first[0]} says: {first[1]}" if first else ""
    hints = {
        "404": "check the path: --path, or the path of the URL",
        "405": "check the method: --method",
        "415": "set the type of the bodies: --header 'Content-Type: ...'",
        "422": "check the payloads: --payloads",
        "401": "send what it asks for: --header 'Authorization: Bearer ...'",
        "429": "try a lower --rate",
    }
    hint = next((hints[status] for status in result.statuses if status in hints), "try one request by hand, with curl")
    return ProfileError(f"{target} answered none of {result.requests} requests ({kinds}){said}", hint=hint)


def round_trip(target: TargetUrl) -> int:
    """Measure how long the quickest of some bare connections takes to be there: one round trip, in nanoseconds.

    0 where none can be made.
    """
    found = []
    for _ in range(_CONNECTS):
        began_ns = time.perf_counter_ns()
        with suppress(OSError), socket.create_connection((target.host, target.port), timeout=_CONNECT_S):
            found.append(time.perf_counter_ns() - began_ns)
    return min(found, default=0)


def with_notes(recording: Recording, *notes: str) -> Recording:
    """Put notes before those that a recording has."""
    return msgspec.structs.replace(recording, notes=(*notes, *recording.notes))


def _failures(result: LoadResult) -> dict[str, int]:
    statuses = {name: count for name, count in result.statuses.items() if not name.startswith("2")}
    return {**statuses, **{name: count for name, count in result.errors.items() if not name.startswith("status_")}}


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
    if any(one.entered_ns >= 0 for one in recording.requests):
        return recording, result
    has_parts = any(span.stage != Stage.NETWORK for one in recording.requests for span in one.spans)
    return with_notes(recording, _NO_TOTAL if has_parts else _SILENT), result
