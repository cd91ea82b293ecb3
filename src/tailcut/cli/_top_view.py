"""A snapshot of a server as tables for a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tailcut.observe.live.figures import AlertFigures, ModelFigures, Snapshot

_BAR = 24
_STATES = {"ready": "green", "failed": "red", "draining": "yellow", "loading": "yellow"}
_COLOURS = ("blue", "cyan", "magenta", "green", "yellow", "red")


def view(snapshot: Snapshot, model: str, notice: str = "") -> RenderableType:
    """Return what the terminal shows: the host, its models, and the parts of one model.

    Args:
        model: shown in detail; empty: the only one, where there is only one.
        notice: shown above everything.
    """
    chosen = [each for each in snapshot.models if each.name == model or (not model and len(snapshot.models) == 1)]
    parts: list[RenderableType] = [_head(snapshot)]
    if notice:
        parts.insert(0, Text(notice, style="bold yellow"))
    parts += [_alert(each) for each in snapshot.alerts or ()]
    parts += [Text(), _models(snapshot.models)]
    for each in chosen:
        parts += _details(each)
    return Group(*parts)


def seconds(value: float | None) -> str:
    """Return a duration with its unit and three digits."""
    if value is None:
        return "-"
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}" if value < 1000 * size else f"{value / size:.0f} {unit}"
    return f"{value * 1e6:.3g} us"


def rate(value: float) -> str:
    """Return a number per second."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 0.05 or not value else "<0.1"


def share(value: float | None) -> str:
    """Return a share as per cent."""
    return "-" if value is None else f"{value:.1%}" if value < 0.9995 or value == 1.0 else ">99.9%"


def _head(snapshot: Snapshot) -> Text:
    process = snapshot.process
    parts = [f"tailcut {snapshot.version}"]
    if process.started_s is not None:
        parts.append(f"up {_span(snapshot.at_s - process.started_s)}")
    if process.cpu_cores is not None:
        parts.append(f"{process.cpu_cores:.2f} cores")
    if process.memory_bytes is not None:
        parts.append(_size(process.memory_bytes))
    if process.loop_lag_s is not None:
        parts.append(f"loop lag {seconds(process.loop_lag_s)}")
    return Text.assemble((process.state, _STATES.get(process.state, "red")), "  ", "  ".join(parts))


def _alert(alert: AlertFigures) -> Text:
    where = f"{alert.model}: " if alert.model else ""
    about = [f"likely stage: {alert.stage}"] if alert.stage else []
    about += [alert.hint] if alert.hint else []
    told = "".join(f"; {each}" for each in about)
    return Text.assemble((f"{alert.severity} {alert.name}", "bold red"), f"  {where}{alert.text}", (told, "dim"))


def _models(models: Sequence[ModelFigures]) -> Table:
    table = _table("model", "req/s", "p50", "p95", "p99", "not ok/s", "burn 5m", "queue", "in flight")
    for model in models:
        requests, whole, now = model.requests, model.stages[-1], model.now
        state = "" if model.state == "ready" else f" {model.state}"
        burns = [each.burn_recent for each in model.objectives if each.burn_recent is not None]
        table.add_row(
            Text.assemble(model.name, (state, _STATES.get(model.state, "dim"))),
            rate(requests.all.rate),
            *map(seconds, (whole.p50_s, whole.p95_s, whole.p99_s)),
            rate(requests.shed.rate + requests.failed.rate),
            _times(max(burns, default=None)),
            _number(now.queue_rows),
            _number(now.in_flight),
        )
    return table


def _details(model: ModelFigures) -> Iterator[RenderableType]:
    if model.reason:
        yield Text(f"{model.name}: {model.reason}", style="red")
    yield from (Text(), _parts(model))
    rows = "" if model.batches.rows_mean is None else f", {model.batches.rows_mean:.1f} rows per batch"
    yield Text(f"executors: {_number(model.now.executors)}{rows}")
    codes = ", ".join(f"{code} {count.total}" for code, count in sorted(model.requests.codes.items()))
    if codes:
        yield Text(f"errors since the start: {codes}")


def _parts(model: ModelFigures) -> Table:
    """Return the stages, variants, look-ups and objectives of a model, with a remark in the last column."""
    table = _table("stage", "mean", "p50", "p95", "p99", "")
    whole = model.stages[-1].mean_s
    for place, stage in enumerate(model.stages):
        if stage.count or stage.name == "request":
            times = (stage.mean_s if stage.count else None, stage.p50_s, stage.p95_s, stage.p99_s)
            part = (stage.mean_s or 0.0) / whole if whole and stage.name != "request" else 0.0
            bar = Text("█" * round(part * _BAR), style=_COLOURS[place % len(_COLOURS)], no_wrap=True, overflow="crop")
            table.add_row(stage.name, *map(seconds, times), bar)
    if len(model.variants) > 1 or any(each.cost for each in model.variants):
        table.add_section()
        for each in model.variants:
            cost = "" if each.cost is None else f", {each.cost:.3g} {each.currency} per 1M"
            name = Text(f"variant {each.name}", style="bold" if each.served else "")
            quantiles = map(seconds, (each.p50_s, each.p95_s, each.p99_s))
            table.add_row(name, "", *quantiles, f"{share(each.share)} of requests{cost}")
    table.add_section()
    for looked in (*model.features, *model.caches):
        about = f" ({looked.about})" if looked.about else ""
        counts = f"{looked.hits.total} hits, {looked.misses.total} misses, {looked.stale} stale, {looked.errors} errors"
        table.add_row(f"{looked.name}{about}", "", "", "", "", f"hit rate {share(looked.share)}: {counts}")
    table.add_section()
    for goal in model.objectives:
        limit = "" if goal.limit_s is None else f" within {seconds(goal.limit_s)}"
        burn = f"burn {_times(goal.burn)}, 5m {_times(goal.burn_recent)}"
        met = f"{goal.good} of {goal.total}{limit}, objective {goal.share:.4g}; {burn}"
        table.add_row(f"SLO {goal.name}", "", "", "", "", met)
    return table


def _table(first: str, *heads: str) -> Table:
    """Return a table without rows; in a narrow terminal its cells wrap."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
    table.add_column(first, overflow="fold")
    for head in heads:
        table.add_column(head, justify="right" if head else "left", overflow="fold")
    return table


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)


def _size(value: float) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1024:.3g} KiB"


def _span(value_s: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if value_s >= size:
            return f"{value_s / size:.1f} {unit}"
    return f"{value_s:.0f} s"


def _times(burn: float | None) -> str:
    return "-" if burn is None else f"{burn:.2g}x" if burn < 10 else f"{burn:.0f}x"
