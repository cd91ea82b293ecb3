"""Run each step of a build in a fork of one warm process: a crash, a hang or a leak costs that step alone."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, TypeVar

import msgspec

from tailcut.builder import workspace
from tailcut.builder.records import ForkEnded, Outcome, Report, Spec, StepStarted, Task
from tailcut.builder.speed.memory import session_bytes
from tailcut.errors import BuildError, DoesNotApply, ManifestError, MissingExtra, TailcutError
from tailcut.system import child_processes

T = TypeVar("T")

_TAIL_LINES = 5
_LOOK_S = 0.25
_DEAD_S = 10.0
"""A killed process that waits for a disk may live on for so long."""
_WORKER_LOG = "worker.log"
_ERRORS: dict[str, type[TailcutError]] = {each.code: each for each in (ManifestError, MissingExtra, DoesNotApply)}
"""Errors of a step that keep their class, by code; the others become a BuildError."""


class StepRunner:
    """Runs the steps of one build, one after the other.

    The warm process (``worker.py``) starts with the first step and ends with ``close``. Where it dies, the step that
    ran has failed, and the next step starts another warm process.
    """

    def __init__(self) -> None:
        self._warm: _WarmProcess | None = None
        self._libraries: list[str] | None = []
        """Imported by the last step that ended well; None where the next steps find no library imported."""

    def __enter__(self) -> StepRunner:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End the warm process, and a step that runs."""
        if self._warm is not None:
            self._warm.kill()
            self._warm = None

    def run(self, spec: Spec, found: type[T], *, timeout_s: float, memory_bytes: int | None = None) -> T:
        """Do one step in a child process and return its findings.

        Args:
            found: their type.
            timeout_s: it is killed after this long.
            memory_bytes: it is killed when it and its own children hold this much more than what it shared with the
                warm process when it began (resident, looked at every ``_LOOK_S``).

        Raises:
            ManifestError: the manifest names what is not there.
            DoesNotApply: the recipe has nothing to do on this model.
            MissingExtra: a package is not installed.
            BuildError: the step refused, crashed (with its last lines of output), or went over a limit.
        """
        folder = Path(spec.folder)
        name = f"{spec.step}-{spec.target}" if spec.target else spec.step
        spec_file, outcome_file, log_file = (folder / f"{name}.{end}" for end in ("spec.json", "outcome.json", "log"))
        spec_file.write_bytes(msgspec.json.encode(spec))
        task = Task(spec=str(spec_file), outcome=str(outcome_file), log=str(log_file), libraries=self._libraries or [])
        try:
            if self._warm is None:
                self._warm = _WarmProcess(folder / _WORKER_LOG)
            ended = self._warm.run(task, timeout_s, memory_bytes)
        except BaseException:  # Ctrl-C does not reach the step's own session
            self.close()
            raise
        if not self._warm.is_idle:
            self.close()
        what = spec.title
        if isinstance(ended, _OverLimit):
            raise BuildError(f"{what} {ended.what} and was killed{_tail(log_file)}", hint=f"{ended.hint}{spec.way_out}")
        if ended.code != 0 or not outcome_file.exists():
            if workspace.free_bytes(folder) < workspace.LEAST_BYTES:
                raise workspace.none_left(what, folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
            raise BuildError(
                f"{what} crashed ({child_processes.describe_exit(ended.code)}){_tail(log_file)}",
                hint=f"its last output is above; fix the cause{spec.way_out}",
            )
        outcome = msgspec.json.decode(outcome_file.read_bytes(), type=Outcome)
        if self._libraries is not None:
            self._libraries = outcome.libraries
            if outcome.libraries is None:
                self.close()  # it may have imported some
        if outcome.error:
            raise _ERRORS.get(outcome.code, BuildError)(outcome.error, hint=outcome.hint)
        return msgspec.json.decode(outcome.found, type=found)


class _OverLimit(NamedTuple):
    """A limit that a step went over, and the way out."""

    what: str
    hint: str


class _WarmProcess:
    """The process that steps are forks of."""

    def __init__(self, log_file: Path) -> None:
        self.is_idle = True
        """False while a step runs, and from the end of this process on."""
        self._step: StepStarted | None = None
        self._unread = b""
        self._reports, reports = os.pipe()
        with log_file.open("wb") as log:
            # A session of its own: the builder answers Ctrl-C. -P keeps a queue.py in the working folder from being
            # taken for the standard library's.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "tailcut.builder.worker", str(reports)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=[reports],
            )
        os.close(reports)

    def kill(self) -> None:
        """Kill this process and the step that runs."""
        self._kill_step()
        child_processes.stop(self._process)
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        os.close(self._reports)

    def run(self, task: Task, timeout_s: float, memory_bytes: int | None) -> ForkEnded | _OverLimit:
        """Do a task; a step that goes over a limit is killed."""
        self.is_idle = False
        ends_s = time.monotonic() + timeout_s
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it is dead, as the end of its reports shows
            self._process.stdin.write(msgspec.json.encode(task) + b"\n")
            self._process.stdin.flush()
        while (left_s := ends_s - time.monotonic()) > 0:
            report = self._wait_report(left_s if memory_bytes is None else min(left_s, _LOOK_S))
            if isinstance(report, ForkEnded):
                return report
            if memory_bytes is not None and (held := self._held_bytes()) > memory_bytes:
                self._kill_step()
                mib = 1 << 20
                return _OverLimit(
                    f"held {held // mib} MiB of memory, the limit is {memory_bytes // mib} MiB",
                    "allow more with build.step_memory",
                )
        self._kill_step()
        return _OverLimit(f"did not end within {timeout_s:g} s", "allow more with --time-limit")

    def _wait_report(self, timeout_s: float) -> Report | None:
        """Return the next report, None where none comes in time; the end of this process counts as the step's."""
        if b"\n" not in self._unread and select.select([self._reports], [], [], timeout_s)[0]:
            if not (read := os.read(self._reports, 1 << 12)):
                self._kill_step()
                return ForkEnded(code=self._process.wait())
            self._unread += read
        line, newline, rest = self._unread.partition(b"\n")
        if not newline:
            return None
        self._unread = rest
        report: Report = msgspec.json.decode(line, type=Report)
        self._step = report if isinstance(report, StepStarted) else None
        self.is_idle = isinstance(report, ForkEnded)
        return report

    def _held_bytes(self) -> int:
        """Memory of the step above what it began with; 0 before it has begun."""
        return session_bytes(self._step.pid) - self._step.shared_bytes if self._step is not None else 0

    def _kill_step(self) -> None:
        """Kill the step, and wait until it is dead: it may not write while its folder is cleaned up."""
        if self._step is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._step.pid, signal.SIGKILL)
                step = os.pidfd_open(self._step.pid)  # no child of this process, which could wait for it
                select.select([step], [], [], _DEAD_S)
                os.close(step)
            self._step = None


def _tail(log: Path) -> str:
    """Return the last lines of a step's log; where the step wrote nothing, those of the warm process, marked."""
    lines = child_processes.last_lines(log, _TAIL_LINES)
    others = [] if lines else child_processes.last_lines(log.with_name(_WORKER_LOG), _TAIL_LINES)
    return "".join(f"\n  | {line}" for line in [*lines, *(f"(the process that forks steps) {each}" for each in others)])
