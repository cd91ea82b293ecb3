"""The warm process of a build, ``python -m tailcut.builder.worker``: it imports libraries once and forks for each step.

Tasks come through stdin, a JSON line each; reports go to the file descriptor that the first argument names. A fork
reports its ``StepStarted``, does the step, writes the outcome to a file and ends; the warm process reports its exit
code. What the user's code and the libraries print goes to the step's log.

Only libraries are imported here, never user code, and only those that start no threads, which a fork would lack:
OpenBLAS and jemalloc start theirs anew after a fork (pthread_atfork(3)), and OpenMP starts none before the first
parallel loop. openvino's telemetry starts one. None is imported once user code has set environment variables, which it
may do before it imports a library, or has a copy of a library.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import signal
import sys
import traceback
import warnings
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np

from tailcut.builder import steps, workspace
from tailcut.builder.calling import said
from tailcut.builder.records import ForkEnded, Outcome, Spec, StepStarted, Task
from tailcut.builder.speed.memory import session_bytes
from tailcut.common.extras import install
from tailcut.common.user_frames import innermost, place
from tailcut.errors import InferenceError, MissingExtra, TailcutError
from tailcut.models.runtimes.telemetry import keep_off

LIBRARIES = (
    "onnx",
    "onnxruntime",
    "onnxruntime.quantization",
    "torch",
    "onnxscript",
    "scipy.stats",
    "sklearn.ensemble",
    "sklearn.pipeline",
    "pandas",
    "skops.io",
    "skl2onnx",
    "onnxmltools",
    "lightgbm",
    "xgboost",
    "tokenizers",
    "transformers",
    "sentence_transformers",
)
"""Imported before the next fork once a step has imported them."""

_OF_LIBRARIES = {"CUDA_MODULE_LOADING", "KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "TORCHINDUCTOR_CACHE_DIR"}
_OF_LIBRARIES |= {"TOKENIZERS_PARALLELISM"}
"""Environment variables that libraries and tailcut set themselves."""

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Do tasks until stdin ends; a fork returns its exit code: 0 where an outcome was written, good or bad."""
    _end_with_the_parent()
    keep_off()  # libraries import onnxruntime too
    # Without it, asking torch for a CUDA device while libraries are imported would make CUDA unusable in the forks.
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
    reports = int(arguments[0])
    for line in sys.stdin.buffer:
        task = msgspec.json.decode(line, type=Task)
        for name in task.libraries:
            with suppress(Exception):  # the step says what is wrong where it needs it
                importlib.import_module(name)
        gc.freeze()  # so that collections in the fork leave shared pages alone
        parent = os.getpid()
        child = _fork()
        if child == 0:
            _begin(task, reports, parent)
            return _do(task)
        ended = ForkEnded(code=os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        os.write(reports, msgspec.json.encode(ended) + b"\n")
    return 0


def _fork() -> int:
    with warnings.catch_warnings():
        # Python 3.12 and later warn of threads; see the top of this file.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _begin(task: Task, reports: int, parent: int) -> None:
    """Make the fork a process of its own: session, output, random numbers."""
    os.setsid()  # so that what the step starts ends with it
    _end_with_the_parent()
    if os.getppid() != parent:  # killed before the line above
        os._exit(1)
    log = os.open(task.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (log, 1), (log, 2)):
        os.dup2(source, target)
    os.close(nothing)
    os.close(log)
    started = StepStarted(pid=os.getpid(), shared_bytes=session_bytes(os.getpid()))
    os.write(reports, msgspec.json.encode(started) + b"\n")
    os.close(reports)
    if "numpy.random" in sys.modules:  # all forks would draw the same; Python seeds its own generator anew
        np.random.seed()


def _do(task: Task) -> int:
    before = _environment()
    outcome = do(msgspec.json.decode(Path(task.spec).read_bytes(), type=Spec))
    libraries = [name for name in LIBRARIES if name in sys.modules]
    alike = _environment() == before and all(map(_is_installed, libraries))
    outcome = msgspec.structs.replace(outcome, libraries=libraries if alike else None)
    Path(task.outcome).write_bytes(msgspec.json.encode(outcome))
    return 0


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_LIBRARIES}


def _is_installed(name: str) -> bool:
    """Tell whether an imported library is the one that the warm process would import, and no copy of the user's."""
    origin = getattr(sys.modules[name].__spec__, "origin", None) or ""
    return not {"site-packages", "dist-packages"}.isdisjoint(origin.split(os.sep))


def _end_with_the_parent() -> None:
    """Ask Linux to kill this process when its parent is killed, which can then do nothing itself (man 2 prctl)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def do(spec: Spec) -> Outcome:
    """Run one step; any exception becomes an error for the user, with the line of theirs that raised it."""
    try:
        return Outcome(found=msgspec.Raw(msgspec.json.encode(steps.STEPS[spec.step].run(spec))))
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
