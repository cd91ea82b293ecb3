"""The simulator beside the server: p50, p95 and p99 at three loads, as simulated and as measured over the socket.

    python -m benchmarks.simulator [--width 2048] [--loads 0.3,0.6,0.8] [--rounds 3] [--seconds 10] [--out FOLDER]

An MLP of the given width in onnxruntime with one thread, served by `tailcut serve` on one core; the load generator has
the other. Everything that the simulation is told is measured before, and nothing is fitted afterwards:

- what batches take: the runtime alone, on the server's core, anew before every run, because machines that others share
  change their speed from minute to minute;
- what a request takes of the server's processor beside that: at full load, where the event loop never sleeps, and at a
  low rate, where it sleeps before every request and before every answer;
- what the network and the client add: at a rate so low that requests never meet.

The simulation plays the same arrivals.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.mlp import BODY_FLOATS, MANIFEST
from benchmarks.overhead import commit, cpu, free_port
from tailcut.core.arrivals import offsets_ns, steady
from tailcut.core.service import measured
from tailcut.core.simulation import Scenario, simulate
from tailcut.core.windows import Gain
from tailcut.load import LoadPlan, measure, summarise_run

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
RUNS = 40
LOW = (0.05, 0.15)
FULL = 0.9
"""Shares of the capacity: at which requests hardly meet, and at which the event loop hardly sleeps."""

GUESSED_LOOP_NS = 100_000.0

WAKES = 2
"""A lone request wakes the event loop so often: when it comes, and when its batch ends."""

MIN_LOOP_NS = 10_000.0
SERVER_CORE, LOAD_CORE = 0, 1
TIMEOUT_MS = 1000
P50, P95, P99 = "p50", "p95", "p99"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--width", type=int, default=2048, help="of the hidden layers")
    parser.add_argument("--loads", default="0.3,0.6,0.8", help="shares of the capacity")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--time-batches", metavar="MODEL", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.time_batches:
        sys.stdout.write(json.dumps(time_batches(arguments.time_batches)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, arguments.width)
        samples = batches(folder / "mlp.onnx")
        with served(folder) as (port, pid):
            os.sched_setaffinity(0, {LOAD_CORE % os.cpu_count()})  # type: ignore[operator]
            result = run(arguments, folder, samples, port, pid)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "simulator.json").write_text(json.dumps(result, indent=1) + "\n")
    text = render(result)
    (arguments.out / "simulator.md").write_text(text)
    sys.stdout.write(text)


def run(
    arguments: argparse.Namespace, folder: Path, samples: dict[int, list[float]], port: int, pid: int
) -> dict[str, Any]:
    typical = {rows: median(values) for rows, values in samples.items()}
    taken, capacity = calibrated(arguments, folder, typical, port, pid)
    lines = []
    for share in [float(part) for part in arguments.loads.split(",")]:
        rate = share * capacity
        seen, told = [], []
        for seed in range(arguments.rounds):
            now = batches(folder / "mlp.onnx")
            seen.append(load(folder, port, pid, rate, arguments.seconds, seed))
            told.append(simulated(now, rate, arguments.seconds, seed, taken))
            both = f"measured {seen[-1][P95]:.2f}, simulated {told[-1][P95]:.2f}"
            sys.stderr.write(f"{share:.2f} of the capacity, {rate:.0f}/s: p95 {both} ms\n")
        lines.append({"share": share, "rate": rate, "measured": seen, "simulated": told})
    return {
        "command": "python -m benchmarks.simulator " + " ".join(sys.argv[1:]),
        "commit": commit(),
        "cpu": cpu(),
        "batch_ms": {rows: ns / 1e6 for rows, ns in typical.items()},
        "taken": taken._asdict(),
        "capacity": capacity,
        "lines": lines,
    }


class Taken(NamedTuple):
    """Nanoseconds beside the model: of the event loop per request, per waking up, and of network and client."""

    loop_ns: float
    wake_ns: float
    floor_ns: float


def calibrated(
    arguments: argparse.Namespace, folder: Path, typical: dict[int, float], port: int, pid: int
) -> tuple[Taken, float]:
    """Measure what requests take beside the model, and with it the capacity in requests per second."""
    guess = max(1e9 / (typical[rows] / rows + GUESSED_LOOP_NS) for rows in typical)
    full = load(folder, port, pid, FULL * guess, arguments.seconds, 100)
    rows = full["rows"]
    batch_ns = float(np.interp(rows, list(typical), list(typical.values()))) / rows
    loop_ns = max(full["cpu_ms"] * 1e6 - batch_ns, MIN_LOOP_NS)
    capacity = max(1e9 / (typical[rows] / rows + loop_ns) for rows in typical)
    # Between two low rates, because a server takes some of the processor for itself whatever comes.
    rates = [share * capacity for share in LOW]
    low, more = (load(folder, port, pid, rate, arguments.seconds, seed=101) for rate in rates)
    busy = [each["cpu_ms"] * rate for each, rate in zip((low, more), rates, strict=True)]
    slow_ns = (busy[1] - busy[0]) / (rates[1] - rates[0]) * 1e6 - typical[1]
    wake_ns = max(slow_ns - loop_ns, 0.0) / WAKES
    return Taken(loop_ns, wake_ns, max(low[P50] * 1e6 - typical[1] - slow_ns, 0.0)), capacity


def prepare(folder: Path, width: int) -> None:
    from benchmarks import mlp

    mlp._SIZES = (64, width, width, 1)
    mlp.write_model(folder / "mlp.onnx")
    pool = '\n[pool]\nexecutor = "thread"\nexecutors = 1\n[batching]\nmax_rows = 32\n'
    (folder / "tailcut.toml").write_text(MANIFEST + pool)
    (folder / "bodies.jsonl").write_bytes(BODY_FLOATS + b"\n")


def batches(model: Path) -> dict[int, list[float]]:
    """Time batches in a process of its own on the server's core."""
    command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "benchmarks.simulator"]
    found = subprocess.run([*command, "--time-batches", str(model)], check=True, capture_output=True, text=True)
    return {int(rows): values for rows, values in json.loads(found.stdout).items()}


def time_batches(model: str) -> dict[int, list[float]]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options)
    found: dict[int, list[float]] = {rows: [] for rows in SIZES}
    inputs = {rows: np.zeros((rows, 64), np.float32) for rows in SIZES}
    for number in range(RUNS + 5):
        for rows in SIZES:
            began_ns = time.perf_counter_ns()
            session.run(["y"], {"x": inputs[rows]})
            if number >= 5:
                found[rows].append(float(time.perf_counter_ns() - began_ns))
    return found


@contextmanager
def served(folder: Path) -> Iterator[tuple[int, int]]:
    port = free_port()
    command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "tailcut", "serve"]
    process = subprocess.Popen([*command, "--manifest", str(folder), "--port", str(port)], stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready", timeout=1):
                    break
            except OSError:
                if process.poll() is not None:
                    raise SystemExit("error: the server did not start") from None
                time.sleep(0.1)
        yield port, process.pid
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(30)


def load(folder: Path, port: int, pid: int, rate: float, seconds: float, seed: int) -> dict[str, float]:
    plan = LoadPlan(
        url=f"http://127.0.0.1:{port}/v2/models/mlp/infer",
        rate=rate,
        duration_s=seconds,
        warmup_s=1.0,
        payloads=str(folder / "bodies.jsonl"),
        timeout_s=TIMEOUT_MS / 1e3,
        pid=pid,
        seed=seed,
    )
    before = batches_run(port)
    samples, facts = measure(plan)
    rows, count = [now - then for now, then in zip(batches_run(port), before, strict=True)]
    result = summarise_run(plan, samples, facts)
    shape = result.latency_ms
    if shape is None or result.cpu_s_per_1000 is None:
        raise SystemExit(f"error: no answers at {rate:.0f}/s")
    return {
        P50: shape.p50,
        P95: shape.p95,
        P99: shape.p99,
        "cpu_ms": result.cpu_s_per_1000,
        "sheds": result.sheds,
        "rows": rows / count,
    }


def batches_run(port: int) -> list[float]:
    """Return the rows and the number of all batches so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    found = dict(re.findall(r"^tailcut_batch_rows_(sum|count)\{[^}]*\} (\S+)", text, re.MULTILINE))
    return [float(found["sum"]), float(found["count"])]


def simulated(
    samples: dict[int, list[float]], rate: float, seconds: float, seed: int, taken: Taken
) -> dict[str, float]:
    outcome = simulate(
        Scenario(
            arrivals_ns=offsets_ns(steady(rate, seconds, warmup_s=1.0), seed),
            service=measured(samples, seed),
            known={rows: median(values) for rows, values in samples.items()},
            timeout_ns=TIMEOUT_MS * 1_000_000,
            window=lambda: Gain(TIMEOUT_MS * 500_000),
            loop_ns=taken.loop_ns,
            wake_ns=taken.wake_ns,
            shared=True,
        )
    )
    return {
        name: outcome.percentile_ms(share) + taken.floor_ns / 1e6
        for name, share in ((P50, 0.5), (P95, 0.95), (P99, 0.99))
    }


def render(result: dict[str, Any]) -> str:
    lines = [
        "# The simulator beside the server",
        "",
        f"`{result['command'].strip()}` at commit {result['commit']} on {result['cpu']}; server and executor on one "
        "core, load on the other.",
        "",
        f"Measured before: a batch takes {result['batch_ms'][1]:.2f} ms at 1 row and {result['batch_ms'][32]:.2f} ms "
        f"at 32; {result['taken']['loop_ns'] / 1e3:.0f} us of the server's processor per request beside it, "
        f"{result['taken']['wake_ns'] / 1e3:.0f} us more whenever the event loop was asleep; "
        f"{result['taken']['floor_ns'] / 1e3:.0f} us of network and client. Capacity {result['capacity']:.0f} "
        "requests/s.",
        "",
        "| load | rate/s | p50 measured, simulated | p95 measured, simulated | p95 off by | p99 measured, simulated |",
        "|---|---|---|---|---|---|",
    ]
    for line in result["lines"]:
        seen, told = (
            {name: median([each[name] for each in line[kind]]) for name in (P50, P95, P99)}
            for kind in ("measured", "simulated")
        )
        pairs = {name: f"{seen[name]:.2f}, {told[name]:.2f} ms" for name in seen}
        off = told[P95] / seen[P95] - 1
        load = f"{line['share']:.0%} | {line['rate']:.0f}"
        lines.append(f"| {load} | {pairs[P50]} | {pairs[P95]} | **{off:+.0%}** | {pairs[P99]} |")
    return "\n".join([*lines, "", "Medians over rounds.", ""])


if __name__ == "__main__":
    main()
