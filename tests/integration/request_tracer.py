"""Runs a module as ``python -m`` does, and writes which files of tailcut run while a flag is set.

    python request_tracer.py FLAG OUT -m tailcut serve ...

FLAG: a file of one byte; files are written while it is not 0. OUT: a line per value of the flag and file, in the order
of their first call.
"""

from __future__ import annotations

import mmap
import os
import runpy
import sys
import threading
from types import FrameType

FLAG, OUT, _, MODULE = sys.argv[1:5]
flag = mmap.mmap(os.open(FLAG, os.O_RDWR), 1)
out = os.open(OUT, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
seen: set[tuple[int, str]] = set()


def called(frame: FrameType, event: str, argument: object) -> None:
    """Note the file of a function that is called."""
    if event == "call" and (value := flag[0]):
        name = frame.f_code.co_filename
        if (value, name) not in seen and f"{os.sep}tailcut{os.sep}" in name:
            seen.add((value, name))
            os.write(out, f"{value} {name}\n".encode())


threading.setprofile(called)
sys.setprofile(called)
sys.argv = [MODULE, *sys.argv[5:]]
runpy.run_module(MODULE, run_name="__main__")
