"""What a slow reader of the log gets: all that there is room for, in whole lines, and how many more there were."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tailcut.transport.log_relay import Outlet

HELD_BYTES = 1 << 20


@contextmanager
def stderr_to(writing: int) -> Iterator[None]:
    before = os.dup(2)
    os.dup2(writing, 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)


def read_until(reading: int, words: bytes) -> bytes:
    found = b""
    while words not in found:
        data = os.read(reading, 1 << 20)
        assert data, found[-200:]
        found += data
    return found


@pytest.mark.parametrize("size", [20, 4000, HELD_BYTES // 2 + 100])
def test_of_what_does_not_fit_the_lines_that_do_are_kept(size: int) -> None:
    line = b"x" * (size - 1) + b"\n"
    at_once = line * max(HELD_BYTES * 2 // 3 // size, 1)  # read at once, too
    reading, writing = os.pipe()
    with stderr_to(writing), Outlet() as outlet:
        os.close(writing)
        outlet.start()
        for _ in range(4):
            os.write(2, at_once)
        said = read_until(reading, b"lines of this log")
    os.close(reading)
    (lost,) = re.findall(rb"dropped (\d+) lines", said)
    whole = said.splitlines(keepends=True).count(line)
    assert whole + int(lost) == 4 * at_once.count(b"\n")
    assert whole * size > HELD_BYTES - size
