"""A profile as a document, with its flame graph."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from tailcut.common.slo import parse_objectives
from tailcut.common.units import format_duration
from tailcut.profiler.attribution.budget import Budget, Culprit, StageLine
from tailcut.profiler.attribution.gaps import READ_LATE, SENT_LATE
from tailcut.profiler.attribution.layers import ModelLayers
from tailcut.profiler.levers.advice import Advice, LeverAdvice, span
from tailcut.profiler.payloads.diversity import Diversity, Point
from tailcut.profiler.records import Stage
from tailcut.report.document import Area, Document, DocumentSection, Table, shortened
from tailcut.report.ladder.perception import perceived
from tailcut.report.profile.json import ProfileReport
from tailcut.report.profile.shapes import Frame, LatencyColumn
from tailcut.report.style import STAGES

# Frames within frames as inline SVG: a flame graph that grows downwards. No script; titles say what does not fit.

_WIDTH = 1080
_ROW = 21
_LETTER = 6.8
_LEAST = 0.8
"""Narrower frames are left out, in pixels."""
_DEEPEST = 48


def flame_graph(root: Frame) -> str:
    """Draw a tree: width is time, what runs inside something stands below it. Empty where there is nothing."""
    if root.value <= 0:
        return ""
    parts: list[str] = []
    depth = _draw(root, root.value, 0.0, 0, parts)
    height = (depth + 1) * _ROW + 2
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img">{"".join(parts)}</svg>'


def _draw(frame: Frame, whole: float, left: float, depth: int, parts: list[str]) -> int:
    """Draw a frame and those below it; return how deep they go."""
    width = frame.value / whole * _WIDTH
    parts.append(_frame(frame, whole, left, width, depth))
    deepest = depth
    if depth < _DEEPEST:
        for child in frame.children:
            if child.value / whole * _WIDTH >= _LEAST:
                deepest = max(deepest, _draw(child, whole, left, depth + 1, parts))
            left += child.value / whole * _WIDTH
    return deepest


def _frame(frame: Frame, whole: float, left: float, width: float, depth: int) -> str:
    own = frame.value - sum(child.value for child in frame.children)
    inside = f", {ms(own)} ms of it itself" if frame.children and own > 0 else ""
    title = f"{frame.name}\n{ms(frame.value)} ms, {percent(frame.value / whole)}{inside}"
    y = depth * _ROW + 1
    room = int((width - 8) / _LETTER)
    text = ""
    if room >= 3:
        shown = frame.name if len(frame.name) <= room else f"{frame.name[: room - 1]}…"
        style = ' class="root-text"' if depth == 0 else ""
        text = f'<text{style} x="{left + 4:.1f}" y="{y + 14.5:.1f}">{escape(shown)}</text>'
    return (
        f'<g class="frame"><rect class="{_style(frame, depth)}" x="{left:.1f}" y="{y}" width="{width:.1f}"'
        f' height="{_ROW - 1}" rx="2"/>{text}<title>{escape(title)}</title></g>'
    )


def _style(frame: Frame, depth: int) -> str:
    if depth == 0:
        return "root"
    if frame.style in STAGES:
        return f"st-{frame.style}"
    return f"fr{sum(map(ord, frame.name)) % 4}"


_TICKS = {"p25": 0.25, "p50": 0.5, "p75": 0.75, "p90": 0.9, "p95": 0.95, "p99": 0.99}
_THRESHOLDS = {"100 ms: seems instant": 100.0, "300 ms: is noticed": 300.0, "1 s: focus is lost": 1000.0}
_STEEP = 3.0
"""The plot's height is that of the p99, but at most so many times the p95, and some room: a few requests of a second
would flatten all others."""


def profile_document(report: ProfileReport, longest: int = 400) -> Document:
    """Lay a profile out: the bottleneck, what to do, where the time goes, the rest.

    Args:
        longest: name or query that is shown whole; a page wraps long ones, a terminal does not.
    """
    budget = report.budget
    findings = (f"SLO {finding}" for finding in budget.findings)
    near = f"{budget.near} requests near the p95 ({ms(budget.near_from_ms)} to {ms(budget.near_to_ms)} ms)"
    basis = f"share: of the {near}, where stages add up; the percentiles are each stage's own"
    steps = (stages_table(budget), culprits_table(budget, longest=longest), steps_table(budget, longest=longest))
    return Document(
        title=f"Profile of {report.target}",
        lead=f"{report.rate:.4g} requests/s for {report.duration_s:.3g} s. {report.created}.",
        tiles=_tiles(report),
        sections=(
            DocumentSection(
                title="The bottleneck", lines=tuple(filter(None, (bottleneck(budget), felt(budget), *findings)))
            ),
            *_levers(report),
            _requests(report),
            DocumentSection(
                title="Where the time goes",
                text=basis if budget.lines else "",
                tables=steps if budget.lines else (),
            ),
            *_flames(report),
            DocumentSection(
                title="Queries and other calls, by total time", tables=(calls_table(budget, longest=longest),)
            ),
            *_diversity(report),
            *map(layers_section, report.layers),
            *_facts(report),
        ),
    )


def layers_section(model: ModelLayers) -> DocumentSection:
    """The slow layers of one model."""
    first, *rest = layers_words(model)
    tables = (layers_table(model), operators_table(model))
    return DocumentSection(title=f"Slow layers of {first}", tables=tables, lines=tuple(rest))


def plot_top(columns: Sequence[LatencyColumn], limits_ms: Sequence[float]) -> float:
    """Height of the plot, and of limits that are near, in milliseconds."""
    p99, p95 = (next((one for one in columns if one.to_share >= share), columns[-1]).mean_ms for share in (0.99, 0.95))
    high = min(p99, _STEEP * p95)
    return 1.12 * max(high, *(value for value in limits_ms if value <= 2.0 * high), 1e-3)


def _tiles(report: ProfileReport) -> tuple[tuple[str, str], ...]:
    budget = report.budget
    wall, line = budget.wall, budget.bottleneck
    tiles = [(str(budget.answered), f"requests answered, {budget.failed} failed")]
    if wall is not None:
        tiles.append((f"{ms(wall.p95)} ms", f"p95, p50 {ms(wall.p50)} and p99 {ms(wall.p99)} ms"))
    if line is not None and budget.near:
        tiles.append((f"{percent(line.near_share)} {line.stage}", "largest part of the p95 request"))
    if budget.findings:
        tiles.append(("SLO met" if report.met else "SLO missed", report.slo))
    return tuple(tiles)


def _levers(report: ProfileReport) -> list[DocumentSection]:
    advice = report.advice
    if advice is None:
        return []
    doubts = " ".join(f"doubtful: {line}" for line in advice.doubts)
    rests = [f"{one.lever} rests on: {'; '.join(one.basis)}" for one in advice.levers if one.basis and one.worth]
    return [
        DocumentSection(title="What to do", lines=advice.summary),
        DocumentSection(
            title="What each lever can win",
            text=doubts,
            tables=(levers_table(advice),),
            lines=(*rests, *advice.notes),
        ),
    ]


def _requests(report: ProfileReport) -> DocumentSection:
    """Every request by latency, or the mean of neighbours, as a stack of its stages."""
    columns = report.columns
    if not columns:
        return DocumentSection(title="All requests", details=True)
    latency = parse_objectives(report.slo).latency if report.slo else ()
    limits = {f"SLO {one.name} {one.limit_s * 1e3:g} ms": one.limit_s * 1e3 for one in latency}
    top = plot_top(columns, list(limits.values()))
    used = [stage for stage in map(str, Stage) if any(stage in column.stages_ms for column in columns)]
    above = [column for column in columns if column.mean_ms > top]
    cut = f" The slowest {sum(column.count for column in above)} are higher, up to" if above else ""
    chart = Area(
        title="Requests, the quickest on the left",
        unit="requests by latency",
        edges=(*(column.from_share for column in columns), 1.0),
        bands={(stage, STAGES[stage]): tuple(one.stages_ms.get(stage, 0.0) for one in columns) for stage in used},
        limits={name: value for name, value in {**limits, **_THRESHOLDS}.items() if value <= top},
        top=top,
        ticks=_TICKS,
    )
    return DocumentSection(
        title="All requests",
        text="Milliseconds from the intended send time to the last byte, by stage."
        + (f"{cut} {ms(max(column.max_ms for column in above))} ms." if above else ""),
        charts=(chart,),
        details=True,
    )


def _flames(report: ProfileReport) -> list[DocumentSection]:
    text = "A request near the p95: width is time, what runs inside something stands below it, largest first."
    found = [DocumentSection(title="Flame graph", text=text, charts=(flame_graph(report.spans),), details=True)]
    if report.stacks is not None:
        text = (
            "Sampled stacks of the threads that worked on requests, all requests together. Exact times are above;"
            " samples say which functions they went to."
        )
        found.append(
            DocumentSection(title="Down to functions", text=text, charts=(flame_graph(report.stacks),), details=True)
        )
    return [section for section in found if any(section.charts)]


def _diversity(report: ProfileReport) -> list[DocumentSection]:
    if report.diversity is None:
        return []
    return [
        DocumentSection(
            title="How alike the requests are",
            text="Share of look-ups that a cache would have answered, by how long its entries live, and how many it"
            " must hold.",
            tables=(diversity_table(report.diversity), sizes_table(report.diversity)),
        )
    ]


def _facts(report: ProfileReport) -> tuple[DocumentSection, DocumentSection]:
    pilot = report.pilot
    hooked = [f"Hooked: {', '.join(pilot.hooks)}."] if pilot.hooks else []
    notes = (tracing_words(report.kind), *hooked, *(f"note: {note}" for note in report.notes))
    facts = {
        "command": report.command,
        "tailcut": report.tailcut,
        **report.machine,
        **({"event loop": pilot.loop} if pilot.loop else {}),
        **({"threads for handlers": str(pilot.threads)} if pilot.threads else {}),
        **pilot.versions,
    }
    lines = tuple(f"{name}: {value}" for name, value in facts.items())
    return (
        DocumentSection(title="What to know of these figures", lines=notes),
        DocumentSection(title="Measured by", lines=lines, details=True),
    )


# -- Tables ------------------------------------------------------------------------------------------------------------


_BAR = 20
"""Blocks of a share of all."""
_LEAST_SHARE = 0.005
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
    shown = [one for one in budget.culprits if one.near_share >= _LEAST_SHARE][:most]
    rows: list[tuple[str, ...]] = []
    for one in shown:
        rows.append((percent(one.near_share), ms(one.near_ms), str(one.stage), name_of(one, longest)))
        rows += [
            ("", "", "", f"  {percent(each.share)} of the samples ({each.samples}): {each.function}")
            for each in one.functions[:3]
            if one.stage in (Stage.CODE, Stage.FRAMEWORK, Stage.UNATTRIBUTED)
        ]
    rest = sum(one.near_share for one in budget.culprits) - sum(one.near_share for one in shown)
    if rest >= _LEAST_SHARE:
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
    shown = [one for one in budget.steps if one.near_share >= _LEAST_SHARE or not one.depth][:most]
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
            f"{entries:,}" if (entries := one.size_for()) else "-",
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
    return Table(
        title="Layers",
        head=("layer", "kind", "own ms", "share", "addressed by"),
        rows=tuple(
            (_ending(one.name, _LONG), one.kind, ms(one.ms), percent(one.share), one.lever or "-")
            for one in model.layers[:most]
        ),
        left=(0, 1, 4),
        note=_more(len(model.layers) - most, sum(one.share for one in model.layers[most:])),
    )


def operators_table(model: ModelLayers, most: int = _MOST_LAYERS) -> Table:
    """The slowest kinds of operators of a model."""
    return Table(
        title="Operators",
        head=("operator", "calls a run", "own ms", "share", "addressed by"),
        rows=tuple(
            (one.name, f"{one.calls:.3g}", ms(one.ms), percent(one.share), one.lever or "-")
            for one in model.operators[:most]
        ),
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


def _ending(text: str, longest: int) -> str:
    """The end of a path of modules says most."""
    return text if len(text) <= longest else f"…{text[1 - longest :]}"


def _more(count: int, share: float) -> str:
    return f"and {count} more with {percent(share)}" if count > 0 else ""


# -- Words -------------------------------------------------------------------------------------------------------------


# What a profile says in sentences, and how its figures are written.

STAGE_WORDS: dict[Stage, str] = {
    Stage.NETWORK: "on the way between client and server",
    Stage.ACCEPT: "waiting to be accepted",
    Stage.RECEIVE: "receiving the body",
    Stage.DECODE: "decoding and validating the body",
    Stage.SQL: "waiting for the database",
    Stage.CACHE: "waiting for the cache",
    Stage.HTTP: "waiting for other services",
    Stage.PREPROCESS: "preprocessing",
    Stage.MODEL: "the model",
    Stage.CODE: "your own code",
    Stage.FRAMEWORK: "the web framework",
    Stage.ENCODE: "encoding the reply",
    Stage.WAIT: "waiting",
    Stage.LOCK: "waiting for a lock",
    Stage.LOOP: "waiting for an event loop that other work blocks",
    Stage.GC: "garbage collection",
    Stage.UNATTRIBUTED: "unattributed: the cause is not visible from here",
}
"""A stage within a sentence: "62 % of it is ..."."""

STEPS_TITLE = "Steps of models and preprocessing, each below what calls it"

_PLAIN = (Stage.NETWORK, Stage.ACCEPT, Stage.GC, Stage.UNATTRIBUTED)
"""Stages whose names say all there is to say."""
_WHOLE = 0.8
"""A name that takes this much of its stage stands for all of it."""
_MOST = 0.5
_LABEL = 90
_WORD_THRESHOLDS = "up to 100 ms seems instant, 300 ms is noticed, after 1 s people lose focus"


def bottleneck(budget: Budget) -> str:
    """Name what takes most of the requests near the p95, with its place; empty where nothing was answered."""
    line = budget.bottleneck
    if line is None or not budget.near:
        return ""
    said = f"{percent(line.near_share)} of the p95 request is {STAGE_WORDS[line.stage]}"
    named = budget.culprits_of(line.stage)
    if late := _late_words(line, named, budget):
        return late
    if line.stage in _PLAIN or not named:
        return f"{said} ({ms(line.near_ms)} of {ms(budget.near_ms)} ms).{_held_by(line, named)}"
    first, *others = named
    if first.awaits and first.near_share >= _MOST * line.near_share:
        return (
            f"{percent(first.near_share)} of the p95 request is waiting for something that is not hooked, which"
            f" {_plain_name(first, _LABEL)} awaits ({ms(first.near_ms)} of {ms(budget.near_ms)} ms)."
        )
    joined = " for " if line.stage == Stage.WAIT else ": "
    if first.near_share >= _WHOLE * line.near_share:
        told = f"{said}{joined}{name_of(first)}"
    else:
        listed = ", ".join(f"{name_of(one)} ({percent(one.near_share)})" for one in named[:2])
        told = f"{said}{joined}{listed}{f' and {len(others) - 1} more' if len(others) > 1 else ''}"
    inside = ""
    if first.functions and first.functions[0].function.split(" (")[0] != first.label.split(" (")[0]:
        top = first.functions[0]
        inside = f" Inside it, {percent(top.share)} of the samples ({top.samples}) are in {top.function}."
    return f"{told} ({ms(line.near_ms)} of {ms(budget.near_ms)} ms).{inside}"


def _held_by(line: StageLine, named: Sequence[Culprit]) -> str:
    """Say what held the event loop that was to accept them; empty where nothing in particular did."""
    holders = named[0].functions if line.stage == Stage.ACCEPT and named else ()
    if not holders or holders[0].share < _MOST:
        return ""
    return f" Its event loop was held by {holders[0].function} ({percent(holders[0].share)} of the time that it was)."


def _late_words(line: StageLine, named: Sequence[Culprit], budget: Budget) -> str:
    """Say that the network was none; empty where it was, or another stage takes most."""
    late = [one for one in named if one.stage == Stage.NETWORK and one.label in {SENT_LATE, READ_LATE}]
    share = sum(one.near_share for one in late)
    if not late or share < _MOST * line.near_share:
        return ""
    took_ms = sum(one.near_ms for one in late)
    return (
        f"{percent(share)} of the p95 request is the load generator's own lateness, not the application's:"
        f" it had no core, or no connection ({ms(took_ms)} of {ms(budget.near_ms)} ms)."
    )


def name_of(culprit: Culprit, longest: int = _LABEL) -> str:
    """A culprit's label with its place."""
    name = _plain_name(culprit, longest)
    return f"{name} awaits what is not hooked" if culprit.awaits else name


def _plain_name(culprit: Culprit, longest: int) -> str:
    label = shortened(culprit.label, longest)
    if culprit.place and culprit.place not in label:
        return f"{label} at {culprit.place}" if label else culprit.place
    return label or str(culprit.stage)


def felt(budget: Budget) -> str:
    """Say what a person makes of the p95, and of all requests where they differ."""
    if budget.wall is None:
        return "no request was answered"
    shares = [f"{percent(share)} {name}" for name, share in budget.perception.items() if share > 0]
    each = f"; of all requests {', '.join(shares)}" if len(shares) > 1 else ""
    return f"p95 {ms(budget.wall.p95)} ms: {perceived(budget.wall.p95)} ({_WORD_THRESHOLDS}){each}"


def tracing_words(kind: str) -> str:
    """Say what profiling costs the requests that a report shows."""
    if kind != "pilot":
        return (
            "Profiling cost the server nothing: it used the client's measurements and the server's own Server-Timing."
        )
    return (
        "Tracing is part of these figures: it took about 0.25 ms of CPU a request of the flight_risk example, whose"
        " traced requests took 14 % longer (7 to 22) near the p95 while every second one was traced."
    )


def layers_words(model: ModelLayers) -> list[str]:
    """Say of a model's layers what is to be known before the table is read."""
    by = "an exported graph, torch.compile" if model.runtime.startswith("torch") else "a runtime that fuses more"
    lines = [
        f"{model.model}: {ms(model.run_ms)} ms a run, {model.runtime}, on {model.inputs or 'no tensors'}",
        f"INT8 addresses {percent(model.addressed('quantisation'))} of its time, fusion ({by})"
        f" {percent(model.addressed('fusion'))}",
    ]
    if model.dispatch:
        lines[-1] += f"; {percent(model.dispatch)} is Python and dispatch, which an exported graph avoids"
    if model.device is not None:
        used = model.device
        lines.append(
            f"{used.name}: {used.kernels:.0f} kernels a run take {ms(used.kernel_ms)} ms, and it waits"
            f" {ms(used.gap_ms)} ms for the next to be launched; at most {used.peak_bytes / 2**20:.0f} MiB allocated"
        )
    else:
        lines.append(f"kernel time, launch gaps and memory of a GPU: {model.device_note}")
    return [*lines, *filter(None, [model.doubt]), *model.notes]


def ms(value: float) -> str:
    """Milliseconds with three significant digits, as plain digits."""
    if value >= 99.95:
        return f"{value:.0f}"
    if value >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if value >= 0.0995 else f"{value:.3f}"


def percent(share: float) -> str:
    """A share as people write it."""
    return f"{100 * share:.0f} %" if share >= 0.0995 or share == 0 else f"{100 * share:.1f} %"
