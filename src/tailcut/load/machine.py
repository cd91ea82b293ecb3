"""What the ladder was measured on, and which core runs what."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tailcut.registry import read_machine

PACKAGES = (
    "tailcut", "uvloop", "msgspec", "numpy", "onnxruntime", "torch", "fastapi", "uvicorn", "asyncpg",
    "psycopg", "aiosqlite", "redis", "httptools",
)  # fmt: skip
"""Those whose versions may matter to a ladder."""


class Cores(msgspec.Struct, frozen=True, kw_only=True):
    """Which core the server is pinned to and which the load; None: not pinned."""

    server: int | None
    load: int | None

    @property
    def note(self) -> str:
        """How it was done, for the report."""
        if self.server is None:
            return (
                "One core for all: server and load generator share it, so the latencies include the generator's work."
            )
        return (
            f"Server pinned to core {self.server}, load to core {self.load}; databases are not pinned and use both. "
            "CPU seconds count the server's processes only, without databases."
        )


def choose_cores() -> Cores:
    """Give the server and the load a core each where there are two."""
    cores = sorted(os.sched_getaffinity(0))
    return Cores(server=cores[0], load=cores[1]) if len(cores) > 1 else Cores(server=None, load=None)


@contextmanager
def pinned(core: int | None) -> Iterator[None]:
    """Keep this thread on one core for a while."""
    if core is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def machine_facts() -> dict[str, str]:
    """Describe the machine."""
    machine = read_machine()
    return {
        "cpu": machine.processor,
        "cores": str(machine.cores),
        "memory": f"{machine.memory_bytes / 2**30:.1f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def commit_of(folder: Path) -> str:
    """Name the commit that ``folder`` is at, with '+' where files differ from it; 'unknown' without git."""
    try:
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return "unknown"


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(folder), *arguments], capture_output=True, text=True, check=True, timeout=10
    )
    return done.stdout.strip()
