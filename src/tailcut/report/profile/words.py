"""What a profile says in sentences, and how its figures are written."""

from __future__ import annotations

from collections.abc import Sequence

from tailcut.profiler.attribution.budget import Budget, Culprit, StageLine
from tailcut.profiler.attribution.gaps import READ_LATE, SENT_LATE
from tailcut.profiler.attribution.layers import ModelLayers
from tailcut.profiler.records import Stage
from tailcut.report.document import shortened
from tailcut.report.ladder.perception import perceived

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
_THRESHOLDS = "up to 100 ms seems instant, 300 ms is noticed, after 1 s people lose focus"


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
    return f"p95 {ms(budget.wall.p95)} ms: {perceived(budget.wall.p95)} ({_THRESHOLDS}){each}"


def near_words(budget: Budget) -> str:
    """Say what the shares rest on."""
    return (
        f"share: of the {budget.near} requests near the p95 ({ms(budget.near_from_ms)} to {ms(budget.near_to_ms)} ms),"
        " where stages add up; the percentiles are each stage's own"
    )


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
    lines = [
        f"{model.model}: {ms(model.run_ms)} ms a run, {model.runtime}, on {model.inputs or 'no tensors'}",
        f"INT8 addresses {percent(model.addressed('quantisation'))} of its time, fusion ({_fused_by(model)})"
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


def _fused_by(model: ModelLayers) -> str:
    return "an exported graph, torch.compile" if model.runtime.startswith("torch") else "a runtime that fuses more"


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
