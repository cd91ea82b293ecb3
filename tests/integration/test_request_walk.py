"""docs/design.md lists the files that one JSON inference passes, so that someone new can follow a request."""

from __future__ import annotations

import asyncio
import re
import sys
from pathlib import Path

from tests.integration.serving import Served, Wire, as_bytes

import tailcut

PACKAGE = Path(tailcut.__file__).parent
DESIGN = Path(__file__).parents[2] / "docs" / "design.md"
TRACER = Path(__file__).with_name("request_tracer.py")

MOST = 28
"""A reader follows the request through these; a new file takes the place of another."""

OF_THE_TICK = {
    "observe/failures.py",
    "observe/fine_histogram.py",
    "observe/latency_figures.py",
    "observe/outcomes.py",
    "observe/sinks.py",
    "serving/host.py",
}
"""Files of the tick, which runs ten times a second beside the requests."""


def walk() -> list[str]:
    """Return the files that the design lists."""
    section = DESIGN.read_text().partition("### The walk of one request\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| `([\w/]+\.py)` \|", section, re.MULTILINE)


def test_one_json_inference_runs_the_files_that_the_design_lists(tmp_path: Path) -> None:
    """Without caches, on the thread executor, as a warm server does it."""
    flag, out, python = tmp_path / "flag", tmp_path / "files", tmp_path / "python"
    flag.write_bytes(bytes(1))
    python.write_text(f'#!/bin/sh\nPYTHONPATH={PACKAGE.parent} exec {sys.executable} {TRACER} {flag} {out} "$@"\n')
    python.chmod(0o755)
    with Served(tmp_path, settings=['pool.executor="thread"'], python=python) as server:

        async def ask() -> None:
            wire = await Wire.open(server.port)
            for traced in (0, 0, 0, 0, 0, 1, 2, 3):
                with flag.open("r+b") as switch:  # never truncated: the server has it mapped
                    switch.write(bytes([traced]))
                assert (await wire.ask(as_bytes()))[0] == 200
            await wire.close()

        asyncio.run(ask())
    by_request: dict[str, set[str]] = {}
    for line in out.read_text().splitlines():
        traced, _, file = line.partition(" ")
        by_request.setdefault(traced, set()).add(str(Path(file).relative_to(PACKAGE)))
    assert len(by_request) == 3
    ran = set.intersection(*by_request.values())  # what runs now and then, beside one of them, is not theirs
    listed = walk()
    assert len(listed) <= MOST
    assert ran - set(listed) - OF_THE_TICK == set(), "files that run and are not listed"
    assert len(set(listed) - ran) <= 4, "files that are listed run, but for what only some requests need"
