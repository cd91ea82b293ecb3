"""What ``tailcut top`` shows of a snapshot: every part of a model, and where an alarm comes from."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from tailcut.cli.top import view
from tailcut.observe.live.figures import (
    AlertFigures,
    BatchFigures,
    Count,
    Gauges,
    LookupFigures,
    ModelFigures,
    ObjectiveFigures,
    ProcessFigures,
    Requests,
    Snapshot,
    StageFigures,
)

COUNT = Count(total=123_456, rate=99.5)
ALARM = AlertFigures(
    name="burn_rate",
    severity="page",
    model="risk",
    text="the error budget of p95 of 50 ms burns 17.1 times as fast as the SLO allows",
    since_s=0.0,
    hint="look at the slowest requests",
    stage="features/weather",
)


def snapshot(alarm: AlertFigures) -> Snapshot:
    stages = [
        StageFigures(name=name, count=9, mean_s=0.0123, p50_s=0.0111, p95_s=0.0222, p99_s=0.333)
        for name in ("features", "infer", "request")
    ]
    model = ModelFigures(
        name="risk",
        state="ready",
        ready=True,
        required=True,
        reason="",
        variant="int8",
        version="1",
        window_s=10.0,
        requests=Requests(all=COUNT, answered=COUNT, shed=COUNT, failed=COUNT, refused=COUNT, codes={}),
        stages=stages,
        objectives=[
            ObjectiveFigures(
                name="p95", share=0.95, limit_s=0.05, good=99_999, total=123_456, burn=1.5, burn_recent=17.1
            )
        ],
        features=[LookupFigures(name="weather", about="origin", hits=COUNT, misses=COUNT, share=0.5)],
        caches=[],
        batches=BatchFigures(
            count=COUNT, rows_mean=3.5, seconds_mean=0.01, sizes=[], rows_total=1, seconds_total=1.0
        ),
        variants=[],
        now=Gauges(
            in_flight=3,
            queue_rows=4,
            running_rows=5,
            at_risk=0,
            overloaded=0,
            executors=1,
            executors_target=1,
            executors_hung=0,
        ),
    )  # fmt: skip
    process = ProcessFigures(
        state="ready",
        started_s=0.0,
        memory_bytes=2e8,
        cpu_cores=1.25,
        cpu_seconds=10.0,
        open_files=9,
        max_files=1024,
        loop_lag_s=0.001,
        viewers=1,
    )
    return Snapshot(at_s=100.0, version="1", process=process, models=[model], alerts=[alarm])


def shown(width: int, alarm: AlertFigures = ALARM) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(view(snapshot(alarm), "risk"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_cells_wrap_and_are_not_cut(width: int) -> None:
    text = shown(width)
    assert ("in flight" in text and "12.3 ms" in text) is (width >= 80)
    assert "…" not in text
    assert all(len(line) <= width for line in text.splitlines())


def test_a_model_has_one_table_of_all_its_parts() -> None:
    text = shown(140)
    for words in ("12.3 ms", "99.5", "executors: 1, 3.5 rows per batch", "p99", "█"):
        assert words in text
    assert "hit rate 50.0%: 123456 hits, 123456 misses, 0 stale, 0 errors" in text
    assert "99999 of 123456 within 50 ms, objective 0.95; burn 1.5x, 5m 17x" in text


def test_an_alarm_has_its_likely_stage_and_the_way_out() -> None:
    text = " ".join(shown(160).split())
    assert "page burn_rate risk: the error budget of p95" in text
    assert "likely stage: features/weather; look at the slowest requests" in text
    bare = AlertFigures(name="shed", severity="page", model="", text="too much", since_s=0.0)
    assert "page shed too much\n" in shown(160, bare).replace("  ", " ")
