"""wrk against one URL, pinned to the load's core; its figures, errors counted and not fatal."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from benchmarks.peers.processes import LOAD_CORE

MISSING = "wrk is not installed (https://github.com/wg/wrk; Debian and Ubuntu: apt-get install wrk)"

_DONE = """
done = function(summary, latency, requests)
  local e = summary.errors
  local form = 'JSON {"requests": %d, "us": %d, "p50_us": %d, "p99_us": %d, "max_us": %d, "status": %d, "other": %d}\\n'
  io.write(string.format(form, summary.requests, summary.duration, latency:percentile(50), latency:percentile(99),
    latency.max, e.status, e.connect + e.read + e.write + e.timeout))
end
"""


def is_there() -> bool:
    """Whether wrk is installed."""
    return shutil.which("wrk") is not None


def write_script(path: Path, body: bytes, headers: Mapping[str, str]) -> Path:
    """Write the Lua script that posts a body, any bytes of it."""
    lines = ['wrk.method = "POST"', *(f'wrk.headers["{name}"] = "{value}"' for name, value in headers.items())]
    lines.append('wrk.body = "' + "".join(f"\\{byte:03d}" for byte in body) + '"')
    path.write_text("\n".join(lines) + _DONE)
    return path


def run(url: str, script: Path, connections: int, seconds: int) -> dict[str, float]:
    """Load a URL with a fixed number of connections.

    Returns:
        rps (good answers per second), p50_us, p99_us, max_us, errors (a status that is not 2xx or 3xx, and broken or
        timed-out requests).

    Raises:
        RuntimeError: wrk itself failed.
    """
    command = ["taskset", "-c", str(LOAD_CORE), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "5s"]
    done = subprocess.run([*command, "-s", str(script), url], capture_output=True, text=True, check=False)
    line = next((line for line in done.stdout.splitlines() if line.startswith("JSON ")), "")
    if done.returncode or not line:
        raise RuntimeError(f"wrk failed: {(done.stderr or done.stdout).strip()[-300:]}")
    seen: dict[str, float] = json.loads(line[5:])
    good = seen["requests"] - seen["status"]
    return {
        "rps": good / seen["us"] * 1e6,
        "p50_us": seen["p50_us"],
        "p99_us": seen["p99_us"],
        "max_us": seen["max_us"],
        "errors": seen["status"] + seen["other"],
    }
