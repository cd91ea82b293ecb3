"""The limit of open files follows server.max_connections; in child processes, because a limit cannot be raised back."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

# Soft limit, hard limit, connections; each case in a fork of one process that has imported the server.
CASES = {
    "raised": (200, 800, 100),
    "kept": (700, 800, 100),
    "to the hard limit": (200, 800, 544),
    "low": (200, 800, 545),
}
CODE = """
import json, os, resource, sys
from tailcut.transport.lifecycle import allow_connections
for name, (soft, hard, connections) in json.loads(sys.argv[1]).items():
    child = os.fork()
    if child == 0:
        print(name, file=sys.stderr, flush=True)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        allow_connections(connections)
        print(json.dumps([name, resource.getrlimit(resource.RLIMIT_NOFILE)]), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, name
"""


@pytest.fixture(scope="module")
def limited() -> dict[str, tuple[list[int], str]]:
    """Per case, the limits afterwards and what was said."""
    command = [sys.executable, "-c", CODE, json.dumps(CASES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    after = dict(map(json.loads, done.stdout.splitlines()))
    said: dict[str, str] = {}
    name = ""
    for line in done.stderr.splitlines():
        name, text = (line, "") if line in CASES else (name, line)
        said[name] = said.get(name, "") + text
    return {name: (after[name], said[name]) for name in CASES}


@pytest.mark.parametrize(
    ("case", "after"), [("raised", [356, 800]), ("kept", [700, 800]), ("to the hard limit", [800, 800])]
)
def test_the_soft_limit_is_raised_to_what_is_needed_and_never_lowered(
    limited: dict[str, tuple[list[int], str]], case: str, after: list[int]
) -> None:
    assert limited[case] == (after, "")


def test_a_hard_limit_that_is_too_low_is_said(limited: dict[str, tuple[list[int], str]]) -> None:
    after, said = limited["low"]
    assert after == [800, 800]
    assert "limit of open files is 800" in said
    assert "server.max_connections = 545" in said
    assert "LimitNOFILE" in said
