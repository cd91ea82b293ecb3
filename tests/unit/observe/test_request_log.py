"""The request log: values stay exact, fields are hidden, files are bounded, and nothing of it blocks."""

from __future__ import annotations

import errno
import gzip
import math
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.wait_kit import block_until

from tailcut.common.tensors import NUMPY_OF, Arrays
from tailcut.common.timings import Stage, Timings
from tailcut.errors import LoadTestError, StartError
from tailcut.manifest import Deployment, Features, Manifest, Model, RequestLogSettings, TensorSpec
from tailcut.manifest.loading import load
from tailcut.observe.request_log import Record, read_log
from tailcut.observe.request_log import RequestLog as Sink
from tailcut.observe.request_log import sink as sink_module
from tailcut.observe.request_log.capture import Capture, Sampler
from tailcut.observe.request_log.record import (
    EndedRequest,
    RecordWriter,
    Redaction,
    array_of,
    canonical,
    data_of,
    datatype_of,
    decode_line,
    from_json,
    read_key,
)
from tailcut.observe.request_log.sink import LogFiles

KEY = b"k" * 16
START_NS = 5 * 10**9

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "$float", "$x", "b"]), inner),
    max_leaves=12,
)


@pytest.fixture(params=["jsonl", "jsonl.gz", "parquet"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def same(one: Any, other: Any) -> bool:
    """Equal, NaN and the sign of zero included."""
    return msgspec.msgpack.encode(_plain(one)) == msgspec.msgpack.encode(_plain(other))


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if isinstance(value, float) and math.isnan(value):
        return "nan"
    return f"{value}" if isinstance(value, int) and abs(value) >= 2**63 else value


@given(values)
def test_values_are_read_back_as_they_were(value: Any) -> None:
    line = msgspec.json.encode(Redaction([], []).apply(value, "rows", {}))
    found = from_json(msgspec.json.decode(line))
    if isinstance(value, str) and found != value:
        assert found == value.encode("utf-8", "surrogatepass"), "text that is no Unicode comes back as its bytes"
    elif "\\ud" not in repr(value):
        assert same(found, value)


@given(st.data())
def test_tensors_are_read_back_as_they_were(data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from([name for name in NUMPY_OF if name != "BYTES"]))
    array = data.draw(hnp.arrays(NUMPY_OF[datatype], hnp.array_shapes(min_dims=1, max_dims=3, max_side=3, min_side=0)))
    plain = msgspec.json.decode(msgspec.json.encode(data_of(array)))
    found = array_of(datatype_of(array), array.shape, plain)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    if array.dtype.kind == "f":
        numbers = ~np.isnan(array)  # JSON has one NaN
        np.testing.assert_array_equal(np.signbit(found[numbers]), np.signbit(array[numbers]))


def test_texts_are_read_back_as_they_were() -> None:
    array = np.array([["", "é"], ["NaN", b"\xff"]], object)
    plain = msgspec.json.decode(msgspec.json.encode(data_of(array)))
    assert array_of("BYTES", (2, 2), plain).tolist() == array.tolist()


@given(values, values)
def test_equal_values_have_equal_hashes_and_others_do_not(one: Any, other: Any) -> None:
    redaction = Redaction(["x"], [], KEY)
    assert redaction.digest(one) == redaction.digest(one)
    assert (canonical(one) == canonical(other)) == (redaction.digest(one) == redaction.digest(other))
    assert Redaction(["x"], [], b"another key of 20").digest(one) != redaction.digest(one)


def test_what_is_equal() -> None:
    for one, other in (
        (1, 1.0),
        ("é", "é".encode()),
        ([1, 2], (1.0, 2)),
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}),
        (0.0, -0.0),
    ):
        assert canonical(one) == canonical(other)
    unlike = [None, False, True, 0, 1, "1", "", [], {}, [1], [[1]], 1.5, 2**53 + 1, float(2**53), math.nan, math.inf]
    assert len({canonical(each) for each in unlike}) == len(unlike)


# -- Records -----------------------------------------------------------------------------------------------------------


def deployment(**section: Any) -> Deployment:
    model = Model(
        source="model.onnx",
        inputs=(
            TensorSpec(name="x", shape=(-1, 3), columns=("age", "income", "zip")),
            TensorSpec(name="t", datatype="BYTES"),
        ),
        outputs=(TensorSpec(name="y"), TensorSpec(name="z", shape=(-1, 2))),
    )
    log = RequestLogSettings(path="log", **section)
    return Deployment(name="m", model=model, features=Features(entity=("user",)), request_log=log)


def ended(capture: Capture, **changes: Any) -> EndedRequest:
    given = {
        "route": "infer", "code": "ok", "variant": "onnx", "version": "v1", "cache": "miss", "tenant": "acme",
        "priority": 2, "request_id": "r1", "start_ns": START_NS, "total_ns": 7, "deadline_ns": 10**9, "asked_ns": 0,
        "stages_ns": [3, 0, 4, *[0] * (len(Stage) - 3)], "capture": capture,
    }  # fmt: skip
    return EndedRequest(**(given | changes))


def record(capture: Capture, **section: Any) -> Record:
    made = deployment(**section)
    redaction = Redaction(made.request_log.hash, made.request_log.drop, KEY)
    return decode_line(RecordWriter(made, redaction, "run", 10**18, 4 * 10**9).line(ended(capture)))


def tensors() -> Capture:
    capture = Capture(0.25)
    inputs: Arrays = {"x": np.array([[40, 2e6, 7], [50, math.nan, 7]], np.float32), "t": np.array(["a", "b"], object)}
    capture.take(inputs, "binary", ("y",))
    capture.answer({"y": np.array([0.5, math.inf], np.float32)})
    return capture


def test_a_record_says_all_of_a_request() -> None:
    found = record(tensors())
    assert (found.time, found.time_ns, found.offset_ns) == ("2001-09-09T01:46:41.000000000Z", 10**18 + 10**9, 10**9)
    assert (found.model, found.tenant, found.priority, found.probability) == ("m", "acme", 2, 0.25)
    assert (found.timings_ns, found.status, found.wanted, found.count) == ({"receive": 3, "admit": 4}, 200, ["y"], 2)
    np.testing.assert_array_equal(found.arrays()["x"], tensors().inputs["x"])  # type: ignore[index]
    assert found.outputs is not None
    assert found.outputs[0].data == [0.5, "Infinity"]
    assert found.hashed == found.dropped == found.redacted == []


def test_fields_are_hashed_and_dropped_by_name() -> None:
    digest = Redaction([], [], KEY).digest
    found = record(tensors(), hash=("age", "t", "tenant"), drop=("zip", "outputs"), hash_key="env:K")
    x, t = found.inputs or ()
    assert x.data == [{"$hmac": digest(40)}, 2e6, None, {"$hmac": digest(50)}, "NaN", None]
    assert t.data == [{"$hmac": digest("a")}, {"$hmac": digest("b")}]
    assert found.outputs is not None
    assert found.outputs[0].data is None
    assert found.tenant == digest("acme")
    assert (found.hashed, found.dropped) == (["inputs.t", "inputs.x.age"], ["inputs.x.zip"])
    assert found.redacted == ["outputs.y", "tenant"]


def test_nested_fields_of_rows_and_entities_are_hidden() -> None:
    digest = Redaction([], [], KEY).digest
    rows = Capture(1.0)
    rows.take_body(b'{"rows": [{"age": 9007199254740993, "user": {"email": "e", "n": NaN}, "tags": [{"email": 1}]}]}')
    rows.reply = b'{"predictions": [{"y": 1, "why": "secret"}]}'
    found = record(rows, hash=("user.email",), drop=("why", "tags.email"), hash_key="env:K")
    assert found.rows == [
        {"age": 2**53 + 1, "user": {"email": {"$hmac": digest("e")}, "n": {"$float": "NaN"}}, "tags": [{}]}
    ]
    assert found.predictions == [{"y": 1}]
    assert (found.hashed, found.dropped, found.redacted) == (
        ["rows.user.email"],
        ["rows.tags.email"],
        ["predictions.why"],
    )
    entities = Capture(1.0)
    entities.take_values("entities", ["ann", "bob", "ann"])
    hidden = record(entities, hash=("user",), hash_key="env:K").entities
    assert hidden == [{"$hmac": digest(each)} for each in ("ann", "bob", "ann")]


def test_a_caller_may_change_its_arrays_and_hooks_their_rows() -> None:
    array, row = np.ones((1, 3), np.float32), {"age": [1]}
    capture = Capture(1.0)
    capture.take({"x": array}, "local")
    capture.take_values("rows", [row])
    array[:] = 0
    row["age"].append(2)
    assert capture.inputs is not None
    assert capture.inputs["x"].sum() == 3
    assert capture.given == {"rows": [{"age": [1]}]}


def test_a_malformed_body_is_a_request_all_the_same() -> None:
    capture = Capture(1.0)
    capture.take_body(b"{")
    assert not record(capture).is_asked


def test_the_key_comes_from_a_file_or_the_environment(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY + b"\n")
    assert read_key("key", tmp_path) == KEY
    assert read_key("env:K", tmp_path, {"K": KEY.decode()}.get) == KEY
    for where, environment, said in (
        ("none", {}, "cannot be read"),
        ("env:K", {}, "K is not set"),
        ("env:K", {"K": "k"}, "minimum is 16"),
    ):
        with pytest.raises(StartError, match=said):
            read_key(where, tmp_path, environment.get)


@given(st.floats(0.01, 1))
def test_the_share_is_drawn(share: float) -> None:
    class Uniform:
        def __init__(self) -> None:
            self.random = np.random.default_rng(0).random

    sampler = Sampler(share, Uniform())  # type: ignore[arg-type]
    drawn, asked = 0, 4000
    for _ in range(asked):
        if sampler.left:
            sampler.left -= 1
        else:
            assert sampler.draw().probability == share
            drawn += 1
    assert abs(drawn - share * asked) <= 5 * math.sqrt(asked * share * (1 - share)) + 1


# -- Files -------------------------------------------------------------------------------------------------------------


class Clock:
    """Both clocks of files."""

    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def wall_ns(self) -> int:
        return 10**18 + int(self.now_s * 1e9)


def files(folder: Path, clock: Clock, **section: Any) -> LogFiles:
    given = {"rotate_size_bytes": 1000, "rotate_age_s": 60.0, "keep_bytes": 3000} | section
    return LogFiles(folder, "m", RequestLogSettings(path="log", **given), wall_ns=clock.wall_ns, clock_s=clock)


def test_a_file_that_was_deleted_is_begun_anew(tmp_path: Path) -> None:
    clock = Clock()
    written = files(tmp_path / "log", clock)
    written.write(lines(1))
    for path in (tmp_path / "log").iterdir():
        path.unlink()
    written.tick()
    assert written.size_bytes == 0
    assert written.write(lines(1, first=1)) == 1
    assert [each.offset_ns for each in read_log(tmp_path / "log")] == [1]


def lines(count: int, first: int = 0) -> list[bytes]:
    writer = RecordWriter(deployment(), Redaction([], []), "run", 0, 0)
    return [writer.line(ended(Capture(1.0), start_ns=number)) for number in range(first, first + count)]


def test_files_are_rotated_by_size_and_age_and_the_oldest_deleted(tmp_path: Path) -> None:
    clock, one = Clock(), lines(1)
    log = files(tmp_path / "log", clock, rotate_size_bytes=3 * len(one[0]), keep_bytes=9 * len(one[0]))
    for number in range(30):
        assert log.write(lines(1, number)) == 1
        sizes = [path.stat().st_size for path in (tmp_path / "log").iterdir()]
        assert sum(sizes) <= 9 * len(one[0]) + 9
        assert log.size_bytes == sum(sizes)
    kept = [each.offset_ns for each in read_log(tmp_path / "log")]
    assert kept == list(range(30))[-len(kept) :]
    assert len(kept) >= 4
    clock.now_s = 61
    log.tick()
    log.write(lines(1, 99))
    assert max((tmp_path / "log").iterdir()).stat().st_size == len(lines(1, 99)[0])


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EROFS])
def test_a_full_disk_is_logged_once_counted_and_got_over(
    error: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    clock, real = Clock(), os.write
    log = files(tmp_path / "log", clock, rotate_size_bytes=10**6, keep_bytes=10**7)
    assert log.write(lines(2)) == 2

    def full(file: int, data: bytes) -> int:
        if len(data) > 10:
            return real(file, data[:10])
        raise OSError(error, os.strerror(error))

    monkeypatch.setattr(os, "write", lambda file, data: full(file, data) if len(data) < 600 else real(file, data[:-9]))
    assert log.write(lines(1, 2)) == 0
    assert log.write(lines(1, 3)) == 0
    monkeypatch.setattr(os, "write", real)
    assert log.write(lines(1, 4)) == 1
    assert [each.offset_ns for each in read_log(tmp_path / "log")] == [0, 1, 4], "a part of a line was taken back"
    assert "dropped 2 records" in caplog.text
    assert [each.levelname for each in caplog.records] == ["ERROR", "WARNING"]


def test_a_folder_that_cannot_be_made_costs_records_only(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "log").write_text("a file is in the way")
    clock = Clock()
    log = files(tmp_path / "log", clock)
    log.start()
    assert log.write(lines(1)) == log.write(lines(1)) == 0
    (tmp_path / "log").unlink()
    clock.now_s = 2
    assert log.write(lines(1)) == 1
    assert len(caplog.records) == 2


def test_another_processs_open_file_is_neither_deleted_nor_converted(tmp_path: Path) -> None:
    clock, one = Clock(), lines(1)
    first, second = (files(tmp_path, clock, rotate_size_bytes=len(one[0]), keep_bytes=2 * len(one[0])) for _ in "ab")
    first.write(one)
    for number in range(5):
        clock.now_s += 1
        second.write(lines(1, number))
    assert first._path.exists()


# -- The sink ----------------------------------------------------------------------------------------------------------


class Request:
    """A request that has ended, as the sink gets it."""

    route, code, variant, cache, tenant, priority, request_id, asked_ns = "infer", "ok", "onnx", "off", "", 0, "", 0
    served = None

    def __init__(self, logged: Capture | None, start_ns: int = 0) -> None:
        self.timings = Timings(start_ns)
        self.timings.lap(Stage.INFER, start_ns + 5)
        self.deadline_ns = start_ns + 10**9
        self.logged = logged


def opened(folder: Path, **section: Any) -> Sink:
    return Sink(Manifest(deployment(share=1.0, **section), folder, {}))


def test_sampled_requests_are_written_and_others_are_not(form: str, tmp_path: Path) -> None:
    log = opened(tmp_path, format=form)
    log.start()
    log.on_requests("m", [Request(tensors(), 3), Request(None), Request(tensors(), 1)])  # type: ignore[list-item]
    log.on_requests("another", [Request(tensors())])  # type: ignore[list-item]
    log.close()
    found = read_log(tmp_path / "log")
    assert len(found) == log.written == 2
    np.testing.assert_array_equal(found[0].arrays()["x"], tensors().inputs["x"])  # type: ignore[index]
    assert found[0].timings_ns == {"infer": 5}
    assert {each.name: each.value for each in log.samples()}["tailcut_request_log_written"] == 2

    def is_converted() -> bool:  # what is not by the end of one run, the next one takes over
        if {path.name.partition(".")[2] for path in (tmp_path / "log").iterdir()} == {form}:
            return True
        again = opened(tmp_path, format=form)
        again.start()
        again.close()
        return False

    block_until(is_converted)
    assert len(read_log(tmp_path / "log")) == 2


def test_what_a_killed_server_left_is_converted_by_the_next(tmp_path: Path) -> None:
    (tmp_path / "log").mkdir()
    left = tmp_path / "log" / "m-20260101T000000Z-0123abcd-000001.jsonl"
    left.write_bytes(b"".join(lines(100)) + b'{"tailcut_log":1,')
    other = tmp_path / "log" / "another-20260101T000000Z-0123abcd-000001.jsonl"
    other.write_bytes(b"")
    log = opened(tmp_path, format="parquet")
    log.start()
    log.close()
    assert {path.name for path in (tmp_path / "log").iterdir()} == {other.name, left.with_suffix(".parquet").name}
    assert [each.offset_ns for each in read_log(tmp_path / "log")] == list(range(100))


def test_records_are_written_while_a_file_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailcut.observe.request_log import parquet

    left = tmp_path / "log" / "m-20260101T000000Z-0123abcd-000001.jsonl"
    left.parent.mkdir()
    left.write_bytes(b"".join(lines(1)))
    converting, may_end = [], threading.Event()
    real = parquet.convert

    def slow(path: Path, pause: Callable[[float], object]) -> Path:
        converting.append(path)
        may_end.wait(30)
        return real(path, pause)

    monkeypatch.setattr(parquet, "convert", slow)
    log = opened(tmp_path, format="parquet")
    log.start()
    try:
        block_until(lambda: converting == [left])
        for number in range(1, 4):
            log.on_requests("m", [Request(tensors(), START_NS + number)])  # type: ignore[list-item]
            block_until(lambda: log.written == number)  # noqa: B023 - it is called at once
        assert converting == [left]
    finally:
        may_end.set()
        log.close()
    assert {path.suffix for path in left.parent.iterdir()} == {".parquet"}
    assert len(read_log(left.parent)) == 4


def test_the_end_waits_for_no_large_file_which_the_next_start_converts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tailcut.observe.request_log import parquet

    folder = tmp_path / "log"
    folder.mkdir()
    large = [folder / f"m-20260101T000000Z-0123abcd-00000{number}.jsonl" for number in range(2)]
    for path in large:
        path.write_bytes(b"".join(lines(200)))
    begun = threading.Event()
    real = parquet.convert

    def endless(path: Path, pause: Callable[[float], object]) -> Path:
        def never_ends(seconds: float) -> None:
            begun.set()
            while True:
                pause(seconds)

        return real(path, never_ends if path in large else pause)

    monkeypatch.setattr(parquet, "convert", endless)
    monkeypatch.setattr(sink_module, "_SMALL_BYTES", 20_000)
    log = opened(tmp_path, format="parquet")
    log.start()
    log.on_requests("m", [Request(tensors(), START_NS)])  # type: ignore[list-item]
    assert begun.wait(30)
    log.close()
    assert [path.suffix for path in sorted(folder.iterdir())] == [".jsonl", ".jsonl", ".parquet"], "no part is left"
    assert len(read_log(folder)) == 401
    monkeypatch.setattr(parquet, "convert", real)
    log = opened(tmp_path, format="parquet")
    log.start()
    try:
        block_until(lambda: {path.suffix for path in folder.iterdir()} == {".parquet"})
        size_bytes = sum(path.stat().st_size for path in folder.iterdir())
        block_until(lambda: log._files.size_bytes == size_bytes)
    finally:
        log.close()
    assert len(read_log(folder)) == 401


def test_what_the_thread_cannot_take_is_dropped_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sink_module, "_MOST_WAITING", 3)
    log = opened(tmp_path)
    log.on_requests("m", [Request(tensors()) for _ in range(5)])  # type: ignore[misc]
    assert log.dropped["queue"] == 2
    log.start()
    log.close()
    assert log.written == 3


def test_a_value_that_cannot_be_written_costs_one_record(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    odd = Capture(1.0)
    odd.take_values("rows", [{"a": object()}])
    log = opened(tmp_path)
    log.start()
    log.on_requests("m", [Request(odd), Request(odd), Request(tensors())])  # type: ignore[list-item]
    log.close()
    assert (log.written, log.dropped["record"]) == (1, 2)
    assert len([each for each in caplog.records if "cannot be written" in each.message]) == 1


def test_a_misspelt_field_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    opened(tmp_path, drop=("aeg", "income"))
    assert "aeg" in caplog.text
    assert "income" not in caplog.text


# -- Reading -----------------------------------------------------------------------------------------------------------


def test_a_torn_end_is_left_out_and_said(tmp_path: Path) -> None:
    for packed in (False, True):
        name = f"m-20260101T000000Z-0123abcd-00000{int(packed)}.jsonl{'.gz' * packed}"
        raw = b"".join(gzip.compress(each) if packed else each for each in lines(3))
        (tmp_path / name).write_bytes(raw[:-5])
    told: list[str] = []
    assert [each.offset_ns for each in read_log(tmp_path, told.append)] == [0, 0, 1, 1]
    assert len(told) == 2
    assert all("torn" in each for each in told)


def test_a_file_is_read_while_it_is_converted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tailcut.observe.request_log import parquet, reader

    file = tmp_path / "m-20260101T000000Z-0123abcd-000001.jsonl"
    file.write_bytes(b"".join(lines(3)) + b'{"tailcut')
    listed = reader._files

    def then_converted(path: Path) -> list[Path]:
        found = listed(path)
        parquet.convert(file, pause=lambda _: None)
        return found

    monkeypatch.setattr(reader, "_files", then_converted)
    assert [each.offset_ns for each in read_log(tmp_path)] == [0, 1, 2]
    assert not file.exists()


@pytest.mark.parametrize("content", [b'{"tailcut_log":1}\n', b'{"tailcut_log":', b""])
def test_what_is_no_log_is_refused(content: bytes, tmp_path: Path) -> None:
    file = tmp_path / "log.jsonl"
    file.write_bytes(content)
    with pytest.raises(LoadTestError):
        read_log(file, lambda _: None)


def test_a_key_is_asked_for_and_sizes_fit(tmp_path: Path) -> None:
    from tailcut.errors import ManifestError

    (tmp_path / "tailcut.toml").write_text(
        'name = "m"\n[model]\nsource = "m.onnx"\ninputs = [{ name = "x" }]\noutputs = [{ name = "y" }]\n'
    )
    for setting, said in (
        ('request_log.hash=["x"]', "hash_key is empty"),
        ("request_log.keep=1MiB", "less than two files"),
        ("request_log.share=0", "share is 0"),
    ):
        with pytest.raises(ManifestError, match=said):
            load(tmp_path, environment={}, overrides=[setting])
