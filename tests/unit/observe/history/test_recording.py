from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.history_kit import DAY_S, START_S, Run
from tests.wait_kit import wait_written

from tailcut.errors import StoreError
from tailcut.observe.exposition import ModelSeries
from tailcut.observe.history import History
from tailcut.observe.history.recorder import HistoryRecorder
from tailcut.observe.history.tables import MOST_SERIES, SCHEMA, HistorySnapshot, Series, Tables
from tailcut.observe.sample import Sample
from tailcut.store import SqliteFile

TO_S = START_S + 10 * DAY_S


def path_of(tmp_path: Path) -> Path:
    return tmp_path / "history.sqlite"


def test_a_minute_has_latencies_by_variant_and_stage_and_counts_by_label(tmp_path: Path) -> None:
    run = Run(path_of(tmp_path))
    run.ask(10.0, 20.0)
    run.ask(5.0, variant="int8")
    run.ask(1.0, code="shed")
    run.samples = [Sample("tailcut_queue_rows", "", "gauge", {}, 3.5)]
    run.pass_s()
    run.ask(30.0)
    run.pass_s()
    run.end()
    whole = run.history.latency(START_S, TO_S, model="risk", stage="request", variant="onnx", bucket_s=3600)
    assert [(row.start_s, row.requests, row.total_ns) for row in whole] == [(START_S, 3, 60_000_000)]
    assert whole[0].percentile_ns(0.99) == pytest.approx(30e6, rel=0.02)
    minutes = run.history.latency(START_S, TO_S, stage="infer")
    assert [(row.start_s - START_S, row.variant, row.requests) for row in minutes] == [
        (0, "int8", 1),
        (0, "onnx", 2),
        (60, "onnx", 1),
    ]
    shed = [
        row for row in run.history.counts(START_S, TO_S, name="tailcut_requests_total") if row.labels["code"] == "shed"
    ]
    assert [(row.start_s, row.model, row.kind, row.value) for row in shed] == [(START_S, "risk", "counter", 1.0)]
    gauges = run.history.counts(START_S, TO_S, name="tailcut_queue_rows")
    assert [row.value for row in gauges] == [3.5, 3.5]
    host = {row.name for row in run.history.counts(START_S, TO_S, model="")}
    assert host >= {"process_resident_memory_bytes", "process_open_fds", "process_cpu_seconds_total"}
    assert run.history.coverage(START_S, TO_S, bucket_s=3600) == [(START_S, 2)]
    assert run.history.extent() == (START_S, START_S + 60)
    assert run.dropped == 0


def test_the_history_and_the_metrics_page_say_the_same(tmp_path: Path) -> None:
    run = Run(path_of(tmp_path))
    value = 0.0
    for minute in range(5):
        run.ask(*[3.0] * (minute + 1))
        run.ask(2.0, code="bad_request")
        value += minute
        labels = {"group": "weather", "result": "hit"}
        run.samples = [Sample("tailcut_feature_cache_lookups", "", "counter", labels, value)]
        run.pass_s()
    run.end()
    shown = {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(run.exposition.render().decode())
        for sample in family.samples
        if sample.value and "model" in sample.labels and sample.name.endswith(("_total", "batch_rows_sum"))
    }
    kept = {
        (row.name, frozenset({**row.labels, "model": row.model}.items())): row.value
        for row in run.history.counts(START_S, TO_S, model="risk", bucket_s=DAY_S)
        if row.name.endswith(("_total", "batch_rows_sum"))
    }
    assert kept == shown
    assert kept["tailcut_feature_cache_lookups_total", frozenset({**labels, "model": "risk"}.items())] == 10


def test_a_counter_that_begins_again_loses_nothing(tmp_path: Path) -> None:
    run = Run(path_of(tmp_path))
    for value in (5.0, 7.0, 2.0):  # its model was loaded anew
        run.samples = [Sample("tailcut_x", "", "counter", {}, value)]
        run.pass_s()
    run.end()
    assert [row.value for row in run.history.counts(START_S, TO_S, name="tailcut_x_total")] == [5, 2, 2]


def test_a_second_server_waits_until_the_first_one_has_ended(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    one, two = Run(path_of(tmp_path)), Run(path_of(tmp_path))
    for value, run in enumerate((one, two), start=1):
        run.samples = [Sample("tailcut_queue_rows", "", "gauge", {}, float(value))]
        run.ask(*[1.0] * value)
        run.pass_s()
        assert run.writing._writer is not None
        wait_written(run.writing._writer)
    assert "cannot be written: another server that runs writes it" in caplog.text
    assert "name a file for each server with observe.history.path" in caplog.text
    assert one.writing.own_history() is one.history
    assert two.writing.own_history() is None, "its rows are of another server"
    one.end()
    two.pass_s()
    assert two.writing._writer is not None
    wait_written(two.writing._writer)
    assert two.writing.own_history() is two.history
    two.end()
    rows = one.history.latency(START_S, TO_S, stage="request")
    assert [(row.start_s, row.requests) for row in rows] == [(START_S, 3)]
    assert [row.value for row in one.history.counts(START_S, TO_S, name="tailcut_queue_rows")] == [2, 2]
    assert [row.value for row in one.history.counts(START_S, TO_S, name="tailcut_batch_rows_sum")] == [3]


def test_a_history_of_version_1_is_renamed_and_a_new_one_begins(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = path_of(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE instance (id INTEGER PRIMARY KEY, name TEXT)")
        connection.execute(f"PRAGMA application_id = {SCHEMA.application_id}")
        connection.execute("PRAGMA user_version = 1")
        connection.commit()
    with pytest.raises(StoreError, match="has version 1, not 2") as refused:
        History(path).extent()
    assert "`tailcut serve` renames it" in str(refused.value)
    run = Run(path)
    run.ask(1.0)
    run.pass_s()
    run.end()
    assert "has version 1; this tailcut writes 2; it was renamed to history.sqlite.old" in caplog.text
    assert [row.requests for row in run.history.latency(START_S, TO_S, stage="request")] == [1]
    assert (tmp_path / "history.sqlite.old").is_file()


def test_rows_older_than_what_is_kept_are_removed(tmp_path: Path) -> None:
    run = Run(path_of(tmp_path), keep_s=3600)
    for _ in range(90):
        run.ask(1.0)
        run.pass_s()
    run.end()
    assert run.history.extent() == (START_S + 29 * 60, START_S + 89 * 60)  # 60 minutes before the newest


def test_a_clock_that_is_a_year_ahead_removes_nothing(tmp_path: Path) -> None:
    for ahead_s in (0, 365 * DAY_S):  # the second server even starts with it
        run = Run(path_of(tmp_path), START_S + ahead_s, keep_s=3600, process=False)
        for minute in range(150):
            run.wall_s += 365 * DAY_S if minute == 80 and not ahead_s else 0
            run.ask(1.0)
            run.pass_s()
            if minute == 30 and ahead_s:
                run.wall_s -= ahead_s  # set right
        run.end()
    kept = run.history.latency(START_S, START_S + DAY_S, stage="request", bucket_s=DAY_S)
    assert [row.requests for row in kept] == [61 + 119]  # of the first 80 minutes an hour was kept, as it should be


def test_the_file_stays_within_its_size_and_the_oldest_rows_give_way(tmp_path: Path) -> None:
    limit = 1 << 20
    run = Run(path_of(tmp_path), size_bytes=limit)
    for _ in range(400):
        run.samples = [Sample(f"tailcut_{number}", "", "gauge", {}, 0.1) for number in range(150)]
        run.ask(1.0)
        run.pass_s()
    run.end()
    assert path_of(tmp_path).stat().st_size <= limit
    assert run.dropped == 0
    extent = run.history.extent()
    assert extent is not None
    assert START_S < extent[0] < START_S + 300 * 60
    assert extent[1] == START_S + 399 * 60
    lower = Run(path_of(tmp_path), START_S + DAY_S, size_bytes=limit // 2)
    for _ in range(3):
        lower.pass_s()
    lower.end()
    assert path_of(tmp_path).stat().st_size <= limit // 2
    assert (lower.history.extent() or (0, 0))[1] == START_S + DAY_S + 120


def test_series_beyond_the_limit_are_left_out_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(path_of(tmp_path))
    monkeypatch.setattr("tailcut.observe.history.recorder.MOST_SERIES", 100)
    run.samples = [Sample("tailcut_x", "", "counter", {"value": str(number)}, 1.0) for number in range(100_000)]
    run.pass_s()
    run.end()
    assert len(run.history.counts(START_S, TO_S)) < 250
    dropped = next(each for each in run.writing.samples() if each.name == "tailcut_history_dropped")
    assert dropped.value > 99_000
    assert len([each for each in caplog.records if "further ones are left out" in each.message]) == 1


def test_what_was_never_counted_takes_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way in which a request of a route and a variant can end is a series, and most never count."""
    run = Run(path_of(tmp_path), process=False)
    monkeypatch.setattr("tailcut.observe.history.recorder.MOST_SERIES", 10)
    for counted in (0.0, 3.0, 5.0):
        quiet = [Sample("tailcut_x", "", "counter", {"value": str(number)}, 0.0) for number in range(1000)]
        run.samples = [*quiet, Sample("tailcut_y", "", "counter", {}, counted)]
        run.pass_s()
    run.end()
    assert [row.value for row in run.history.counts(START_S, TO_S) if row.name == "tailcut_y_total"] == [3.0, 2.0]


def test_names_in_a_file_are_bounded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MOST_SERIES >= 10_000
    monkeypatch.setattr("tailcut.observe.history.tables.MOST_SERIES", 5)
    run = Run(path_of(tmp_path))
    run.ask(1.0)
    run.pass_s()
    run.end()
    assert len({row.name for row in run.history.counts(START_S, TO_S)}) <= 5
    assert run.dropped > 0


def numbers(*names: str, minute: int = 1, part: int = 1, keep_from: int = 0) -> HistorySnapshot:
    """Of gauges, each of which has its name as its value."""
    return HistorySnapshot(
        minute, part, keep_from, [], [(Series("gauge", "m", name, ""), float(name)) for name in names]
    )


def kept_values(path: Path) -> dict[str, set[float]]:
    found: dict[str, set[float]] = {}
    for row in History(path).counts(0, TO_S):
        found.setdefault(row.name, set()).add(row.value)
    return found


def test_series_without_rows_are_removed_where_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = path_of(tmp_path)
    file, tables = SqliteFile(path, SCHEMA), Tables(1 << 28)

    def write(snapshot: HistorySnapshot) -> int:
        return file.write(lambda connection: tables.write(connection, snapshot))

    monkeypatch.setattr("tailcut.observe.history.tables.MOST_SERIES", 3)
    assert write(numbers("0", "1", "2", minute=1)) == 0
    assert write(numbers("0", "3", minute=2)) == 1
    # The next day, when the others have no rows any more:
    assert write(numbers("0", "3", "4", "5", minute=1440, keep_from=1440)) == 1
    assert kept_values(path) == {"0": {0.0}, "3": {3.0}, "4": {4.0}}


def test_series_of_a_write_that_failed_are_made_again(tmp_path: Path) -> None:
    file, tables = SqliteFile(path_of(tmp_path), SCHEMA), Tables(1 << 28)

    def failing(connection: sqlite3.Connection) -> None:
        tables.write(connection, numbers("1", "2"))
        raise sqlite3.OperationalError("disk I/O error")

    with pytest.raises(sqlite3.OperationalError):
        file.write(failing)
    assert file.write(lambda connection: tables.write(connection, numbers("2", "1"))) == 0
    assert kept_values(path_of(tmp_path)) == {"1": {1.0}, "2": {2.0}}


def test_rows_that_are_needed_and_give_way_are_told_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def serve(folder: str, keep_s: float, minutes: int) -> list[str]:
        caplog.clear()
        (tmp_path / folder).mkdir()
        run = Run(tmp_path / folder / "history.sqlite", size_bytes=1 << 20, keep_s=keep_s, process=False)
        for _ in range(minutes):
            run.samples = [Sample(f"tailcut_{number}", "", "gauge", {}, 0.1) for number in range(250)]
            run.pass_s()
        run.end()
        return [record.getMessage() for record in caplog.records]

    (said,) = serve("week", 35 * DAY_S, 300)
    start, _, way_out = said.partition(" is full: rows only ")
    assert start == f"the history at {tmp_path / 'week' / 'history.sqlite'}"
    assert "old were removed, and observe.history.keep, or a comparison with last week, needs 8d; the limit is" in said
    assert "set observe.history.size higher" in way_out
    (said,) = serve("hours", 4 * 3600, 200)
    assert "needs 4h" in said
    assert serve("enough", 3600, 200) == []


class _Listener:
    def __init__(self, *, fails: bool = False) -> None:
        self.models: list[str] = []
        self.fails = fails

    def receive(self, snapshot: HistorySnapshot) -> None:
        self.models += {series.model for series, *_ in snapshot.latencies}

    def end_minute(self) -> None:
        self.models.append("end")
        if self.fails:
            raise RuntimeError("a listener")


def test_a_source_that_fails_ends_the_minute_for_nobody_and_loses_no_count(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(path_of(tmp_path), process=False)
    other = Run(tmp_path / "other.sqlite", process=False)
    is_broken, value = False, 0.0

    def source() -> list[Sample]:
        if is_broken:
            raise RuntimeError("a broken source")
        return [Sample("tailcut_x", "", "counter", {}, value)]

    run.models.insert(0, ModelSeries("broken", other.recorder, source))
    listeners = _Listener(fails=True), _Listener()
    run.writing.listeners += listeners
    for minute in range(100):
        is_broken, value = 10 <= minute < 90, minute + 1.0
        other.ask(2.0)
        run.ask(1.0)
        run.pass_s()
    run.end()
    assert all(each.models == ["broken", "risk", "end"] * 100 for each in listeners)
    for model in ("broken", "risk"):
        rows = run.history.latency(START_S, TO_S, model=model, stage="request")
        assert [row.requests for row in rows] == [1] * 100
    grown = [row.value for row in run.history.counts(START_S, TO_S, name="tailcut_x_total")]
    assert grown == [1.0] * 10 + [81.0] + [1.0] * 9
    assert [record.getMessage().partition(" could not")[0] for record in caplog.records] == [
        "the figures of the minute's end",
        "the figures of model broken, by one of its sources",
    ]
    failures = next(each for each in run.writing.samples() if each.name == "tailcut_history_failures")
    assert failures.value == 80 + 100


def test_counters_that_are_gone_give_their_places_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tailcut.observe.history.recorder.MOST_SERIES", 300)
    run = Run(path_of(tmp_path), process=False)
    for generation in range(4):  # versions come and go
        run.samples = [Sample("tailcut_x", "", "counter", {"at": f"{generation}-{n}"}, 5.0) for n in range(150)]
        for _ in range(70):
            run.pass_s()
    run.end()
    found = [row.value for row in run.history.counts(START_S, TO_S, name="tailcut_x_total")]
    # Of each next version those that had no place follow when the one before has been gone for an hour.
    assert found == [5.0] * 600


def test_a_model_that_was_removed_and_comes_again_counts_from_nothing(tmp_path: Path) -> None:
    run = Run(path_of(tmp_path), process=False)
    run.ask(1.0, 1.0)
    run.pass_s()
    again = Run(tmp_path / "other.sqlite", process=False)
    run.models[0] = again.models[0]
    again.ask(1.0)
    run.pass_s()
    run.end()
    assert [row.requests for row in run.history.latency(START_S, TO_S, stage="request")] == [2, 1]


class _Loop:
    """Keeps what it is told to call."""

    def __init__(self) -> None:
        self.later: list[tuple[float, Callable[[], None]]] = []
        self.soon: list[Callable[[], None]] = []

    def call_later(self, delay_s: float, call: Callable[[], None]) -> _Handle:
        self.later.append((delay_s, call))
        return _Handle()

    def call_soon(self, call: Callable[..., None], *arguments: object) -> None:
        self.soon.append(lambda: call(*arguments))


class _Handle:
    def cancel(self) -> None:
        pass


def test_snapshots_are_at_full_minutes_and_let_requests_between(tmp_path: Path) -> None:
    run = Run(path_of(tmp_path), START_S + 42.0)
    loop = _Loop()
    run.writing.start(loop)
    delay_s, tick = loop.later.pop()
    assert delay_s == pytest.approx(18.01)
    run.ask(1.0)
    run.wall_s, run.monotonic_s = START_S + 60.01, run.monotonic_s + 18.01
    tick()
    assert loop.later.pop()[0] == pytest.approx(60.0)
    turns = 0
    while loop.soon:
        loop.soon.pop()()
        turns += 1
    assert turns == 2  # the model and the process are not taken in one turn
    run.ask(2.0)
    run.wall_s += 5
    run.monotonic_s += 5
    run.writing.stop()
    run.writing.stop()
    run.end()
    found = run.history.latency(START_S, TO_S, stage="request")
    assert [(row.start_s - START_S, row.requests) for row in found] == [(0, 1), (60, 1)]


def test_a_history_that_was_never_started_makes_no_file(tmp_path: Path) -> None:
    run = Run(path_of(tmp_path))
    run.writing.stop()
    run.end()
    with pytest.raises(StoreError, match="there is no history"):
        run.history.extent()
    assert isinstance(run.writing, HistoryRecorder)


def test_a_histogram_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    run = Run(path_of(tmp_path))
    run.ask(1.0)
    run.pass_s()
    run.end()
    with closing(sqlite3.connect(path_of(tmp_path))) as connection:
        connection.execute("UPDATE latency SET histogram = x'ff'")
        connection.commit()
    with pytest.raises(StoreError, match="cannot be read: a histogram's bytes are cut off"):
        run.history.latency(START_S, TO_S)


def test_buckets_are_whole_minutes(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="bucket_s is 90"):
        History(path_of(tmp_path)).latency(0, 1, bucket_s=90)
