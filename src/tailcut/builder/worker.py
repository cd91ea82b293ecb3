"""The child process of a build: ``python -m tailcut.builder.worker SPEC OUTCOME`` does one step.

What the user's code and the libraries print goes to the child's log; the outcome goes through a file of its own.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import traceback
from pathlib import Path

import msgspec

from tailcut.builder import workspace
from tailcut.builder.calling import said
from tailcut.builder.records import Outcome, Spec
from tailcut.common.extras import install
from tailcut.common.user_frames import innermost, place
from tailcut.errors import InferenceError, MissingExtra, TailcutError
from tailcut.models.runtimes.telemetry import keep_off

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Do the step; the exit code is 0 where an outcome was written, good or bad."""
    _end_with_the_builder()
    keep_off()  # libraries import onnxruntime too
    spec_file, outcome_file = Path(arguments[0]), Path(arguments[1])
    spec = msgspec.json.decode(spec_file.read_bytes(), type=Spec)
    outcome_file.write_bytes(msgspec.json.encode(do(spec)))
    return 0


def _end_with_the_builder() -> None:
    """Ask Linux to kill this process when the builder is killed, which can then do nothing itself (man 2 prctl)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def do(spec: Spec) -> Outcome:
    """Run one step; any exception becomes an error for the user, with the line of theirs that raised it."""
    from tailcut.builder.steps import STEPS

    try:
        return Outcome(found=STEPS[spec.step](spec))
    except InferenceError as error:
        # Its own hint is for who sends requests.
        return Outcome(error=error.explained, hint=f"fix the model or its rows{spec.way_out}")
    except TailcutError as error:
        return Outcome(error=error.explained, hint=error.hint, code=error.code)
    except Exception as error:
        traceback.print_exc()
        return _unforeseen(spec, error)


def _unforeseen(spec: Spec, error: Exception) -> Outcome:
    where = place(error)
    if isinstance(error, ModuleNotFoundError) and not where:
        return Outcome(
            error=f"{spec.title} needs the package {error.name!r}, which is not installed",
            hint=f"{install(error.name or '')}{spec.way_out}",
            code=MissingExtra.code,
        )
    if workspace.is_full(error, Path(spec.folder)):
        refused = workspace.none_left(spec.title, Path(spec.folder), error)
        return Outcome(error=refused.message, hint=refused.hint)
    return Outcome(
        error=f"{spec.title} raised {said(error)} ({where or innermost(error)})",
        hint=f"fix that line{spec.way_out}",
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
