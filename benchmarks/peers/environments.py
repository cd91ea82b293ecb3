"""Makes each peer's own environment with pip, once; a peer that cannot be installed is told, not dropped."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.peers.catalog import NUMERIC, Peer

CACHE = Path(os.environ.get("PEERS_CACHE", ".peers"))
_STAMP = "made-from.json"


class NotInstalled(Exception):
    """The peer's environment could not be made; the text says why."""


def ensure(peer: Peer, *, install: bool = True) -> str:
    """Return the path of the peer's Python; make its environment where it is missing or was made from other pins.

    Args:
        install: whether to make one; otherwise a peer without it is not installed.

    Raises:
        NotInstalled: with the last line that pip wrote.
    """
    if not peer.requirements:
        return sys.executable
    wanted = [*peer.requirements, *NUMERIC]
    folder = (CACHE / peer.environment).absolute()
    python = folder / "bin" / "python"
    stamp = folder / _STAMP
    if stamp.exists() and json.loads(stamp.read_text()) == wanted:
        return str(python)
    if not install:
        raise NotInstalled("no environment: run `make bench-peers` first, which makes one")
    sys.stderr.write(f"installing {', '.join(wanted)} into {CACHE / peer.environment}\n")
    CACHE.mkdir(parents=True, exist_ok=True)
    (CACHE / ".gitignore").write_text("*\n")
    if not python.exists():
        shutil.rmtree(folder, ignore_errors=True)
        _checked([sys.executable, "-m", "venv", str(folder)])
    _checked([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *wanted])
    stamp.write_text(json.dumps(wanted))
    return str(python)


def versions(python: str, packages: Sequence[str]) -> dict[str, str]:
    """Return the installed versions in an environment, by package."""
    code = (
        "import json, sys\nfrom importlib.metadata import version\n"
        "print(json.dumps({name: version(name) for name in sys.argv[1:]}))"
    )
    done = subprocess.run([python, "-c", code, *packages], check=True, capture_output=True, text=True)
    found: dict[str, str] = json.loads(done.stdout)
    return found


def _checked(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        told = next((line for line in lines if line.startswith("ERROR")), lines[-1] if lines else "no message")
        raise NotInstalled(f"pip failed: {told[:200]}")
