"""Child processes that lead a session of their own: how they are stopped, and what they said last."""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path


def stop(process: subprocess.Popen[bytes], patience_s: float = 0.0) -> None:
    """Stop a process, and kill whatever is left of its session; returns once it has ended.

    Args:
        process: started with ``start_new_session``.
        patience_s: longest wait after SIGTERM; 0 for SIGKILL at once.
    """
    if process.returncode is None and patience_s > 0:
        process.terminate()
        with suppress(subprocess.TimeoutExpired):
            process.wait(patience_s)
    with suppress(ProcessLookupError, PermissionError):  # nothing is left of it
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_lines(log: Path, count: int) -> list[str]:
    """Return the last lines of a log that are not empty; none where it cannot be read."""
    with suppress(OSError):
        text = log.read_text(encoding="utf-8", errors="replace")
        return [line for line in text.splitlines() if line.strip()][-count:]
    return []


def describe_exit(code: int) -> str:
    """Say how a process ended: "exit code 3", "signal SIGSEGV"."""
    if code >= 0:
        return f"exit code {code}"
    with suppress(ValueError):
        return f"signal {signal.Signals(-code).name}"
    return f"signal {-code}"
