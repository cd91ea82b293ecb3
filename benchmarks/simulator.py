"""The simulator beside the server: p50, p95 and p99 at three loads, as simulated and as measured over the socket.

    python -m benchmarks.simulator [--loads 0.3,0.6,0.8] [--rounds 3] [--seconds 20] [--out FOLDER]

The compute-bound model of `benchmarks.overload` with one thread, served by `tailcut serve` on one core; the load
generator has the other. Everything that the simulation is told is measured before, and nothing is fitted afterwards:

- what batches take: the runtime alone, on the server's core, anew before every run, because machines that others share
  change their speed from minute to minute;
- how much longer they take in the server, whose other threads share the core's caches with them, and what a request
  takes of the event loop: the processor time of the server's threads, at full load and at a low one, where the loop
  sleeps before every request and before every answer;
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
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from benchmarks import openloop
from benchmarks.compute import LARGEST, SIZES, compute_model, feeds_of, manifest, open_bare, written
from benchmarks.overhead import commit, cpu, free_port
from benchmarks.peers.bodies import JSON, body_of
from tailcut.core.arrivals import offsets_ns, steady
from tailcut.core.service import measured
from tailcut.core.simulation import Scenario, simulate
from tailcut.core.windows import Gain
from tailcut.load import LoadPlan, measure, summarise_run
from tailcut.load.cpu import threads_ns

RUNS = 40
LOW, FULL = 0.1, 0.9
"""Shares of the capacity: at which requests hardly meet, and at which the event loop hardly sleeps."""

WAKES = 2
"""A lone request wakes the event loop so often: when it comes, and when its batch ends."""

SERVER_CORE, LOAD_CORE = 0, 1
TIMEOUT_MS = 1000
P50, P95, P99 = "p50", "p95", "p99"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--loads", default="0.3,0.6,0.8", help="shares of the capacity")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--time-batches", nargs=2, metavar=("MODEL", "ROW"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.time_batches:
        sys.stdout.write(json.dumps(time_batches(*arguments.time_batches)))
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bench = Bench(folder, arguments.seconds)
        with served(folder) as (port, pid):
            os.sched_setaffinity(0, {LOAD_CORE % os.cpu_count()})  # type: ignore[operator]
            result = bench.run(port, pid, [float(part) for part in arguments.loads.split(",")], arguments.rounds)
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "simulator.json").write_text(json.dumps(result, indent=1) + "\n")
    text = render(result)
    (arguments.out / "simulator.md").write_text(text)
    sys.stdout.write(text)


class Taken(NamedTuple):
    """What was measured before.

    Attributes:
        served: a batch in the server, in times of the runtime alone.
        loop_ns, wake_ns: of the event loop per request, and per waking up besides.
        floor_ns: of network and client.
    """

    served: float
    loop_ns: float
    wake_ns: float
    floor_ns: float


class Bench:
    """One deployment, measured and simulated.

    Args:
        folder: gets the deployment.
        seconds: of each run.
    """

    def __init__(self, folder: Path, seconds: float) -> None:
        self._folder, self._seconds = folder, seconds
        self._model = compute_model(folder)
        self._limit_ms = 25.0 + median(self._batches()[LARGEST]) / 1e6
        text = manifest(self._model, rows=LARGEST, limit_ms=self._limit_ms, deadline_ms=TIMEOUT_MS)
        (folder / "tailcut.toml").write_text(text + '[pool]\nexecutor = "thread"\nexecutors = 1\n')
        body, _ = body_of("oip", self._model.shape)
        openloop.write_bodies(folder / "bodies.jsonl", body)

    def run(self, port: int, pid: int, shares: list[float], rounds: int) -> dict[str, Any]:
        """Measure and simulate every load."""
        samples = self._batches()
        taken = self._calibrated(samples, port, pid)
        lines = []
        for share in shares:
            seen, told, rates = [], [], []
            for seed in range(rounds):
                now = self._batches()
                rates.append(share * capacity_of(now, taken))
                seen.append(self._load(port, pid, rates[-1], seed))
                told.append(self._simulated(now, rates[-1], seed, taken))
                both = f"measured {seen[-1][P95]:.2f}, simulated {told[-1][P95]:.2f}"
                sys.stderr.write(f"{share:.2f} of the capacity, {rates[-1]:.0f}/s: p95 {both} ms\n")
            lines.append({"share": share, "rate": median(rates), "measured": seen, "simulated": told})
        return {
            "command": " ".join(["python -m benchmarks.simulator", *sys.argv[1:]]),
            "commit": commit(),
            "cpu": cpu(),
            "model": self._model.label,
            "limit_ms": self._limit_ms,
            "batch_ms": {rows: median(values) / 1e6 for rows, values in samples.items()},
            "taken": taken._asdict(),
            "capacity": capacity_of(samples, taken),
            "lines": lines,
        }

    def _calibrated(self, samples: dict[int, list[float]], port: int, pid: int) -> Taken:
        """Measure what requests take beside the model."""
        bare_rps = 1e9 / min(fmean(values) / rows for rows, values in samples.items())
        full = self._load(port, pid, FULL * bare_rps, 100)
        now = self._batches()
        means = [fmean(values) for values in now.values()]
        alone_ns = float(np.interp(full["rows"], list(now), means)) / full["rows"]
        low = self._load(port, pid, LOW * bare_rps, 101)
        wake_ns = max(low["loop_ns"] - full["loop_ns"], 0.0) / WAKES
        # At the low load the model finds cold caches after every pause: that is in what it took there.
        floor_ns = max(low[P50] * 1e6 - low["batch_ns"] - low["loop_ns"], 0.0)
        return Taken(full["batch_ns"] / alone_ns, full["loop_ns"], wake_ns, floor_ns)

    def _batches(self) -> dict[int, list[float]]:
        """Time batches in a process of its own on the server's core: rows -> nanoseconds of each."""
        command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "benchmarks.simulator"]
        command += ["--time-batches", str(self._model.path), written(self._model)]
        found = subprocess.run(command, check=True, capture_output=True, text=True)
        return {int(rows): values for rows, values in json.loads(found.stdout).items()}

    def _load(self, port: int, pid: int, rate: float, seed: int) -> dict[str, float]:
        """Load the server; return percentiles in ms, the rows of a batch, and nanoseconds per request."""
        plan = LoadPlan(
            url=f"http://127.0.0.1:{port}/v2/models/compute/infer",
            rate=rate,
            duration_s=self._seconds,
            warmup_s=1.0,
            payloads=str(self._folder / "bodies.jsonl"),
            headers=tuple(JSON.items()),
            timeout_s=TIMEOUT_MS / 1e3,
            seed=seed,
        )
        before, threads = batches_run(port), threads_ns(pid)
        samples, facts = measure(plan)
        rows, count = [now - then for now, then in zip(batches_run(port), before, strict=True)]
        took = sorted(now - threads.get(thread, 0) for thread, now in threads_ns(pid).items())
        shape = summarise_run(plan, samples, facts).latency_ms
        if shape is None:
            raise SystemExit(f"error: no answers at {rate:.0f}/s")
        return {
            P50: shape.p50,
            P95: shape.p95,
            P99: shape.p99,
            "rows": rows / count,
            "batch_ns": took[-1] / rows,
            "loop_ns": sum(took[:-1]) / rows,
        }

    def _simulated(self, samples: dict[int, list[float]], rate: float, seed: int, taken: Taken) -> dict[str, float]:
        slower = {rows: [taken.served * value for value in values] for rows, values in samples.items()}
        limit_ns = int(self._limit_ms * 1e6)
        outcome = simulate(
            Scenario(
                arrivals_ns=offsets_ns(steady(rate, self._seconds, warmup_s=1.0), seed),
                service=measured(slower, seed),
                known={rows: median(values) for rows, values in slower.items()},
                timeout_ns=TIMEOUT_MS * 1_000_000,
                limit_ns=limit_ns,
                max_rows=LARGEST,
                window=lambda: Gain(limit_ns),
                loop_ns=taken.loop_ns,
                wake_ns=taken.wake_ns,
                shared=True,
            )
        )
        shares = ((P50, 0.5), (P95, 0.95), (P99, 0.99))
        return {name: outcome.percentile_ms(share) + taken.floor_ns / 1e6 for name, share in shares}


def capacity_of(samples: dict[int, list[float]], taken: Taken) -> float:
    """Return the requests per second that the server could answer at most."""
    return 1e9 / (min(fmean(values) / rows for rows, values in samples.items()) * taken.served + taken.loop_ns)


def time_batches(path: str, row: str) -> dict[int, list[float]]:
    """Time batches in this process: rows -> nanoseconds of each."""
    session = open_bare(path)
    inputs = {rows: feeds_of(session, row, rows) for rows in SIZES}
    found: dict[int, list[float]] = {rows: [] for rows in SIZES}
    for number in range(RUNS + 2):
        for rows in SIZES:
            began_ns = time.perf_counter_ns()
            session.run(None, inputs[rows])
            if number >= 2:
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


def batches_run(port: int) -> list[float]:
    """Return the rows and the number of all batches so far."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as reply:
        text = reply.read().decode()
    found = dict(re.findall(r"^tailcut_batch_rows_(sum|count)\{[^}]*\} (\S+)", text, re.MULTILINE))
    return [float(found["sum"]), float(found["count"])]


def render(result: dict[str, Any]) -> str:
    taken = result["taken"]
    lines = [
        "# The simulator beside the server",
        "",
        f"`{result['command'].strip()}` at commit {result['commit']} on {result['cpu']}; server and executor on one "
        "core, load on the other.",
        "",
        f"{result['model']}, one thread, an SLO of {result['limit_ms']:.0f} ms. Measured before: a batch takes "
        f"{result['batch_ms'][1]:.2f} ms at 1 row and {result['batch_ms'][LARGEST]:.2f} ms at {LARGEST}, in the server "
        f"{taken['served']:.3f} times as much; {taken['loop_ns'] / 1e3:.0f} us of the server's processor per request "
        f"beside it, {taken['wake_ns'] / 1e3:.0f} us more whenever the event loop was asleep; "
        f"{taken['floor_ns'] / 1e3:.0f} us of network and client. Capacity {result['capacity']:.0f} requests/s.",
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
