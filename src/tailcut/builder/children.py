"""Run a step in a process of its own: a crash, a hang or a leak costs that step and nothing else."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from tailcut.builder import workspace
from tailcut.builder.records import Outcome, Spec
from tailcut.builder.speed.memory import session_bytes
from tailcut.errors import BuildError, DoesNotApply, ManifestError, MissingExtra, TailcutError
from tailcut.system import child_processes

_TAIL_LINES = 5
_LOOK_S = 0.25
_ERRORS: dict[str, type[TailcutError]] = {each.code: each for each in (ManifestError, MissingExtra, DoesNotApply)}
"""What is told from other failures, by code."""


def run_step(spec: Spec, *, timeout_s: float, memory_bytes: int | None = None) -> dict[str, Any]:
    """Do one step in a child process and return its findings.

    Args:
        timeout_s: it is killed after this long.
        memory_bytes: it is killed when it and its own children hold more (resident, looked at every ``_LOOK_S``).

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
    what = spec.title
    with log_file.open("wb") as log:
        # A session of its own, so that what the step starts ends with it; -P keeps a queue.py in the working folder
        # from being taken for the standard library's.
        child = subprocess.Popen(
            [sys.executable, "-P", "-m", "tailcut.builder.worker", str(spec_file), str(outcome_file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            over = _watch(child, timeout_s, memory_bytes)
        except BaseException:  # Ctrl-C does not reach the child's own session
            child_processes.stop(child)
            raise
        if over:
            child_processes.stop(child)
            raise BuildError(
                f"{what} {over[0]} and was killed{_tail(log_file)}",
                hint=f"{over[1]}{spec.way_out}",
            )
    code = child.returncode
    if code != 0 or not outcome_file.exists():
        if workspace.free_bytes(folder) < workspace.LEAST_BYTES:
            raise workspace.none_left(what, folder, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        raise BuildError(
            f"{what} crashed ({child_processes.describe_exit(code)}){_tail(log_file)}",
            hint=f"its last output is above; fix the cause{spec.way_out}",
        )
    outcome = msgspec.json.decode(outcome_file.read_bytes(), type=Outcome)
    if outcome.error:
        raise _ERRORS.get(outcome.code, BuildError)(outcome.error, hint=outcome.hint)
    return outcome.found


def _watch(child: subprocess.Popen[bytes], timeout_s: float, memory_bytes: int | None) -> tuple[str, str] | None:
    """Wait for the child; say what it went over, and the way out, or None when it has ended by itself."""
    ends_s = time.monotonic() + timeout_s
    while True:
        left_s = ends_s - time.monotonic()
        if left_s <= 0:
            return f"did not end within {timeout_s:g} s", "allow more with --time-limit"
        with suppress(subprocess.TimeoutExpired):
            child.wait(left_s if memory_bytes is None else min(left_s, _LOOK_S))
            return None
        if memory_bytes is not None and (held := session_bytes(child.pid)) > memory_bytes:
            mib = 1 << 20
            return (
                f"held {held // mib} MiB of memory, the limit is {memory_bytes // mib} MiB",
                "allow more with build.step_memory",
            )


def _tail(log: Path) -> str:
    return "".join(f"\n  | {line}" for line in child_processes.last_lines(log, _TAIL_LINES))
