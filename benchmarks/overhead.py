"""What tailcut adds to a model: its HTTP path beside a Granian handler that does nothing, interleaved.

    python -m benchmarks.overhead [--rounds 7] [--seconds 4] [--out benchmarks/results]

The model is an MLP 64-256-256-1 in onnxruntime with one thread; a request is one row of 64 floats as JSON. The server
is pinned to one core and wrk to the other. Both servers stay up, each measurement alternates between them.
At 1 connection the floor is (no-op p50 + bare JSON decode + bare session.run), all measured in the same round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.mlp import BODY_FLOATS, MANIFEST, write_model
from benchmarks.overhead_profile import profile

_SERVER_CORE, _LOAD_CORE = 0, 1
_LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/json"
wrk.body = [[%s]]
done = function(summary, latency, requests)
  io.write(string.format('JSON {"requests": %%d, "us": %%d, "p50_us": %%d, "p90_us": %%d, "p99_us": %%d, "p999_us": %%d, "max_us": %%d, "errors": %%d}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(90), latency:percentile(99), latency:percentile(99.9), latency.max,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.status + summary.errors.timeout))
end
"""  # noqa: E501 - one Lua statement


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    if shutil.which("wrk") is None:
        sys.exit("error: wrk is not installed\n\nhint: apt-get install wrk")
    if (os.cpu_count() or 1) < 2:
        sys.exit("error: the server and wrk need a core each; this machine has one")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        result = measure(folder, arguments.rounds, arguments.seconds, stack)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "overhead.json").write_text(json.dumps(result, indent=1) + "\n")
    text = render(result)
    (arguments.out / "overhead.md").write_text(text)
    print(text)


def measure(folder: Path, rounds: int, seconds: int, stack: ExitStack) -> dict[str, Any]:
    model = write_model(folder / "mlp.onnx")
    (folder / "tailcut.toml").write_text(MANIFEST)
    body = BODY_FLOATS.decode()
    script = folder / "post.lua"
    script.write_text(_LUA % body)
    noop_port, tailcut_port = free_port(), free_port()
    stack.enter_context(server([sys.executable, "-m", "benchmarks.noop", str(noop_port)], noop_port))
    command = [sys.executable, "-m", "tailcut", "serve", "--manifest", str(folder), "--port", str(tailcut_port)]
    stack.enter_context(server(command, tailcut_port, path="/v2/health/ready"))
    urls = {
        "noop": f"http://127.0.0.1:{noop_port}/v2/models/mlp/infer",
        "tailcut": f"http://127.0.0.1:{tailcut_port}/v2/models/mlp/infer",
    }
    for url in urls.values():
        wrk(url, script, 32, 2)  # warm-up, not counted
    runs: list[dict[str, Any]] = []
    for round_number in range(rounds):
        order = ["noop", "tailcut"] if round_number % 2 == 0 else ["tailcut", "noop"]
        entry: dict[str, Any] = {}
        for connections in (32, 1):
            for name in order:
                entry[f"{name}_{connections}"] = wrk(urls[name], script, connections, seconds)
        entry.update(bare(model))
        runs.append(entry)
        sys.stderr.write(f"round {round_number + 1}/{rounds}: {one_line(entry)}\n")
    return {
        "command": "python -m benchmarks.overhead " + " ".join(sys.argv[1:]),
        "commit": commit(),
        "cpu": cpu(),
        "versions": {name: version(name) for name in ("granian", "onnxruntime", "msgspec", "numpy", "uvloop")},
        "python": interpreter(),
        "seconds": seconds,
        "rounds": runs,
        "profile": profile(model),
    }


def bare(model: Path) -> dict[str, float]:
    """Return the medians of decoding the body and of one session.run, on the server's core."""
    code = "import json,sys; from benchmarks.mlp import bare; print(json.dumps(bare(sys.argv[1])))"
    command = ["taskset", "-c", str(_SERVER_CORE), sys.executable, "-c", code, str(model)]
    reply: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    return reply


def wrk(url: str, script: Path, connections: int, seconds: int) -> dict[str, float]:
    command = [
        "taskset",
        "-c",
        str(_LOAD_CORE),
        "wrk",
        "-t1",
        f"-c{connections}",
        f"-d{seconds}s",
        "-s",
        str(script),
        url,
    ]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    line = next(line for line in output.splitlines() if line.startswith("JSON "))
    figures: dict[str, float] = json.loads(line[5:])
    if figures["errors"]:
        raise SystemExit(f"error: {figures['errors']:.0f} failed requests at {url}")
    figures["rps"] = figures["requests"] / figures["us"] * 1e6
    return figures


@contextmanager
def server(command: list[str], port: int, path: str = "/") -> Iterator[None]:
    process = subprocess.Popen(["taskset", "-c", str(_SERVER_CORE), *command])
    try:
        deadline_s = time.monotonic() + 60
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=1):
                    break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline_s:
                    raise SystemExit(f"error: {' '.join(command)} did not come up") from None
                time.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def spread(values: list[float], form: Callable[[float], str]) -> str:
    return f"{form(median(values))} ({form(min(values))} to {form(max(values))})"


def ratios(result: dict[str, Any]) -> list[float]:
    return [run["tailcut_32"]["rps"] / run["noop_32"]["rps"] for run in result["rounds"]]


def added_us(result: dict[str, Any]) -> list[float]:
    """Per round: tailcut's p50 at 1 connection above no-op p50 + bare decode + bare run."""
    return [
        run["tailcut_1"]["p50_us"] - run["noop_1"]["p50_us"] - run["decode_us"] - run["run_us"]
        for run in result["rounds"]
    ]


def one_line(run: dict[str, Any]) -> str:
    added = run["tailcut_1"]["p50_us"] - run["noop_1"]["p50_us"] - run["decode_us"] - run["run_us"]
    return (
        f"32 connections {run['tailcut_32']['rps']:.0f} of {run['noop_32']['rps']:.0f} req/s "
        f"({run['tailcut_32']['rps'] / run['noop_32']['rps']:.2f}), 1 connection p50 "
        f"{run['tailcut_1']['p50_us']:.0f} us, "
        f"no-op {run['noop_1']['p50_us']:.0f} us, added {added:.0f} us"
    )


def render(result: dict[str, Any]) -> str:
    runs = result["rounds"]

    def row(label: str, key: str, figure: str, form: Callable[[float], str]) -> str:
        return f"| {label} | {spread([run[key][figure] for run in runs], form)} |"

    whole, micro = "{:.0f}".format, "{:.0f} us".format
    lines = [
        "# Overhead of the request path",
        "",
        f"`{result['command']}` at commit {result['commit']} on {result['cpu']}, Python {result['python']}, "
        + ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        + f"; {len(runs)} interleaved rounds of {result['seconds']} s; median (least to most over rounds).",
        "",
        "MLP 64-256-256-1, onnxruntime, one thread; one JSON request of 64 floats;",
        "server on one core, wrk on the other; timings, metrics and Server-Timing on.",
        "",
        "| figure | value |",
        "|---|---|",
        row("no-op, 32 connections, req/s", "noop_32", "rps", whole),
        row("tailcut, 32 connections, req/s", "tailcut_32", "rps", whole),
        f"| **share of the no-op's req/s** | **{spread(ratios(result), '{:.2f}'.format)}** |",
        row("no-op, 32 connections, p99", "noop_32", "p99_us", micro),
        row("tailcut, 32 connections, p99", "tailcut_32", "p99_us", micro),
        row("no-op, 1 connection, p50", "noop_1", "p50_us", micro),
        row("tailcut, 1 connection, p50", "tailcut_1", "p50_us", micro),
        f"| bare decode | {spread([run['decode_us'] for run in runs], '{:.1f} us'.format)} |",
        f"| bare session.run | {spread([run['run_us'] for run in runs], '{:.1f} us'.format)} |",
        f"| **added at 1 connection (p50 - no-op - decode - run)** | **{spread(added_us(result), micro)}** |",
        "",
        "## Where the microseconds go",
        "",
        "Each part alone, in a tight loop in one process on the server's core: a lower bound, because caches are warm.",
        "",
        "| part | us |",
        "|---|---|",
        *[f"| {name} | {value:.1f} |" for name, value in result["profile"].items()],
        "",
        "## Caveats",
        "",
        "- wrk is closed-loop: at 32 connections it measures throughput; its p99 is that of a saturated server.",
        "- The load generator shares caches and memory with the server; other machines give other ratios.",
        "- The no-op handler reads the body and answers a constant.",
        "",
    ]
    return "\n".join(lines)


def commit() -> str:
    command = ["git", "describe", "--always", "--dirty"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def cpu() -> str:
    names = [
        line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return f"{len(names)} x {names[0]}" if names else platform.machine()


def interpreter() -> str:
    """Return Python's version, and whether it is the distribution's.

    One that was built without profiles, as pyenv does by default, takes half as long again for the same work.
    """
    return platform.python_version() + " (the distribution's)" * (sys.base_prefix == "/usr")


if __name__ == "__main__":
    main()
