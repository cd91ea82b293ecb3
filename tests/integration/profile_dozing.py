"""Naps that an application takes, and how long they really took: copied as ``dozing.py`` beside it."""

from __future__ import annotations

import asyncio
import time

naps: list[int] = []
"""Nanoseconds of this request."""


def nap(seconds: float = 0.006) -> None:
    begun = time.perf_counter_ns()
    time.sleep(seconds)
    naps.append(time.perf_counter_ns() - begun)


async def doze(seconds: float = 0.006) -> None:
    begun = time.perf_counter_ns()
    await asyncio.sleep(seconds)
    naps.append(time.perf_counter_ns() - begun)
