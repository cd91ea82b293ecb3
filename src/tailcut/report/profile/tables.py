"""A profile's tables."""

from __future__ import annotations

from collections.abc import Sequence

from tailcut.common.units import format_duration
from tailcut.profiler.attribution.budget import Budget
from tailcut.profiler.attribution.layers import ModelLayers
from tailcut.profiler.levers.advice import Advice, LeverAdvice, span
from tailcut.profiler.payloads.diversity import Diversity, Point, Stream
from tailcut.profiler.records import Stage
from tailcut.report.document import Table, shortened
from tailcut.report.profile.words import STEPS_TITLE, ms, name_of, percent

_BAR = 20
"""Blocks of a share of all."""
_LEAST = 0.005
_LEAST_MS = 0.0005
_MOST_CULPRITS = 12
_MOST_CALLS = 15
_MOST_STREAMS = 12
_MOST_STEPS = 24
_MOST_LAYERS = 12
_LIVES_S = (1.0, 10.0, 60.0, 300.0, 3600.0)
_SIZES = (16, 128, 1024, 8192, 65536)
_LONG, _LONGER = 52, 64


def stages_table(budget: Budget) -> Table:
    """The latency budget: a row per stage, and one for the whole request."""
    rows = [
        (
            str(line.stage),
            ms(line.p50_ms),
            ms(line.p95_ms),
            ms(line.p99_ms),
            ms(line.near_ms),
            percent(line.near_share),
            "█" * round(line.near_share * _BAR),
        )
        for line in budget.lines
        if max(line.near_ms, line.p99_ms) >= _LEAST_MS
    ]
    if (wall := budget.wall) is not None:
        rows.append(("whole request", ms(wall.p50), ms(wall.p95), ms(wall.p99), ms(budget.near_ms), "100 %", ""))
    return Table(head=("stage", "p50 ms", "p95 ms", "p99 ms", "at p95 ms", "share", ""), rows=tuple(rows), left=(0, 6))


def culprits_table(budget: Budget, most: int = _MOST_CULPRITS, *, longest: int = _LONGER) -> Table:
    """What takes the time of the requests near the p95, by name."""
    shown = [one for one in budget.culprits if one.near_share >= _LEAST][:most]
    rows: list[tuple[str, ...]] = []
    for one in shown:
        rows.append((percent(one.near_share), ms(one.near_ms), str(one.stage), name_of(one, longest)))
        rows += [
            ("", "", "", f"  {percent(each.share)} of the samples ({each.samples}): {each.function}")
            for each in one.functions[:3]
            if one.stage in (Stage.CODE, Stage.FRAMEWORK, Stage.UNATTRIBUTED)
        ]
    rest = sum(one.near_share for one in budget.culprits) - sum(one.near_share for one in shown)
    if rest >= _LEAST:
        rows.append((percent(rest), ms(rest * budget.near_ms), "", f"{len(budget.culprits) - len(shown)} more"))
    title = "By name, of the requests near the p95"
    return Table(head=("share", "at p95 ms", "stage", "what"), rows=tuple(rows), left=(2, 3), title=title)


def calls_table(budget: Budget, most: int = _MOST_CALLS, *, longest: int = _LONG) -> Table:
    """Queries, cache commands, addresses and models, by total time."""
    rows = tuple(
        (
            str(call.stage),
            f"{call.total_ms:.0f}",
            str(call.calls),
            f"{call.per_request:.3g}",
            ms(call.mean_ms),
            ms(call.p95_ms),
            f"{shortened(call.text, longest)}{f' at {call.place}' if call.place else ''}",
        )
        for call in budget.calls[:most]
    )
    more = len(budget.calls) - most
    return Table(
        head=("kind", "total ms", "calls", "a request", "mean ms", "p95 ms", "what"),
        rows=rows,
        left=(0, 6),
        note=f"and {more} more" if more > 0 else "",
    )


def steps_table(budget: Budget, most: int = _MOST_STEPS, *, longest: int = _LONGER) -> Table:
    """Models and preprocessing, each step below what calls it; without rows where none has a step."""
    shown = [one for one in budget.steps if one.near_share >= _LEAST or not one.depth][:most]
    several = any(one.depth for one in budget.steps) or any(one.stage == Stage.PREPROCESS for one in budget.steps)
    rows = tuple(
        (
            ms(one.mean_ms),
            ms(one.own_ms),
            ms(one.near_ms),
            percent(one.near_share),
            f"{one.per_request:.3g}",
            str(one.stage),
            f"{'  ' * one.depth}{shortened(one.label, longest)}{f' at {one.place}' if one.place else ''}",
        )
        for one in shown
    )
    return Table(
        title=STEPS_TITLE,
        head=("mean ms", "own ms", "at p95 ms", "share", "calls", "stage", "what"),
        rows=rows if several else (),
        left=(5, 6),
        note="mean ms: what a request is shorter by without it and all that it calls; own: without the steps below it",
    )


def diversity_table(diversity: Diversity) -> Table:
    """Share of look-ups that a cache would have answered, by how long entries live, and the size it needs."""
    lives = [life for life in _LIVES_S if life <= max(diversity.span_s, _LIVES_S[0])]
    shown = [one for one in diversity.streams if not one.constant][:_MOST_STREAMS]
    rows = tuple(
        (
            one.name,
            str(one.lookups),
            str(one.distinct),
            *(_share_at(one.by_life, life) for life in lives),
            percent(one.repeats),
            _size(one),
        )
        for one in shown
    )
    notes = [f"{diversity.requests} payloads over {diversity.span_s:.3g} s"]
    if not diversity.timed:
        notes.append("spread at the rate of the run: they have no times")
    if not all(one.exact for one in shown):
        notes.append("estimated from one key in sixteen")
    constant = [one.name for one in diversity.streams if one.constant]
    if constant:
        notes.append(f"always the same: {', '.join(constant)}")
    return Table(
        head=(
            "asked for",
            "look-ups",
            "distinct",
            *(f"TTL {format_duration(life)}" for life in lives),
            "ever",
            "entries for it",
        ),
        rows=rows,
        note="; ".join([*notes, *diversity.notes]),
    )


def sizes_table(diversity: Diversity) -> Table:
    """Share of look-ups that a cache would have answered, by how many entries it holds; without rows where few do."""
    shown = [one for one in diversity.streams if not one.constant][:_MOST_STREAMS]
    sizes = [size for size in _SIZES if any(size < one.distinct for one in shown)]
    rows = tuple((one.name, *(_share_at(one.by_size, size) for size in sizes), percent(one.repeats)) for one in shown)
    return Table(
        title="The same by how many entries the cache holds",
        head=("asked for", *(f"{size:,} entries" for size in sizes), "all"),
        rows=rows if sizes else (),
        note="least recently used entries are evicted; entries do not expire",
    )


def layers_table(model: ModelLayers, most: int = _MOST_LAYERS) -> Table:
    """The slowest layers of a model."""
    rows = tuple(
        (_ending(one.name, _LONG), one.kind, ms(one.ms), percent(one.share), one.lever or "-")
        for one in model.layers[:most]
    )
    return Table(
        title="Layers",
        head=("layer", "kind", "own ms", "share", "addressed by"),
        rows=rows,
        left=(0, 1, 4),
        note=_more(len(model.layers) - most, sum(one.share for one in model.layers[most:])),
    )


def operators_table(model: ModelLayers, most: int = _MOST_LAYERS) -> Table:
    """The slowest kinds of operators of a model."""
    rows = tuple(
        (one.name, f"{one.calls:.3g}", ms(one.ms), percent(one.share), one.lever or "-")
        for one in model.operators[:most]
    )
    return Table(
        title="Operators",
        head=("operator", "calls a run", "own ms", "share", "addressed by"),
        rows=rows,
        left=(0, 4),
        note=_more(len(model.operators) - most, sum(one.share for one in model.operators[most:])),
    )


def levers_table(advice: Advice) -> Table:
    """A row for the service as it is, then one per lever: those to pull first, in order."""
    rows = [("", "as it is", ms(advice.p95_ms), "", "", rate(advice.capacity), "")]
    rows += [
        (
            f"{one.order}." if one.order else "",
            one.lever,
            "-" if one.p95_ms is None else span(*one.p95_ms),
            ms(one.bound_p95_ms),
            "-" if one.after_p95_ms is None else span(*one.after_p95_ms),
            rate(one.capacity),
            _verdict(one),
        )
        for one in advice.levers
    ]
    return Table(
        head=("", "lever", f"{advice.percentile} ms", "bound", "so far", "at most/s", "worth it?"),
        rows=tuple(rows),
        left=(0, 1, 6),
        note=(
            f"at {advice.rate:.4g} requests/s; each lever alone, best and worst; bound: what it is aimed at takes no"
            " time and no request waits for another; so far: with those above it; at most: the requests/s that no"
            f" resource allows more than, as it is {advice.limited_by}"
        ),
    )


def _verdict(one: LeverAdvice) -> str:
    """Say whether a lever is worth it, and why not."""
    if one.worth:
        return f"yes: {one.reason}" if one.reason else "yes"
    if one.reason.startswith("not known: "):
        return one.reason
    return f"no: {one.reason.removeprefix('not worth it: ')}" if one.reason else "no"


def rate(value: float | None) -> str:
    """Requests per second."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _share_at(points: Sequence[Point], at: float) -> str:
    return next((percent(point.share) for point in points if point.at == at), "-")


def _size(stream: Stream) -> str:
    entries = stream.size_for()
    return f"{entries:,}" if entries else "-"


def _ending(text: str, longest: int) -> str:
    """The end of a path of modules says most."""
    return text if len(text) <= longest else f"…{text[1 - longest :]}"


def _more(count: int, share: float) -> str:
    return f"and {count} more with {percent(share)}" if count > 0 else ""
