"""The message modules of gRPC are those of their .proto files."""

from __future__ import annotations

import subprocess
import sys

from tests.docs.pages import ROOT


def test_the_message_modules_are_current() -> None:
    """Else run scripts/generate_grpc.py."""
    command = [sys.executable, str(ROOT / "scripts" / "generate_grpc.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
