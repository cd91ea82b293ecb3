"""The limit of open files follows server.max_connections; in a child process, because a limit cannot be raised back."""

from __future__ import annotations

import subprocess
import sys

import pytest

CODE = """
import resource, sys
from tailcut.server.lifecycle import allow_connections
resource.setrlimit(resource.RLIMIT_NOFILE, ({soft}, {hard}))
allow_connections({connections})
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def limited(soft: int, hard: int, connections: int) -> tuple[str, str]:
    """(the limits afterwards, stderr)."""
    code = CODE.format(soft=soft, hard=hard, connections=connections)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("soft", "connections", "after"), [(200, 100, "356 800"), (700, 100, "700 800"), (200, 544, "800 800")]
)
def test_the_soft_limit_is_raised_to_what_is_needed_and_never_lowered(soft: int, connections: int, after: str) -> None:
    assert limited(soft, 800, connections) == (after, "")


def test_a_hard_limit_that_is_too_low_is_said() -> None:
    after, said = limited(200, 800, 545)
    assert after == "800 800"
    assert "limit of open files is 800" in said
    assert "server.max_connections = 545" in said
    assert "LimitNOFILE" in said
