"""Stacks by py-spy, from outside of the process: it needs no lock of the interpreter and stops no thread.

Looking from inside sees too little and does harm. A sampler's thread needs the interpreter's lock, so it sees a thread
that computes in Python only when that gives the lock up; in runs of a few milliseconds that is never (5 of 500 looks,
when it was tried). And in Python 3.11 ``sys._current_frames()`` may hand out a frame that another thread is
about to free (it releases the lock while it clears the frame's variables, a cursor of SQLite's for one): the process
crashes. py-spy reads the process's memory as it is (``--nonblocking``); a stack that changes meanwhile is dropped, and
the process does not wait. It counts stacks, of threads that wait too, and does not say when it saw them.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from tailcut.profiler.recording.places import Places
from tailcut.profiler.records import RecordedRequest, StackSample, Stage
from tailcut.system.child_processes import last_lines

_LONGEST_S = 3600
_STOP_S = 10.0
_LOG_LINES = 100
_ENTRIES = ("__call__", "_traced", "run")
_CALLED_AS = ("", "dependency ", "preprocess ", "postprocess ")
"""What stands before a function's name in the labels of its spans: what a dependency does in a thread has its own."""
_OWN = "/tailcut/profiler/"
_HOOKS = f"{_OWN}hooks/"
_AROUND = "/profiler/recording/middleware.py"
"""Calls the application."""
_BETWEEN = "/profiler/hooks/layering.py"
_FRAME = re.compile(r"(?P<function>.+) \((?P<file>.+):(?P<line>\d+)\)")


Frame = tuple[str, str, int]
"""Function, file, line."""


def sample_stacks(pid: int, rate: float, run: Callable[[], object]) -> tuple[str, str]:
    """Look at the stacks of a process while something runs.

    Args:
        pid: the process.
        rate: looks per second.
        run: while it runs.

    Returns:
        the stacks as py-spy writes them; and why there are none, where it cannot look.
    """
    program = find_py_spy()
    if not program:
        return "", "py-spy is not installed (pip install 'tailcut[profile]')"
    with tempfile.TemporaryDirectory(prefix="tailcut-spy-", ignore_cleanup_errors=True) as folder:
        output, log = Path(folder) / "stacks", Path(folder) / "log"
        options = ["--nonblocking", "--idle", "--full-filenames", "--format", "raw", "--rate", f"{rate:.0f}"]
        options += ["--duration", str(_LONGEST_S), "--output", str(output), "--pid", str(pid)]
        try:
            with log.open("wb") as file:
                process = subprocess.Popen(
                    [program, "record", *options],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
        except OSError as error:
            return "", f"py-spy could not be started ({error.strerror})"
        try:
            run()
        finally:
            process.send_signal(signal.SIGINT)  # it writes what it saw
            try:
                process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if output.exists():
            return output.read_text(encoding="utf-8", errors="replace"), ""
        # Where the interpreter's lock was never held, it writes nothing, and says so.
        lines = last_lines(log, _LOG_LINES)
        if any("No stack counts" in line for line in lines):
            return "", ""
        return "", f"py-spy could not read the process ({lines[-1] if lines else 'no output'})"


def samples_of(
    stacks: str, interval_ns: int, requests: Sequence[RecordedRequest], places: Places
) -> tuple[StackSample, ...]:
    """Make a sample of each stack in code that works on requests.

    Args:
        stacks: as ``sample_stacks`` returns them.
        interval_ns: between two looks.
        requests: whose spans say which functions are known as code.
        places: tells the user's files from those of libraries.
    """
    known = {(span.label, span.place) for one in requests for span in one.spans if span.stage is Stage.CODE}
    roots = (one.spans[0] for one in requests if one.spans)
    framework = next((str(root.label) for root in roots if root.stage is not Stage.CODE), "")
    found = []
    for line in stacks.splitlines():
        text, _, count = line.rpartition(" ")
        frames = [frame for part in text.split(";") if (frame := parse_frame(part)) is not None]
        # A task that a request began is not below what took it in, but some hook may be below the task.
        if count.isdigit() and any(_entry(frame) or _HOOKS in frame[1] for frame in frames):
            found.append(make_sample(frames, int(count) * interval_ns, known, places, framework))
    return tuple(found)


def find_py_spy() -> str:
    """Where py-spy's program is; empty where it is not installed."""
    folders = [os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)]
    return shutil.which("py-spy", path=os.pathsep.join(folders)) or ""


def allow_sampling() -> None:
    """Let a process that is no ancestor read this one, where Linux asks for that (Yama's ptrace_scope 1)."""
    with suppress(OSError, AttributeError, ValueError):
        if Path("/proc/sys/kernel/yama/ptrace_scope").read_text().strip() == "1":
            import ctypes

            # PR_SET_PTRACER, PR_SET_PTRACER_ANY: linux/prctl.h.
            ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)


def parse_frame(text: str) -> Frame | None:
    """Take "function (file:line)" apart; None where it is something else."""
    found = _FRAME.fullmatch(text)
    return (found["function"], found["file"], int(found["line"])) if found is not None else None


def make_sample(
    frames: Sequence[Frame],
    weight_ns: int,
    known: Collection[tuple[str, str]],
    places: Places,
    framework: str = "",
) -> StackSample:
    """Make a sample of a stack, outermost frame first, and name the code span that it lies in.

    A frame of a hook between a function and the innermost frame means that the time is the hook's span's. Where there
    is none but those between the framework and the user's functions, it is the framework's own.

    Args:
        framework: label of the framework's spans; empty where there is none.
    """
    stack: list[str] = []
    place, code = "", ("", "")
    inside, since = False, ""
    for function, file, line in frames:
        if _OWN in file:
            entry = _entry((function, file, line))
            if entry:
                stack.clear()
            code, since = ("", ""), ""
            inside = file.endswith(_AROUND) if entry else inside and file.endswith(_BETWEEN)
            continue
        name = function.replace("<locals>.", "")
        shown = f"{name} ({places.name(file)}:{line})"
        stack.append(shown)
        if places.is_user(file):
            place = since = shown
            code = _code_of(name, places.name(file), line, known) or code
    if framework and inside and code == ("", ""):
        place, code = since, (framework, "")
    return StackSample(stack=tuple(stack), weight_ns=weight_ns, place=place, code=code)


def _code_of(name: str, file: str, line: int, known: Collection[tuple[str, str]]) -> tuple[str, str] | None:
    for called in (f"{before}{name}" for before in _CALLED_AS):
        for label, place in known:
            begins_in, _, first = place.rpartition(":")
            if label == called and begins_in == file and int(first) <= line:
                return label, place
    return None


def _entry(frame: Frame) -> bool:
    return _OWN in frame[1] and frame[0].rpartition(".")[2] in _ENTRIES
