"""From what a client, an application and a sampler saw to one recording."""

from __future__ import annotations

import os
import queue
import re
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tailcut.errors import ProfileError
from tailcut.load import Samples
from tailcut.load.payloads import build_requests
from tailcut.load.plan import LoadPlan, parse_url
from tailcut.profiler import child_channel
from tailcut.profiler.child_channel import ChildEvent, Route
from tailcut.profiler.diagnosis import check_target, choose_path, explain_answers, explain_failure, explain_silence
from tailcut.profiler.pilot import match_requests, raised
from tailcut.profiler.recording.places import PROFILE, Places, users_lines
from tailcut.profiler.records import (
    RecordedRequest,
    RecordedSpan,
    Recording,
    Stage,
    load_recording,
    save_recording,
)
from tailcut.profiler.stack_sampler import Frame, make_sample, parse_frame, samples_of

OWN = "/x/src/tailcut/profiler"
ENTRY = ("_Handed.__call__", f"{OWN}/hooks/threads.py", 47)


def sent(*rows: tuple[int, int, int, int]) -> Samples:
    intended, out, done, status = (np.array(column, dtype=np.int64) for column in zip(*rows, strict=True))
    return Samples(
        intended_ns=intended, sent_ns=out, done_ns=done, status=status.astype(np.int16),
        cache=np.zeros(len(rows), np.int8), cache_names=("",), stages_ms={}, measured_from_ns=100,
    )  # fmt: skip


def test_both_sides_of_a_request_are_put_together_by_its_number() -> None:
    samples = sent((50, 51, 60, 200), (100, 101, 150, 200), (110, 112, 190, -3), (900, -1, -1, 0))
    span = RecordedSpan(stage=Stage.SQL, label="SELECT 1", start_ns=1120, end_ns=1130)
    heard = [
        RecordedRequest(number=number, intended_ns=-1, sent_ns=-1, done_ns=-1, entered_ns=1000 + number, spans=(span,))
        for number in (0, 1)
    ]
    one, other = match_requests(samples, 1000, heard)
    # The warm-up's and the one that was never due are left out.
    assert (one.number, one.intended_ns, one.sent_ns, one.done_ns, one.status) == (1, 1100, 1101, 1150, 200)
    assert (one.entered_ns, one.spans) == (1001, (span,))
    assert (other.number, other.status, other.entered_ns, other.spans) == (2, -3, -1, ())


def test_each_request_of_a_numbered_load_carries_its_number(tmp_path: Path) -> None:
    (tmp_path / "bodies.jsonl").write_text('{"n": 1}\n{"n": 2}\n')
    plan = LoadPlan(
        url="http://host/predict", payloads=str(tmp_path / "bodies.jsonl"), numbered="x-tailcut-profile",
        headers=(("x-key", "1"),),
    )  # fmt: skip
    made = build_requests(plan, parse_url(plan.url), 3)
    assert [one.split(b"\r\n")[1] for one in made] == [b"x-tailcut-profile: %d" % number for number in range(3)]
    assert all(one.startswith(b"POST /predict HTTP/1.1\r\n") for one in made)
    assert [one.partition(b"\r\n\r\n")[2] for one in made] == [b'{"n": 1}', b'{"n": 2}', b'{"n": 1}']


def test_a_stack_is_known_by_the_function_of_a_code_span(tmp_path: Path) -> None:
    places = Places(str(tmp_path))
    app = str(tmp_path / "app.py")
    known = {("predict", "app.py:10"), ("predict", "app.py:90")}
    server = ("run", "/y/site-packages/uvicorn/main.py", 5)
    frames = [server, ENTRY, ("predict", app, 14), ("burn", app, 3)]
    sample = make_sample(frames, 20, known, places)
    assert sample.stack == ("predict (app.py:14)", "burn (app.py:3)")
    assert (sample.place, sample.code, sample.weight_ns) == ("burn (app.py:3)", ("predict", "app.py:10"), 20)
    library = [*frames, ("dumps", "/usr/lib/python3.11/site-packages/orjson/x.py", 1)]
    assert make_sample(library, 20, known, places).place == "burn (app.py:3)"


def test_a_stack_in_a_dependency_is_known_by_its_call(tmp_path: Path) -> None:
    """What it does in a thread has a span of its own, named as it is."""
    places = Places(str(tmp_path))
    frames = [ENTRY, ("authorise", str(tmp_path / "app.py"), 14)]
    call, inside = ("dependency authorise", "app.py:10"), ("authorise", "app.py:10")
    assert make_sample(frames, 1, {call}, places).code == call
    assert make_sample(frames, 1, {call, inside}, places).code == inside


def test_a_function_that_no_span_knows_is_in_the_frameworks_time(tmp_path: Path) -> None:
    """Not below a hook of another kind, and not one that only calls the framework again."""
    places = Places(str(tmp_path))
    mine = ("Mine.simple_response", str(tmp_path / "app.py"), 14)
    library = ("__call__", "/y/site-packages/starlette/middleware/cors.py", 5)
    layer, hook = ("traced", f"{OWN}/hooks/layering.py", 9), ("init", f"{OWN}/hooks/starlette.py", 9)
    entry = ("Profiled._traced", f"{OWN}/recording/middleware.py", 45)

    def told(*frames: Frame) -> tuple[tuple[str, str], str]:
        sample = make_sample([entry, *frames], 1, {("dispatch", "app.py:10")}, places, "fastapi")
        return sample.code, sample.place

    framework = ("fastapi", "")
    assert told(library, mine) == (framework, "Mine.simple_response (app.py:14)")
    assert told(library) == (framework, "")
    assert told(layer, ("dispatch", str(tmp_path / "app.py"), 14), layer, library) == (framework, "")
    assert told(layer, ("dispatch", str(tmp_path / "app.py"), 14))[0] == ("dispatch", "app.py:10")
    assert told(library, hook, mine)[0] == ("", "")
    assert make_sample([entry, library, mine], 1, set(), places).code == ("", "")


@pytest.mark.parametrize(
    ("stage", "code"),
    [(Stage.UNATTRIBUTED, ("litestar", "")), (Stage.FRAMEWORK, ("litestar", "")), (Stage.CODE, ("", ""))],
)
def test_stacks_in_a_framework_are_its_times_whether_it_has_a_hook_or_not(
    tmp_path: Path, stage: Stage, code: tuple[str, str]
) -> None:
    root = RecordedSpan(stage=stage, label="litestar", start_ns=0, end_ns=9)
    request = RecordedRequest(number=0, intended_ns=0, sent_ns=0, done_ns=9, spans=(root,))
    app, entry = tmp_path / "app.py", f"Profiled._traced ({OWN}/recording/middleware.py:60)"
    stacks = f"run (/y/server.py:1);{entry};predict ({app}:4) 7\nrun (/y/server.py:1) 5\n"
    (seen,) = samples_of(stacks, 10_000_000, [request], Places(str(tmp_path)))
    assert (seen.code, seen.place, seen.weight_ns) == (code, "predict (app.py:4)", 70_000_000)


def test_time_below_a_hook_is_the_hooks(tmp_path: Path) -> None:
    places = Places(str(tmp_path))
    app = str(tmp_path / "app.py")
    hook = ("traced", f"{OWN}/hooks/wrapping.py", 60)
    frames = [ENTRY, ("predict", app, 14), hook, ("execute", "/y/site-packages/psycopg/cursor.py", 99)]
    assert make_sample(frames, 1, {("predict", "app.py:10")}, places).code == ("", "")


def test_frames_are_read_as_py_spy_writes_them() -> None:
    assert parse_frame("Server.run (/a b/uvicorn/server.py:86)") == ("Server.run", "/a b/uvicorn/server.py", 86)
    assert parse_frame("<lambda> (app.py:6)") == ("<lambda>", "app.py", 6)
    assert parse_frame("process 12") is None


@pytest.mark.parametrize("target", ["app:app", "pkg.app:create()", "app:container.app"])
def test_targets_are_module_and_attribute(target: str) -> None:
    check_target(target)


@pytest.mark.parametrize(
    "target",
    ["app", "app.py", "./pkg/app.py:api", "a:b c"],
)
def test_other_targets_are_refused_with_what_was_meant(target: str) -> None:
    with pytest.raises(ProfileError) as caught:
        check_target(target)
    assert "module:attribute" in caught.value.hint


def test_most_answers_must_be_good_ones() -> None:
    routes = [Route(path="/predict", methods=("POST",)), Route(path="/docs", methods=("GET",))]
    assert explain_answers({200: 5, 500: 5}, {}, (), routes, asked="POST /") is None
    assert explain_answers({204: 1, 307: 1}, {}, (), routes, asked="POST /") is None
    error = explain_answers({200: 1, 405: 3}, {"405": "no"}, (), routes, asked="GET /predict")
    assert error is not None
    assert error.message == "3 of 4 requests (GET /predict) were answered 405: no"
    assert error.hint == "the application serves POST /predict; choose one, such as --path /predict --method POST"
    body = '{"detail":[{"type":"missing","loc":["header","x-user"]}]}'
    missing = explain_answers({422: 3}, {"422": body}, (), routes, asked="POST /predict")
    assert missing is not None
    assert body in missing.message
    for flag in ("--header 'NAME", "--path '/predict?", "--payloads is one body"):
        assert flag in str(missing.hint)
    silent = explain_answers({-3: 3}, {}, (), routes, asked="GET /predict", log="Killed")
    assert silent is not None
    assert "got no answer" in silent.message
    assert "Killed" in silent.hint


def user(mail: str) -> None:
    try:
        {}[mail]
    except KeyError as error:
        raise LookupError(f"no user {mail}\nBob: {mail}") from error


def test_a_note_names_an_exception_and_not_what_it_says() -> None:
    """Its text holds what was asked about."""
    with pytest.raises(LookupError) as caught:
        user("alice@example.com")
    trace = "".join(traceback.format_exception(caught.value)).rstrip()
    assert "alice@example.com" in trace
    assert re.fullmatch(r"LookupError in user \(test_recording.py:\d+\)", raised(trace))


def test_an_error_that_names_a_file_of_the_profile_or_the_import_system_keeps_its_text() -> None:
    with pytest.raises(ImportError) as caught:
        raise ImportError(f"cannot import name 'x' from 'importlib' (/usr/lib/importlib/__init__.py), not {PROFILE}")
    parts = traceback.format_exception(caught.value)
    frame = f'  File "{PROFILE}hooks/threads.py", line 3, in traced\n    return call()\n'
    assert users_lines([*parts[:-1], frame, parts[-1]], 12) == "".join(parts).rstrip()


def test_the_only_route_that_takes_the_method_is_taken() -> None:
    routes = [
        Route(path="/predict", methods=("POST",)), Route(path="/items/{id}", methods=("GET",)),
        Route(path="/docs", methods=("GET",)), Route(path="/a", methods=("PUT",)), Route(path="/b", methods=("PUT",)),
    ]  # fmt: skip
    assert choose_path(routes, "POST") == "/predict"
    with pytest.raises(ProfileError, match="no route is known to take GET"):
        choose_path(routes, "GET")
    with pytest.raises(ProfileError, match="more than one route takes PUT"):
        choose_path(routes, "PUT")


def test_a_process_that_was_killed_is_said_so() -> None:
    error = explain_failure("app:app", None, -9, "")
    assert error.message == "app:app was killed by SIGKILL before it was ready"
    assert "memory" in error.hint
    said = ChildEvent(kind="failed", phase="start", error="x")
    assert "printed last" in explain_failure("app:app", said, None, "log").hint


def test_a_recording_is_read_as_it_was_written(tmp_path: Path) -> None:
    one = Recording(target="app:app", rate=5.0, duration_s=1.0, requests=())
    file = tmp_path / "recordings" / "one"
    save_recording(one, file)
    assert load_recording(file) == one
    save_recording(msgspec.structs.replace(one, format=99), file)
    with pytest.raises(ProfileError, match="a recording of format 99; this version reads format"):
        load_recording(file)
    (tmp_path / "x").write_bytes(b"no")
    with pytest.raises(ProfileError, match="cannot read a recording from"):
        load_recording(tmp_path / "x")


def test_the_child_imports_no_libraries_that_its_hooks_watch() -> None:
    """What it imports itself would be there before the application asks for it."""
    watched = ["numpy", "torch", "fastapi", "starlette", "httpx", "redis", "asyncpg", "psycopg", "anyio", "onnxruntime"]
    code = (
        "import sys; from tailcut.profiler import hooks; from tailcut.profiler.recording import app_server, blocking;"
        f"print(*[name for name in {watched} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_command_that_fails_is_answered_and_the_next_one_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Over a pipe; where that ends, so does the process."""
    said: queue.Queue[ChildEvent] = queue.Queue()
    ended: queue.Queue[int] = queue.Queue()
    monkeypatch.setattr(child_channel.os, "kill", lambda pid, signal: ended.put(signal))
    monkeypatch.setattr(child_channel.os, "_exit", lambda code: None)
    monkeypatch.setattr(child_channel, "_LAST_WORDS_S", 0.0)
    reading, writing = os.pipe()

    def failing() -> None:
        raise ValueError("no room")

    answer = tmp_path / "answer"
    child_channel.execute_commands({"fail": failing, "count": lambda: 7}, said.put, reading)
    os.write(writing, f"fail {answer}\nnonsense\ncount {answer}\n".encode())
    first, second = said.get(timeout=5.0), said.get(timeout=5.0)
    assert (first.kind, first.phase, first.error) == ("failed", "command", "ValueError: no room")
    assert "in failing" in first.text
    assert (second.kind, msgspec.msgpack.decode(answer.read_bytes())) == ("done", 7)
    os.close(writing)
    assert ended.get(timeout=5.0) == signal.SIGTERM
    for thread in threading.enumerate():
        if thread.name == "tailcut-commands":
            thread.join(5.0)
    os.close(reading)


ROUTES = (
    Route(path="/predict", methods=("POST",)),
    Route(path="/items/{id}", methods=("GET",)),
    Route(path="/docs", methods=("GET",)),
)


@pytest.mark.parametrize(
    ("status", "asked", "flags"),
    [
        (404, "POST /nowhere", "--path /predict"),
        (405, "GET /predict", "--method POST"),
        (404, "GET /nowhere", "GET /items/{id}"),
        (405, "PUT /nowhere", "--path /predict --method POST"),
        (401, "POST /predict", "--header 'Authorization: Bearer TOKEN'"),
        (415, "POST /predict", "--header 'Content-Type: application/json'"),
        (422, "POST /predict", "--payloads"),
        (429, "POST /predict", "--rate"),
        (400, "POST /predict", "--payloads bodies.jsonl"),
    ],
)
def test_a_refused_request_is_told_with_the_flags_for_another(status: int, asked: str, flags: str) -> None:
    error = explain_answers({status: 3}, {}, (), ROUTES, asked=asked)
    assert error is not None
    assert flags in error.hint


def test_the_routes_are_listed_with_the_flags_that_choose_one() -> None:
    with pytest.raises(ProfileError) as several:
        choose_path((*ROUTES, Route(path="/embed", methods=("POST",))), "POST")
    assert several.value.hint.startswith("the application serves POST /predict, GET /items/{id}, POST /embed; choose")
    with pytest.raises(ProfileError) as none:
        choose_path((), "POST")
    assert "--path /predict" in none.value.hint


def test_who_needs_more_time_is_told_the_flag() -> None:
    assert "such as --ready 120s" in explain_silence("app:app", 60.0, "").hint


def test_a_module_that_does_not_import_is_told_with_its_folder_its_environment_and_the_traceback() -> None:
    said = ChildEvent(
        kind="failed", phase="import", error="ModuleNotFoundError: No module named 'app'", text="Traceback"
    )
    error = explain_failure("app:app", said, 3, "")
    assert error.message == "the module app does not import: ModuleNotFoundError: No module named 'app'"
    assert "--app-dir FOLDER" in error.hint
    assert sys.executable in error.hint
    assert error.hint.endswith("Traceback")
