"""The child process of a build: ``python -m tailcut.build.worker SPEC OUTCOME`` does one step.

What the user's code and the libraries print goes to the child's log; the outcome goes through a file of its own.
"""

from __future__ import annotations

import ctypes
import signal
import sys
import traceback
from pathlib import Path

import msgspec

from tailcut.build.records import Outcome, Spec
from tailcut.errors import TailcutError

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Do the step; the exit code is 0 where an outcome was written, good or bad."""
    _end_with_the_builder()
    spec_file, outcome_file = Path(arguments[0]), Path(arguments[1])
    spec = msgspec.json.decode(spec_file.read_bytes(), type=Spec)
    outcome_file.write_bytes(msgspec.json.encode(do(spec)))
    return 0


def _end_with_the_builder() -> None:
    """Ask Linux to kill this process when the builder is killed, which can then do nothing itself (man 2 prctl)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def do(spec: Spec) -> Outcome:
    """Run one step; any exception becomes an error for the user, with the line that raised it."""
    from tailcut.build.steps import STEPS

    try:
        return Outcome(found=STEPS[spec.step](spec))
    except TailcutError as error:
        return Outcome(error=error.message, hint=error.hint)
    except ModuleNotFoundError as error:
        return Outcome(
            error=f"{spec.title} needs the package {error.name!r}, which is not installed",
            hint="pip install 'tailcut[build]'",
        )
    except Exception as error:
        traceback.print_exc()
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Outcome(
            error=f"{spec.title} raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})",
            hint="mend that line, or leave the recipe out with --recipes",
        )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
