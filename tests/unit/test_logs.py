"""Lines of the log, as text and as JSON: what they hold, and that nothing makes one that cannot be read."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut import logs
from tailcut.transport.log_relay import Outlet, StrayLines

FIELDS = ["time", "level", "logger", "message", "model"]


@contextmanager
def configured(path: Path, form: str) -> Iterator[None]:
    """The log of this process goes to a file; everything is as it was afterwards."""
    root, stderr = logging.getLogger(), os.dup(2)
    before = root.handlers[:], root.level, sys.excepthook, threading.excepthook, sys.unraisablehook
    with path.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        logs.configure(form, "risk")
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)
        logging.captureWarnings(False)
        root.handlers, level, sys.excepthook, threading.excepthook, sys.unraisablehook = before
        root.setLevel(level)


def objects(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_record_is_one_object_with_its_error_in_fields(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with configured(log, "json"):
        try:
            raise ValueError("a\nb")
        except ValueError:
            logging.getLogger("mine").exception("no %s", "luck", extra={"request_id": "r1", "incident": "i1"})
    (found,) = objects(log)
    at = datetime.fromisoformat(found.pop("time"))
    assert at.utcoffset() == timedelta(0)
    assert "Traceback" in found["traceback"]
    assert found.pop("traceback").endswith("ValueError: a\nb")
    assert found == {
        "level": "error",
        "logger": "mine",
        "message": "no luck",
        "model": "risk",
        "request_id": "r1",
        "incident": "i1",
        "error_type": "ValueError",
    }


def test_text_has_time_level_model_logger_and_the_requests_id(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with configured(log, "text"):
        logging.getLogger("mine").warning("slow\r\n and\nlate\n\nhint: wait", extra={"request_id": "r1"})
    line = log.read_text()
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z WARNING risk mine: slow and late; hint: wait \[request r1\]\n", line
    )


def test_a_record_without_an_id_takes_that_of_its_context_and_one_with_none_takes_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with configured(log, "json"):
        named = logs.request_id.set("r2")
        logging.getLogger("hook").info("inside")
        logging.getLogger("tailcut").info("of another request", extra={"request_id": ""})
        logs.request_id.reset(named)
        logging.getLogger("hook").info("outside")
    assert [found.get("request_id") for found in objects(log)] == ["r2", None, None]


def test_what_python_writes_by_itself_is_logged(tmp_path: Path) -> None:
    class Broken:
        def __del__(self) -> None:
            raise RuntimeError("in del")

    def fail() -> None:
        raise RuntimeError("in thread")

    log = tmp_path / "log"
    with configured(log, "json"), warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(False)  # whoever catches warnings puts the function back that it found
        logging.captureWarnings(True)
        warnings.warn("old", DeprecationWarning, stacklevel=1)
        thread = threading.Thread(target=fail, name="t")
        thread.start()
        thread.join()
        Broken()
        sys.excepthook(RuntimeError, RuntimeError("at the end"), None)
    found = objects(log)
    assert [each["logger"] for each in found] == ["py.warnings", "python", "python", "python"]
    assert "DeprecationWarning: old" in found[0]["message"]
    assert [each["message"].rpartition(": ")[2] for each in found[1:]] == ["in thread", "in del", "at the end"]
    assert {each["error_type"] for each in found[1:]} == {"RuntimeError"}


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_record_that_does_not_fit_its_message_stops_nothing(tmp_path: Path, form: str) -> None:
    log = tmp_path / "log"
    with configured(log, form):
        logging.getLogger("mine").warning("%d rows", "three")
        logging.getLogger("mine").warning("next")
    assert "next" in log.read_text()


def test_a_full_disk_stops_no_one(tmp_path: Path) -> None:
    with configured(Path("/dev/full"), "json"):
        logging.getLogger("mine").error("nowhere to go")


@given(st.lists(st.text(), max_size=4), st.dictionaries(st.sampled_from(["request_id", "incident"]), st.text()))
def test_any_message_is_one_line_of_json(words: list[str], extra: dict[str, str]) -> None:
    message = "\n".join(words)
    record = logging.LogRecord("mine", logging.INFO, "", 0, message, (), None)
    vars(record).update(extra)
    data = logs.encoded(logs.formatter("json", "risk").format(record))
    assert data.count(b"\n") == 1
    found = json.loads(data)
    assert list(found)[:5] == FIELDS
    assert found["message"] == message.strip().replace("\n\nhint: ", "; hint: ")
    assert {name: found[name] for name in extra if extra[name]} == {name: text for name, text in extra.items() if text}


def test_a_lone_surrogate_of_a_files_name_is_written(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with configured(log, "json"):
        logging.getLogger("mine").error("cannot read %s", b"\xff.csv".decode("utf-8", "surrogateescape"))
    (found,) = objects(log)
    assert found["message"] == "cannot read \udcff.csv"


# -- Lines of others -------------------------------------------------------------------------------------------------

OURS = {"time": "2026-01-01T00:00:00.000Z", "level": "info", "message": "m"}
LINES = st.one_of(
    st.binary(max_size=30).map(lambda data: data.replace(b"\n", b"")),
    st.text().map(lambda text: json.dumps(OURS | {"message": text}).encode()),
    st.sampled_from([b"{", b'{"a": 1}', b'{"time": 1}', b"[1]", b"Traceback (most recent call last):"]),
)


@given(st.lists(LINES, max_size=8), st.lists(st.integers(0, 400), max_size=8))
def test_whatever_is_written_each_line_is_an_object_and_ours_are_untouched(lines: list[bytes], cuts: list[int]) -> None:
    data = b"\n".join(lines)
    stray = StrayLines(logs.formatter("json", "risk"))
    ends = sorted({0, *(cut for cut in cuts if cut < len(data)), len(data)})
    said = b"".join(stray.feed(data[start:end]) for start, end in pairwise(ends)) + stray.end()
    found = [json.loads(line) for line in said.splitlines()]
    for each in found:
        assert {"time", "level", "message"} <= set(each)
    of_ours = [line for line in lines if line.startswith(b'{"time": "2026')]
    assert [line for line in said.split(b"\n") if line.startswith(b'{"time": "2026-01-01')] == of_ours
    background_calls = [each["message"] for each in found if each.get("logger") == "stderr"]
    others = [line.decode("utf-8", "replace").strip() for line in lines if line not in of_ours]
    assert background_calls == [text for text in others if text]


def test_a_line_without_an_end_takes_bounded_memory() -> None:
    stray = StrayLines(logs.formatter("json", "risk"))
    said = b"".join(stray.feed(b"{" * (1 << 18)) for _ in range(16)) + stray.end()
    assert sum(len(json.loads(line)["message"]) for line in said.splitlines()) == 16 << 18
    assert len(said.splitlines()) > 1


def test_with_json_what_goes_to_a_file_becomes_objects_too(tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        with Outlet("json", "risk") as outlet:
            outlet.start()
            os.write(2, b"a native library says\nno good ")
            os.write(2, b"things")
    finally:
        os.dup2(before, 2)
        os.close(before)
    assert [found["message"] for found in objects(log)] == ["a native library says", "no good things"]
