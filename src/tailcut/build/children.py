"""Run a step in a process of its own: a crash, a hang or a leak costs that step and nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec

from tailcut.build.records import Outcome, Spec
from tailcut.errors import BuildError

_TAIL_LINES = 5


def run_step(spec: Spec, *, timeout_s: float) -> dict[str, Any]:
    """Do one step in a child process and return its findings.

    Raises:
        BuildError: the step refused, crashed (with its last lines of output), or did not end in ``timeout_s``.
    """
    folder = Path(spec.folder)
    name = f"{spec.step}-{spec.target}" if spec.target else spec.step
    spec_file, outcome_file, log_file = (folder / f"{name}.{end}" for end in ("spec.json", "outcome.json", "log"))
    spec_file.write_bytes(msgspec.json.encode(spec))
    what = spec.title
    with log_file.open("wb") as log:
        # A session of its own, so that what the step starts ends with it.
        child = subprocess.Popen(
            [sys.executable, "-m", "tailcut.build.worker", str(spec_file), str(outcome_file)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            _kill(child)
            raise BuildError(
                f"{what} did not end within {timeout_s:g} s and was killed{_tail(log_file)}",
                hint="allow more with --time-limit, or leave the recipe out with --recipes",
            ) from None
        except BaseException:  # Ctrl-C does not reach the child's own session
            _kill(child)
            raise
    if code != 0 or not outcome_file.exists():
        raise BuildError(
            f"{what} crashed ({_how(code)}){_tail(log_file)}",
            hint="its last output is above; mend that, or leave the recipe out with --recipes",
        )
    outcome = msgspec.json.decode(outcome_file.read_bytes(), type=Outcome)
    if outcome.error:
        raise BuildError(outcome.error, hint=outcome.hint)
    return outcome.found


def _kill(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and all that it started; it has not been waited for, so the number is still its own."""
    os.killpg(child.pid, signal.SIGKILL)
    child.wait()


def _how(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {signal.Signals(-code).name}"
    except ValueError:
        return f"signal {-code}"


def _tail(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return "".join(f"\n  | {line}" for line in lines[-_TAIL_LINES:])
