"""Applications that cannot be profiled are refused with what is wrong and the way out, and nothing is left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.integration.planting import record_briefly

from tailcut.errors import LoadTestError, ProfileError, TailcutError
from tailcut.profiler import launching, pilot
from tailcut.profiler.pilot import record
from tailcut.profiler.plan import PilotPlan

pytestmark = pytest.mark.integration

BAD = """
import asyncio, itertools, os, time

number = 3
turns = itertools.count()

def wsgi(environ, start_response):
    return []

def make():
    return answers

def make_wrong():
    raise ValueError("no settings")

async def started(receive, send):
    await receive()
    await send({"type": "lifespan.startup.complete"})
    await receive()
    await send({"type": "lifespan.shutdown.complete"})

async def reply(send, status, body):
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})

def answering(status, body, wait_s=0.0, fails=False):
    async def application(scope, receive, send):
        if scope["type"] == "lifespan":
            return await started(receive, send)
        time.sleep(wait_s)
        if fails:
            raise ValueError("the model has no column 'age'")
        await reply(send, status, body)
    return application

answers = answering(200, b"{}")
unroutable = answering(404, b'{"detail":"Not Found"}')
unprocessable = answering(422, b'{"detail":[{"loc":["body","n"]}]}')
raising = answering(500, b"", fails=True)
slow = answering(200, b"{}", wait_s=0.04)

async def flaky(scope, receive, send):
    await (raising if scope["type"] == "http" and next(turns) % 5 == 4 else answers)(scope, receive, send)

async def flaky_late(scope, receive, send):
    # As Starlette does it: the reply is whole when the exception gets to the server, which closes the connection.
    if scope["type"] == "http" and next(turns) % 5 == 4:
        await reply(send, 500, b"{}")
        raise ValueError("the model has no column 'age'")
    await answers(scope, receive, send)

async def broken(scope, receive, send):
    await receive()
    await send({"type": "lifespan.startup.failed", "message": "cannot reach the database"})

async def hanging(scope, receive, send):
    await asyncio.sleep(3600)

async def dying(scope, receive, send):
    os._exit(7)
"""
ONCE = """
import fcntl, subprocess, sys

from bad import flaky as app

lock = open("lock", "w")
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
assert sys.stdin.read() == ""
assert subprocess.run(["cat"], capture_output=True, timeout=5).stdout == b""
"""
LOOPING = """
import asyncio

from bad import answers as app

async def serve():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)
    await server.serve_forever()

asyncio.run(serve())
"""
LOOPED = """
import asyncio, traceback

from bad import started

loop = asyncio.new_event_loop()

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return await started(receive, send)
    await loop.create_task(asyncio.sleep(0))

async def at_start(scope, receive, send):
    await receive()
    try:
        await loop.create_task(asyncio.sleep(0))
    except RuntimeError:
        await send({"type": "lifespan.startup.failed", "message": traceback.format_exc()})

async def within(scope, receive, send):
    if scope["type"] == "lifespan":
        return await started(receive, send)
    asyncio.run(asyncio.sleep(0))
"""
TRIO = """
import trio

from bad import started

async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        return await started(receive, send)
    await trio.sleep(0 if scope["path"] == "/yields" else 0.001)
"""
MODULES = {
    "bad.py": BAD,
    "missing.py": "import there_is_no_such_module\n",
    "leaving.py": "import sys\nsys.exit(2)\n",
    "running.py": "import uvicorn\nuvicorn.run('bad:answers')\n",
    "once.py": ONCE,
    "looping.py": LOOPING,
    "looped.py": LOOPED,
    "queue.py": "raise RuntimeError('this is no module of the standard library')\n",
}
BODIES = '{"n": 1}\n'


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad")
    for name, text in MODULES.items():
        (folder / name).write_text(text)
    (folder / "bodies.jsonl").write_text(BODIES)
    (folder / "garbled.jsonl").write_text('{"n": 1}\n{"n": \n')
    return folder


def plan(folder: Path, target: str, **changed: Any) -> PilotPlan:
    settings: dict[str, Any] = {
        "payloads": str(folder / "bodies.jsonl"), "path": "/predict", "rate": 20.0, "duration_s": 0.5, "warmup_s": 0.0,
        "directory": str(folder), "ready_s": 20.0,
    }  # fmt: skip
    return PilotPlan(target=target, **{**settings, **changed})


def refused(folder: Path, target: str, says: str, way_out: str) -> None:
    with pytest.raises(ProfileError) as caught:
        record(plan(folder, target))
    assert says in caught.value.message
    assert way_out in caught.value.hint
    assert not left_running(folder)


@pytest.mark.parametrize(
    ("target", "says", "way_out"),
    [
        ("missing:app", "the module missing does not import: ModuleNotFoundError", "there_is_no_such_module"),
        ("nowhere:app", "No module named 'nowhere'", "run it in the folder that holds the module"),
        ("leaving:app", "the module leaving does not import: SystemExit: 2", "sys.exit(2)"),
        ("bad:app", "the module bad has no 'app'", "name the variable"),
        ("bad:number", "not an ASGI application: a int, which cannot be called", "give a FastAPI, Starlette"),
        ("bad:wsgi", "not an ASGI application: a WSGI application", "a2wsgi"),
        ("bad:make", "not an ASGI application: a function that makes an application", "module:function()"),
        ("bad:make_wrong()", "bad:make_wrong() raised ValueError: no settings", "called without arguments"),
        ("running:app", "running starts a server of its own when it is imported", 'if __name__ == "__main__"'),
        ("bad:broken", "bad:broken failed at start-up", "cannot reach the database"),
        (
            "looped:at_start",
            "looped:at_start failed at start-up",
            "attached to a different loop",
        ),
        ("bad:dying", "bad:dying ended with exit code 7 before it was ready", "printed last"),
    ],
)
def test_what_cannot_start_is_refused(folder: Path, target: str, says: str, way_out: str) -> None:
    refused(folder, target, says, way_out)


def test_what_never_gets_ready_is_given_up_and_shown(folder: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        record(plan(folder, "bad:hanging", ready_s=1.5))
    assert caught.value.message == "bad:hanging was not ready after 1.5 s"
    assert "such as --ready 3s" in caught.value.hint
    assert f'File "{folder}/bad.py", line {BAD.splitlines().index("    await asyncio.sleep(3600)") + 1} in hanging' in (
        caught.value.hint
    ), "where its tasks await, which is in no frame of its thread"
    assert not left_running(folder)


def test_an_import_that_runs_a_loop_of_its_own_is_shown(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launching, "_QUIET_S", 1.0)
    line = LOOPING.splitlines().index("asyncio.run(serve())") + 1
    said: list[str] = []
    with pytest.raises(ProfileError) as caught:
        record(plan(folder, "looping:app", ready_s=3.0), on_step=said.append)
    assert said == ["starting looping:app", "looping:app is not ready after 1 s; waiting for it, 3 s at most"]
    assert caught.value.message == "looping:app was not ready after 3 s"
    assert f'File "{folder}/looping.py", line {line} in <module>' in caught.value.hint
    assert 'below `if __name__ == "__main__":`' in caught.value.hint
    assert not left_running(folder)


@pytest.mark.parametrize("path", ["/yields", "/sleeps"])
def test_an_application_for_trio_is_to_be_profiled_from_outside(folder: Path, tmp_path: Path, path: str) -> None:
    """In a folder of its own: trio needs the standard library's queue."""
    (tmp_path / "bad.py").write_text(BAD)
    (tmp_path / "trionic.py").write_text(TRIO)
    with pytest.raises(ProfileError, match="were answered 500") as caught:
        record(plan(folder, "trionic:app", path=path, directory=str(tmp_path)))
    assert "profile it from outside (tailcut profile http://" in caught.value.hint
    assert not left_running(tmp_path)


@pytest.mark.parametrize(
    ("target", "says", "way_out"),
    [
        ("bad:unroutable", "(POST /predict) were answered 404", "--path /predict"),
        ("bad:unprocessable", "(POST /predict) were answered 422", "each line of --payloads is one body"),
        ("bad:raising", "were answered 500", "ValueError: the model has no column 'age'"),
        ("looped:app", "were answered 500", "attached to a different loop"),
        ("looped:within", "were answered 500", "cannot be called from a running event loop"),
    ],
)
def test_what_does_not_answer_is_refused(folder: Path, target: str, says: str, way_out: str) -> None:
    refused(folder, target, says, way_out)


def test_what_fails_now_and_then_is_profiled_and_said(folder: Path) -> None:
    """One exception in five answers is no queue; and what it holds, no other process may have beside it."""
    found = record_briefly(plan(folder, "once:app", rate=40.0, duration_s=1.0, sample_s=0.2, layers=False))
    failed = [one for one in found.requests if one.status == 500]
    assert 0.15 < len(failed) / len(found.requests) < 0.25
    assert any(note.startswith("not every request was answered 2xx") for note in found.notes)
    assert any(note.startswith("the application raised: ValueError in application (bad.py:") for note in found.notes)
    assert not left_running(folder)


def test_a_server_that_ends_connections_after_exceptions_loses_no_request(folder: Path) -> None:
    asked = plan(folder, "bad:flaky_late", rate=100.0, duration_s=1.0, sample_s=0.2, layers=False)
    found = record_briefly(asked)
    statuses = [one.status for one in found.requests]
    assert set(statuses) == {200, 500}
    assert 0.15 < statuses.count(500) / len(statuses) < 0.25
    assert not left_running(folder)


def test_a_rate_that_is_too_much_is_said_with_the_one_that_is_not(folder: Path) -> None:
    with pytest.raises(ProfileError) as caught:
        record(plan(folder, "bad:slow", rate=40.0, timeout_s=1.0))
    assert "bad:slow cannot sustain" in caught.value.message
    bears = float(caught.value.message.rpartition("it answered ")[2].partition("/s")[0])
    assert 4.0 <= bears <= 26.0  # 25 a second is what 40 ms each allow
    assert "profile it at a rate that it sustains, such as --rate" in caught.value.hint
    assert not left_running(folder)


@pytest.mark.parametrize(
    ("changed", "error", "says"),
    [
        ({"payloads": "garbled.jsonl"}, LoadTestError, "is not JSON"),
        ({"payloads": "absent.jsonl"}, LoadTestError, "cannot read the payloads"),
        ({"rate": 0.0}, ProfileError, "the rate is 0"),
        ({"target": "bad.py:app"}, ProfileError, "does not name an application"),
        ({"target": "bad"}, ProfileError, "does not name an application"),
        ({"directory": "absent"}, ProfileError, "there is no folder"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_starts(
    folder: Path, changed: dict[str, Any], error: type[TailcutError], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    target = changed.pop("target", "bad:answers")
    with pytest.raises(error, match=says):
        record(plan(folder, target, **changed))


def test_an_interrupt_stops_the_application(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in the middle of the load."""

    def interrupted(*_: object, **__: object) -> None:
        assert left_running(folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(pilot, "measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        record(plan(folder, "bad:answers"))
    assert not left_running(folder)
    assert not [one for one in threading.enumerate() if "tailcut" in one.name]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, -signal.SIGTERM)])
def test_the_command_ends_with_its_application(folder: Path, number: signal.Signals, code: int) -> None:
    """As people and supervisors stop it, in the middle of a long load."""
    flags = ("--payloads", "bodies.jsonl", "--path", "/predict", "--rate", "60", "--duration", "60s")
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "tailcut", "profile", "bad:answers", *flags],
        cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, start_new_session=True,
        # Who runs this in the background has it ignored.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as command:  # fmt: skip
        stopped = threading.Timer(40.0, os.killpg, (command.pid, signal.SIGKILL))
        stopped.start()
        try:
            assert command.stderr is not None
            said = next(line for line in command.stderr if line.startswith("recording"))
            assert len(left_running(folder)) >= 2, said
            command.send_signal(number)
            errors = command.stderr.read()
            assert command.wait() == code, errors
        finally:
            stopped.cancel()
            with suppress(ProcessLookupError):
                os.killpg(command.pid, signal.SIGKILL)
    assert "Traceback" not in errors
    assert not left_running(folder)


def left_running(folder: Path) -> list[str]:
    """Command lines of processes that work in the folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if (entry / "cwd").readlink() == folder and (entry / "cmdline").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found
