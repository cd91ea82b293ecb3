"""A snapshot of a server as tables for a terminal of any width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tailcut.observe.live.figures import AlertFigures, LookupFigures, ModelFigures, ObjectiveFigures, Snapshot

_BAR = 24
_BARS = "share of the mean"
_FIGURE = 7
_STATES = {"ready": "green", "failed": "red", "draining": "yellow", "loading": "yellow"}
_COLOURS = ("blue", "cyan", "magenta", "green", "yellow", "red")

_Row = Sequence[str | Text]


def view(snapshot: Snapshot, model: str, width: int, notice: str = "") -> RenderableType:
    """Return what the terminal shows: the host, its models, and of one model what it is made of.

    Args:
        model: shown in detail; empty: the only one, where there is only one.
        width: of the terminal in characters; columns are left out where it is narrow.
        notice: shown above everything.
    """
    chosen = [each for each in snapshot.models if each.name == model or (not model and len(snapshot.models) == 1)]
    parts: list[RenderableType] = [_head(snapshot)]
    if notice:
        parts.insert(0, Text(notice, style="bold yellow"))
    parts += [_alert(each) for each in snapshot.alerts or ()]
    parts.append(_models(snapshot, width))
    for each in chosen:
        parts += _details(each, width)
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


def _models(snapshot: Snapshot, width: int) -> Table:
    heads = ("model", "req/s", "p50", "p95", "p99", "not ok/s", "burn 5m", "queue", "in flight", "rows", "exec.")
    rows: list[_Row] = []
    for model in snapshot.models:
        state = "" if model.state == "ready" else f" {model.state}"
        titled = Text.assemble(model.name, (state, _STATES.get(model.state, "dim")))
        rows.append([titled, *_cells(model)])
    return _table(heads, rows, width)


def _cells(model: ModelFigures) -> Iterator[str]:
    requests, whole, now = model.requests, model.stages[-1], model.now
    yield rate(requests.all.rate)
    yield from map(seconds, (whole.p50_s, whole.p95_s, whole.p99_s))
    yield rate(requests.shed.rate + requests.failed.rate)
    burns = [each.burn_recent for each in model.objectives if each.burn_recent is not None]
    yield _times(max(burns)) if burns else "-"
    yield _number(now.queue_rows)
    yield _number(now.in_flight)
    yield "-" if model.batches.rows_mean is None else f"{model.batches.rows_mean:.1f}"
    yield _number(now.executors)


def _details(model: ModelFigures, width: int) -> Iterator[RenderableType]:
    if model.reason:
        yield Text(f"{model.name}: {model.reason}", style="red")
    yield _stages(model, width)
    if model.objectives:
        yield _objectives(model.objectives, width)
    if looked := [*model.features, *model.caches]:
        yield _lookups(looked, width)
    if len(model.variants) > 1 or any(each.cost for each in model.variants):
        yield _variants(model, width)
    codes = ", ".join(f"{code} {count.total}" for code, count in sorted(model.requests.codes.items()))
    if codes:
        yield Text(f"errors since the start: {codes}")


def _stages(model: ModelFigures, width: int) -> Table:
    whole = model.stages[-1].mean_s
    rows: list[_Row] = []
    for place, stage in enumerate(model.stages):
        if not stage.count and stage.name != "request":
            continue
        times = (stage.mean_s if stage.count else None, stage.p50_s, stage.p95_s, stage.p99_s)
        part = (stage.mean_s or 0.0) / whole if whole and stage.name != "request" else 0.0
        bar = Text("█" * round(part * _BAR), style=_COLOURS[place % len(_COLOURS)])
        rows.append([stage.name, *map(seconds, times), bar])
    return _table(("stage", "mean", "p50", "p95", "p99", _BARS), rows, width)


def _objectives(objectives: Sequence[ObjectiveFigures], width: int) -> Table:
    rows: list[_Row] = []
    for each in objectives:
        burns = ("-" if burn is None else _times(burn) for burn in (each.burn, each.burn_recent))
        limit = "-" if each.limit_s is None else seconds(each.limit_s)
        rows.append([each.name, f"{each.share:.4g}", limit, str(each.good), str(each.total), *burns])
    return _table(("SLO", "objective", "limit", "good", "of", "burn", "burn 5m"), rows, width)


def _lookups(looked: list[LookupFigures], width: int) -> Table:
    rows: list[_Row] = []
    for each in looked:
        about = f" ({each.about})" if each.about else ""
        cells = (each.hits.total, each.misses.total, each.stale, each.errors)
        rows.append([f"{each.name}{about}", share(each.share), *map(str, cells)])
    return _table(("look-ups", "hit rate", "hits", "misses", "stale", "errors"), rows, width)


def _variants(model: ModelFigures, width: int) -> Table:
    rows: list[_Row] = []
    for each in model.variants:
        cost = "-" if each.cost is None else f"{each.cost:.3g} {each.currency}"
        name = Text(each.name, style="bold" if each.served else "")
        rows.append([name, share(each.share), *map(seconds, (each.p50_s, each.p95_s, each.p99_s)), cost])
    return _table(("variant", "share", "p50", "p95", "p99", "cost per 1M"), rows, width)


def _table(heads: Sequence[str], rows: Sequence[_Row], width: int) -> Table:
    """Return a table of the columns that fit, from the left; no cell is cut but those of the first."""
    table = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    left = width
    for place, head in enumerate(heads):
        # At least as wide as most figures are: a column does not come and go with its values.
        least = _BAR if head == _BARS else _FIGURE if place else 0
        left -= max([len(head), least, *(len(row[place]) for row in rows)]) + 3
        if left < -1 and place > 1:  # one space stands at either end, three between two columns
            break
        table.add_column(head, justify="right" if place and head != _BARS else "left", no_wrap=True)
    for row in rows:
        table.add_row(*row[: len(table.columns)])
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


def _times(burn: float) -> str:
    return f"{burn:.2g}x" if burn < 10 else f"{burn:.0f}x"
