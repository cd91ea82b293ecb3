"""The application in a child process: started, commanded, and stopped whatever happens."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from tailcut.errors import MissingExtra, ProfileError
from tailcut.profiler.child_channel import ChildEvent, Options, RecordedRun
from tailcut.profiler.diagnosis import explain_failure, explain_silence
from tailcut.profiler.recording.captured import FoundLayers
from tailcut.profiler.recording.model_inputs import ModelCall
from tailcut.system import child_processes

_CHILD = "tailcut.profiler.recording.child"
_QUIET_S = 5.0
"""After so long the user reads that the application is not ready yet."""
_STOP_S = 5.0
_ANSWER_S = 60.0
_DUMP_S = 0.5
_LOG_LINES = 25
_STACK_LINES = 100
T = TypeVar("T")


class PilotProcess:
    """One child process with the application. Use as a context manager.

    Args:
        options: settings of the child; ``report`` is filled in here.
        directory: its working folder, from which the application is imported.
        environment: added to this process's own.

    Raises:
        MissingExtra: uvicorn is not installed.
        ProfileError: there is no such folder.
    """

    def __init__(self, options: Options, *, directory: Path, environment: Mapping[str, str] | None = None) -> None:
        if find_spec("uvicorn") is None:
            raise MissingExtra("uvicorn is not installed", hint="pip install 'tailcut[profile]'")
        if not directory.is_dir():
            raise ProfileError(f"there is no folder {directory}", hint="give the application's folder with --app-dir")
        self.target = options.target
        self.port = 0
        self._folder = Path(tempfile.mkdtemp(prefix="tailcut-profile-"))
        self._lines = b""
        reading, writing = os.pipe()
        self._report = reading
        options = msgspec.structs.replace(options, report=writing)
        try:
            with (self._folder / "log").open("wb") as log:
                self._process = subprocess.Popen(
                    [
                        sys.executable,
                        "-P",
                        "-m",
                        _CHILD,
                        msgspec.json.encode(options).decode(),
                    ],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=[writing],
                    cwd=directory,
                    env={**os.environ, **(environment or {})},
                    start_new_session=True,
                )
        except BaseException:
            os.close(reading)
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        finally:
            os.close(writing)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> PilotProcess:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def wait_ready(self, timeout_s: float, say: Callable[[str], object] = lambda _: None) -> ChildEvent:
        """Wait until the application answers.

        Args:
            timeout_s: for so long.
            say: called with a message when it takes long.

        Raises:
            ProfileError: it cannot be served, died, or took too long; with what it said.
        """
        first_s, began_s = min(timeout_s, _QUIET_S), time.monotonic()
        said = self._hear(first_s)
        # A pipe that closed sooner will bring nothing more.
        if said is None and timeout_s > first_s and time.monotonic() - began_s >= first_s:
            say(f"{self.target} is not ready after {first_s:g} s; waiting for it, {timeout_s:g} s at most")
            said = self._hear(timeout_s - first_s)
        if said is None and self._exit_code() is None:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(_DUMP_S)
            # What did not start has nothing to finish.
            self._process.kill()
            raise explain_silence(self.target, timeout_s, self.log(_STACK_LINES))
        if said is None or said.kind != "ready":
            raise explain_failure(self.target, said, self._exit_code(), self.log())
        self.port = said.port
        return said

    def begin(self) -> None:
        """Forget what was recorded so far.

        Raises:
            ProfileError: it has ended, or does not answer.
        """
        self._fetch("begin", type(None))

    def recorded(self) -> RecordedRun:
        """Fetch what was recorded since the beginning.

        Raises:
            ProfileError: it has ended, or does not answer.
        """
        return self._fetch("recorded", RecordedRun)

    def layers(self) -> FoundLayers:
        """Let it time the layers of its own models; takes some seconds, in which no request may be sent.

        Raises:
            ProfileError: it has ended, or does not answer.
        """
        return self._fetch("layers", FoundLayers)

    def inputs(self) -> tuple[ModelCall, ...]:
        """Fetch what it handed to its models since the last time, where it is not profiled.

        Raises:
            ProfileError: it has ended, or does not answer.
        """
        return self._fetch("inputs", tuple[ModelCall, ...])

    def stop(self) -> None:
        """Ask it to stop, then kill it and whatever it started."""
        child_processes.stop(self._process, _STOP_S)
        if self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()
        if self._report >= 0:
            os.close(self._report)
            self._report = -1
        shutil.rmtree(self._folder, ignore_errors=True)

    def log(self, lines: int = _LOG_LINES) -> str:
        """The end of what it printed."""
        return "\n".join(child_processes.last_lines(self._folder / "log", lines))

    def _fetch(self, command: str, kind: type[T]) -> T:
        stdin, answer = self._process.stdin, self._folder / "answer"
        assert stdin is not None
        said = None
        with suppress(OSError):
            stdin.write(f"{command} {answer}\n".encode())
            stdin.flush()
            said = self._hear(_ANSWER_S)
        if said is not None and said.kind == "failed":
            what = said.error.partition(":")[0]
            raise ProfileError(f"the process of {self.target} failed to answer ({what})", hint=said.text)
        if said is None:
            code = self._exit_code()
            what = f"ended with exit code {code}" if code is not None else f"did not answer within {_ANSWER_S:g} s"
            raise ProfileError(
                f"the process of {self.target} {what} while it was profiled",
                hint=f"it printed last:\n{self.log() or '(nothing)'}",
            )
        return msgspec.msgpack.decode(answer.read_bytes(), type=kind)

    def _exit_code(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(1.0)
        return None

    def _hear(self, timeout_s: float) -> ChildEvent | None:
        """The next line of the report; None where there is none in time, or the process has ended."""
        end_s = time.monotonic() + timeout_s
        while b"\n" not in self._lines:
            left_s = end_s - time.monotonic()
            if left_s <= 0 or not select.select([self._report], [], [], left_s)[0]:
                return None
            data = os.read(self._report, 65536)
            if not data:
                return None
            self._lines += data
        line, _, self._lines = self._lines.partition(b"\n")
        return msgspec.json.decode(line, type=ChildEvent)
