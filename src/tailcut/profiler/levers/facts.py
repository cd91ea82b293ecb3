"""What decides about levers beside the work: whether the SLO is met, and what requests ask for and change."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tailcut.common.slo import LatencyObjective, Objectives, SloFinding
from tailcut.common.statistics import percentile
from tailcut.profiler.attribution.awaiting import awaited_ns
from tailcut.profiler.attribution.background_calls import background_words
from tailcut.profiler.attribution.budget import by_name, judge_wall, near_percentile
from tailcut.profiler.attribution.calls import grouped_calls, is_fetch, is_write, most_fetches, shown_label
from tailcut.profiler.attribution.functions import functions_of
from tailcut.profiler.attribution.span_table import STAGE_AT, Flat, Ints, answered_ms
from tailcut.profiler.attribution.stages import Attribution
from tailcut.profiler.levers.work import RequestWork
from tailcut.profiler.payloads.diversity import Diversity, Stream
from tailcut.profiler.payloads.fields import tables_of
from tailcut.profiler.records import FETCHING, PROCESS_POOL, Recording, Stage

_HEADROOM = 1.2
"""Capacity over the rate from which on nothing needs doing."""
_SOME = 0.01
"""Of the requests, or of their time: less is no reason for a sentence or a refusal."""
_LONGEST = 60
_FEW_KEYS = 10
"""Requests' worth of keys: an object that has no more in all of a log holds columns, not rows."""
_REPEATED = 0.5


@dataclass(frozen=True, kw_only=True)
class AdviceInputs:
    """What decides beside the work.

    Attributes:
        aim: what is to be met, in words; empty: there is no SLO.
        percentile, share: its name, and the share of the requests that it is about.
        limit_ms: of the percentile; None: there is no SLO.
        seen_ms: the percentile of all requests, as measured; infinite where it failed.
        met: all of the SLO is met as it was measured, with capacity to spare; ``missed``: its percentile is not.
        failed: requests that failed where that alone misses the SLO.
        near: the requests near the percentile.
        fetches, writes: most fetches of one request; a statement that changes a database, empty: hardly any does.
        rows: that a request asks about, on average.
        unseen: by stage, why what of it ran is not known.
        hints: what comes before any lever, in sentences.
    """

    aim: str
    percentile: str
    share: float
    limit_ms: float | None
    seen_ms: float
    met: bool
    missed: bool
    failed: int
    near: Ints
    fetches: int
    writes: str
    rows: float
    unseen: Mapping[Stage, str]
    hints: tuple[str, ...]


def near_share(work: RequestWork, facts: AdviceInputs, *stages: Stage) -> float:
    """Share of the time of the requests near the percentile."""
    near_ns = work.stage_ns[facts.near]
    return float(near_ns[:, [STAGE_AT[stage] for stage in stages]].sum() / (near_ns.sum() or 1.0))


def facts_of(
    work: RequestWork,
    found: Attribution,
    recording: Recording,
    diversity: Diversity | None,
    slo: Objectives | None,
) -> AdviceInputs:
    """Judge the SLO by what was measured, and gather what else decides.

    Args:
        slo: its objective that counts is the percentile that is missed by most, or has least to spare; None: the p95.
    """
    all_ms = answered_ms(recording)
    failed = len(recording.requests) - len(all_ms)
    findings = judge_wall(slo, all_ms, failed) if slo is not None else ()
    objective = _strictest(slo.latency, findings) if slo is not None and slo.latency else None
    unmended = any(not one.met and (one.unit == "%" or one.seen is None) for one in findings)
    share = objective.share if objective else 0.95
    near = near_percentile(found.flat.wall_ns / 1e6, share)
    limit_ms = objective.limit_s * 1e3 if objective else None
    missed = any(one.objective == objective.name and not one.met for one in findings) if objective else False
    whole = objective is None or (len(findings) == 1 and not unmended)
    aim = "the SLO" if whole or objective is None else f"the SLO's {objective.name} of {objective.limit_s * 1e3:g} ms"
    blocking = blocking_code(recording, found.flat)
    return AdviceInputs(
        aim=aim if objective else "",
        percentile=objective.name if objective else "p95",
        share=share,
        limit_ms=limit_ms,
        seen_ms=percentile(np.concatenate([all_ms, np.full(failed, np.inf)]), share),
        met=bool(findings) and all(one.met for one in findings) and work.capacity >= _HEADROOM * recording.rate,
        missed=missed,
        failed=failed if unmended else 0,
        near=near,
        fetches=most_fetches(found),
        writes=_writes(found),
        rows=_rows(diversity),
        unseen=_unseen(recording, found),
        hints=(*blocking, *repeated_fetches(found), *own_code(recording, found, near, blocking)),
    )


def _strictest(objectives: Sequence[LatencyObjective], findings: Sequence[SloFinding]) -> LatencyObjective:
    """Return the objective that is missed by most, or has least to spare; ``findings`` begin with theirs."""
    strictness = [float("inf") if one.seen is None else one.seen / one.limit for one in findings]
    return objectives[int(np.argmax(strictness[: len(objectives)]))]


def _unseen(recording: Recording, found: Attribution) -> dict[Stage, str]:
    """Say of each stage why what of it ran is not known."""
    words = background_words(recording.background_calls, recording.duration_s)
    unseen = {
        stage: f"{ran} for no request in particular, so the wait of a request for it is unknown"
        for stage, ran in words.items()
    }
    if any(name.stage == Stage.WAIT and name.label.startswith(PROCESS_POOL) for name in found.flat.names):
        for stage in (Stage.PREPROCESS, Stage.MODEL, *FETCHING):
            unseen.setdefault(stage, "requests wait for a process pool, and what its workers do is not seen")
    return unseen


def _writes(found: Attribution) -> str:
    """Name a statement that requests change a database with; empty where hardly any request does."""
    flat = found.flat
    spans = np.flatnonzero(flat.which(is_write))
    if len(np.unique(flat.request[spans])) < max(_SOME * len(flat.requests), 1):
        return ""
    names = [flat.names[number] for number in flat.name[spans].tolist()]
    text = Counter(shown_label(name.stage, name.label) for name in names).most_common(1)[0][0]
    return _cut(text, _LONGEST)


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[:longest]}..."


def _rows(diversity: Diversity | None) -> float:
    """Things that a request asks about, on average."""
    if diversity is None or not diversity.requests:
        return 1.0
    streams = {stream.name: stream for stream in diversity.streams[1:]}
    telling = [one for one in streams.values() if not one.constant]
    telling = [one for one in telling if not _in_columns(one, streams, diversity.requests)]
    return max((one.lookups for one in telling), default=diversity.requests) / diversity.requests


def _in_columns(stream: Stream, streams: Mapping[str, Stream], requests: int) -> bool:
    """Tell whether what looks like a table on a look-up's way has the same few names in all requests."""
    for path in tables_of(stream.name):
        keys = streams.get(f"{path}{{}}")
        if keys and keys.repeats >= _REPEATED and keys.distinct * requests <= _FEW_KEYS * keys.lookups:
            return True
    return False


# -- Blocking calls ----------------------------------------------------------------------------------------------------


# Code that holds the event loop: whatever it does meanwhile, no other request is taken in or goes on.

_MUCH = 0.05
"""Of all time: less is not worth a sentence."""
_LONG_NS = 2e6
"""On average: what is shorter is a handler's usual work."""
_MOST = 3


def blocking_code(recording: Recording, flat: Flat) -> tuple[str, ...]:
    """Name the user's code that holds the event loop for long, and much of the time.

    What the framework does for an endpoint that runs in a thread, such as encoding its reply, has the endpoint's name
    there and is not its code.

    Returns:
        Sentences, those first that hold it most.
    """
    on_loop = np.bincount(flat.name, weights=flat.thread == 0, minlength=len(flat.names)) > 0
    threaded = {
        (name.label, name.place)
        for name, there in zip(flat.names, on_loop.tolist(), strict=True)
        if name.stage == Stage.CODE and not there
    }
    held: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for one in recording.moments:
        if one.stage == Stage.LOOP and one.place and (one.label, one.place) not in threaded:
            held[one.label, one.place].append(one.end_ns - one.start_ns)
    lines = []
    for (label, place), took_ns in held.items():
        whole_ns, mean_ns = sum(took_ns), sum(took_ns) / len(took_ns)
        share = whole_ns / (recording.duration_s * 1e9)
        if share >= _MUCH and mean_ns >= _LONG_NS:
            line = (
                f"{label} ({place}) holds the event loop for {mean_ns / 1e6:.3g} ms at a time, {share:.0%} of all "
                "time, while all other requests wait: use await for its waits, run it in a thread (a handler without "
                "async "
                "runs in "
                "one), or move Python computation to another process; no lever does this"
            )
            lines.append((share, line))
    return tuple(line for _, line in sorted(lines, reverse=True)[:_MOST])


# -- Repeated queries --------------------------------------------------------------------------------------------------


# Statements that one request runs again and again: N+1 queries, and answers that are not kept.

_OFTEN = 3.0
"""Times a request, of those requests that run it."""
_AROUND = 0.2
"""Of all requests' time, from the first to the last of them, where they themselves take little."""
_OVERLAP = 0.1
_LONGEST_QUERY = 90


def repeated_fetches(found: Attribution) -> tuple[str, ...]:
    """Name statements that requests run at least three times, one after the other, and that take their time so.

    Returns:
        Sentences, those first that take most time.
    """
    flat = found.flat
    took_ns, groups = grouped_calls(flat, is_fetch)
    wall_ns = float(flat.wall_ns.sum())
    lines = []
    for name, calls in groups.items():
        spans = calls[np.lexsort((flat.start_ns[calls], flat.request[calls]))]
        times = len(spans) / max(len(np.unique(flat.request[spans])), 1)
        share = float(took_ns[spans].sum()) / wall_ns if wall_ns else 0.0
        same = flat.request[spans][1:] == flat.request[spans][:-1]
        overlap_ns = np.maximum(flat.end_ns[spans][:-1] - flat.start_ns[spans][1:], 0)[same].sum()
        around = _from_first_to_last_ns(flat, spans) / wall_ns if wall_ns else 0.0
        much = share >= _MUCH or (share >= _SOME and around >= _AROUND)
        if times < _OFTEN or not much or overlap_ns > _OVERLAP * took_ns[spans].sum():
            continue
        text = _cut(name.label, _LONGEST_QUERY)
        where = f" ({name.place})" if name.place else ""
        line = (
            f"{text}{where} runs {times:.3g} times a request, one after the other, {share:.0%} of the time and"
            f" {around:.0%} with the code in between: keep the answer where it is the same, else ask for all in one"
            " call, to save both; no lever does this"
        )
        lines.append((around, line))
    return tuple(line for _, line in sorted(lines, reverse=True)[:_MOST])


def _from_first_to_last_ns(flat: Flat, spans: Ints) -> float:
    """How long it takes from the start of a request's first one to the end of its last, all requests together."""
    count = len(flat.requests)
    first_ns, last_ns = np.full(count, np.iinfo(np.int64).max), np.zeros(count, dtype=np.int64)
    np.minimum.at(first_ns, flat.request[spans], flat.start_ns[spans])
    np.maximum.at(last_ns, flat.request[spans], flat.end_ns[spans])
    asking = np.unique(flat.request[spans])
    return float((last_ns[asking] - first_ns[asking]).sum())


# -- The user's own code -----------------------------------------------------------------------------------------------


# Code that takes much of the slowest requests: no lever makes it quicker.

LARGE_CODE = 0.2
"""Of the time of the requests near the percentile: from there on it is worth a word."""
_NAMED = 0.5
"""Of the samples in it: such a function is named."""


def own_code(recording: Recording, found: Attribution, near: Ints, hints: Sequence[str] = ()) -> tuple[str, ...]:
    """Name the function of the user's that takes most of the requests near the percentile, where that is much.

    What it awaited is no part of it.

    Args:
        near: places of these requests.
        hints: what is said already: of code that holds the event loop nothing more is.

    Returns:
        One sentence, or none.
    """
    ran_ns = np.maximum(found.self_ns - awaited_ns(found, recording), 0.0)
    code = {name: took_ns for name, took_ns in by_name(found, near, ran_ns).items() if name.stage == Stage.CODE}
    if not len(near) or not code:
        return ()
    name = max(code, key=lambda one: code[one])
    share = code[name] / float(found.flat.wall_ns[near].sum())
    if share < LARGE_CODE or not name.place or any(f"({name.place})" in hint for hint in hints):
        return ()
    seen = functions_of(recording).get((name.label, name.place), ())
    inside = f", mostly in {seen[0].function}" if seen and seen[0].share >= _NAMED else ""
    return (
        f"{name.label} ({name.place}) is your own code and takes {code[name] / len(near) / 1e6:.3g} ms of a request"
        f" near the percentile, {share:.0%} of it{inside}: make it faster; no lever does this, except that a feature "
        "cache keeps features of repeating entities",
    )
