"""Subnormal floats count as zero in the thread that asks for it and in those that it starts."""

from __future__ import annotations

import subprocess
import sys

_CODE = """
import threading
import numpy as np

def flushed():
    return bool(np.float32(1e-38) * np.float32(0.1) == 0)

assert not flushed()
from tailcut.runtimes.onnxruntime import flush_subnormals
flush_subnormals()
seen = []
thread = threading.Thread(target=lambda: seen.append(flushed()))
thread.start()
thread.join()
print(flushed(), seen[0])
"""


def test_this_thread_and_later_threads_flush() -> None:
    """Given a fresh process, both threads flush after the call (a process, because the mode cannot be taken back)."""
    command = [sys.executable, "-W", "ignore", "-c", _CODE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["True", "True"], done.stderr
