"""The simulator beside the server: p50, p95 and p99 at three loads, as simulated and as measured over the socket.

    python -m benchmarks.simulator [--loads 0.3,0.6,0.8] [--rounds 3] [--seconds 20] [--out FOLDER]

The compute-bound model of `benchmarks.overload` with one thread, served by `tailcut serve` on one core; the load
generator has the other. What the simulation is told is measured, and no figure of it is fitted to latencies:

- what batches take: the runtime alone, on the server's core, anew before every run and after it, because machines that
  others share change their speed from minute to minute;
- how much longer they take in the server, whose other threads share the core's caches with them, and what a request
  takes of the event loop: the processor time of the server's threads;
- what the network and the client add: at the lowest load, where requests hardly meet.

The simulation plays the same arrivals, twice:

- **foretold**: the server's costs are those of three other loads, measured in every round before, and taken in between
  as powers of the rate, because what idles or does something else finds cold caches
  (docs/explanation/scheduling.md). What this is off by is the simulation's error and the machine's drift since then,
  which near the capacity takes a p95 up or down by a multiple;
- **at the run's speed**: the server's mean costs are those of the run itself, two numbers, so that what is left is the
  simulation's own error (how requests meet, wait, are batched and answered) and slow spells within the run.
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
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean, median
from typing import Any, NamedTuple

import numpy as np

from benchmarks import openloop
from benchmarks.compute import LARGEST, SIZES, compute_model, feeds_of, manifest, open_bare, written
from benchmarks.overhead import commit, cpu, free_port
from benchmarks.peers.bodies import JSON, body_of
from tailcut.load import LoadPlan, measure, summarise_run
from tailcut.load.arrivals import offsets_ns, steady
from tailcut.scheduler.batching_delay import Gain
from tailcut.scheduler.simulation import Scenario, simulate
from tailcut.system.cpu_time import threads_ns

RUNS = 40
OTHERS = (0.1, 0.4, 0.7)
"""Shares of what the model alone could do, at which requests are measured before. Of more, some would be refused."""

SERVER_CORE, LOAD_CORE = 0, 1
TIMEOUT_MS = 1000
P50, P95, P99 = "p50", "p95", "p99"
TOLD = ("simulated", "foretold")


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
        rates: of requests per second, rising.
        served: at each of these, a batch in the server in times of the runtime alone.
        loop_ns: of the event loop per request.
        floor_ns: of network and client.
    """

    rates: list[float]
    served: list[float]
    loop_ns: list[float]
    floor_ns: float

    def at(self, rate: float) -> tuple[float, float]:
        """Tell ``served`` and ``loop_ns`` at a rate."""
        return self._between(rate, self.served), self._between(rate, self.loop_ns)

    def _between(self, rate: float, values: list[float]) -> float:
        return float(np.exp(np.interp(np.log(rate), np.log(self.rates), np.log(values))))


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
        runs: dict[float, dict[str, list[Any]]] = {
            share: {"rates": [], "measured": [], "foretold": [], "simulated": []} for share in shares
        }
        taken: list[Taken] = []
        for seed in range(rounds):
            taken.append(self._calibrated(port, pid, seed))
            for share, line in runs.items():
                before = self._batches()
                rate = share * capacity_of(before, taken[-1])
                seen = self._load(port, pid, rate, seed)
                samples, floor_ns = together(before, self._batches()), taken[-1].floor_ns
                foretold = self._simulated(samples, rate, seed, taken[-1].at(rate), floor_ns)
                own = longer(seen, samples), seen["loop_ns"]
                told = self._simulated(samples, rate, seed, own, floor_ns)
                for name, value in (("rates", rate), ("measured", seen), ("foretold", foretold), ("simulated", told)):
                    line[name].append(value)
                all_three = f"measured {seen[P95]:.2f}, simulated {told[P95]:.2f}, foretold {foretold[P95]:.2f}"
                sys.stderr.write(f"{share:.2f} of the capacity, {rate:.0f}/s: p95 {all_three} ms\n")
        samples = self._batches()
        return {
            "command": " ".join(["python -m benchmarks.simulator", *sys.argv[1:]]),
            "commit": commit(),
            "cpu": cpu(),
            "model": self._model.label,
            "limit_ms": self._limit_ms,
            "batch_ms": {rows: median(values) / 1e6 for rows, values in samples.items()},
            "taken": [one._asdict() for one in taken],
            "lines": [{"share": share, **line} for share, line in runs.items()],
        }

    def _calibrated(self, port: int, pid: int, number: int) -> Taken:
        """Measure what requests take beside the model, at other loads than those that are simulated."""
        found: list[tuple[float, dict[str, float], float]] = []
        for place, share in enumerate(OTHERS):
            before = self._batches()
            rate = share * 1e9 / min(fmean(values) / rows for rows, values in before.items())
            run = self._load(port, pid, rate, 100 + len(OTHERS) * number + place)
            found.append((rate, run, longer(run, together(before, self._batches()))))
        low = found[0][1]
        return Taken(
            rates=[rate for rate, _, _ in found],
            served=[served for _, _, served in found],
            loop_ns=[run["loop_ns"] for _, run, _ in found],
            floor_ns=max(low[P50] * 1e6 - low["batch_ns"] * low["rows"] - low["loop_ns"], 0.0),
        )

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

    def _simulated(
        self, samples: dict[int, list[float]], rate: float, seed: int, costs: tuple[float, float], floor_ns: float
    ) -> dict[str, float]:
        served, loop_ns = costs
        slower = {rows: [served * value for value in values] for rows, values in samples.items()}
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
                loop_ns=loop_ns,
                cores=1,
            )
        )
        shares = ((P50, 0.5), (P95, 0.95), (P99, 0.99))
        return {name: outcome.percentile_ms(share) + floor_ns / 1e6 for name, share in shares}


def measured(samples: Mapping[int, Sequence[float]], seed: int) -> Callable[[int], float]:
    """Draw from measured nanoseconds by rows; between two measured sizes, in proportion.

    Args:
        samples: rows -> what batches of so many rows took; at least one of each.
    """
    generator = np.random.default_rng(seed)
    sizes = sorted(samples)
    medians = {rows: float(np.median(samples[rows])) for rows in sizes}

    def draw(rows: int) -> float:
        place = min(bisect_left(sizes, rows), len(sizes) - 1)
        above = sizes[place]
        found = float(samples[above][int(generator.integers(len(samples[above])))])
        if above == rows:
            return found
        if place == 0 or above < rows:
            return found * rows / above
        below = sizes[place - 1]
        typical = np.interp(rows, [below, above], [medians[below], medians[above]])
        return found * float(typical) / medians[above]

    return draw


def together(before: dict[int, list[float]], after: dict[int, list[float]]) -> dict[int, list[float]]:
    """Join what batches took before a run and after it."""
    return {rows: values + after[rows] for rows, values in before.items()}


def longer(run: dict[str, float], samples: dict[int, list[float]]) -> float:
    """Tell how many times as long as alone a run's batches took in the server."""
    means = {rows: fmean(values) for rows, values in samples.items()}
    return run["batch_ns"] * run["rows"] / float(np.interp(run["rows"], list(means), list(means.values())))


def capacity_of(samples: dict[int, list[float]], taken: Taken) -> float:
    """Return the requests per second that the server could answer at most."""
    return 1e9 / (min(fmean(values) / rows for rows, values in samples.items()) * taken.served[-1] + taken.loop_ns[-1])


def _before(taken: list[dict[str, Any]]) -> str:
    """What was measured at other loads, medians over the rounds, as a sentence."""
    at = [
        f"at {median([one['rates'][place] for one in taken]):.0f} requests/s a batch in the server "
        f"{median([one['served'][place] for one in taken]):.2f} times as long and "
        f"{median([one['loop_ns'][place] for one in taken]) / 1e3:.0f} us of the processor per request beside it"
        for place in range(len(OTHERS))
    ]
    floor_us = median([one["floor_ns"] for one in taken]) / 1e3
    return f"{'; '.join(at)}; {floor_us:.0f} us of network and client"


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
    lines = [
        "# The simulator beside the server",
        "",
        f"`{result['command'].strip()}` at commit {result['commit']} on {result['cpu']}; server and executor on one "
        "core, load on the other.",
        "",
        f"{result['model']}, one thread, an SLO of {result['limit_ms']:.0f} ms; alone a batch takes "
        f"{result['batch_ms'][1]:.2f} ms at 1 row and {result['batch_ms'][LARGEST]:.2f} ms at {LARGEST}. "
        f"Measured at other loads, in every round: {_before(result['taken'])}.",
        "",
        "Each cell: measured; simulated at the run's own speed; foretold from other loads.",
        "",
        "| load | rate/s | p50 in ms | p95 in ms | p99 in ms | p95 simulated off by | p95 foretold off by |",
        "|---|---|---|---|---|---|---|",
    ]
    for line in result["lines"]:
        cells = [
            "; ".join(f"{median([run[name] for run in line[kind]]):.2f}" for kind in ("measured", *TOLD))
            for name in (P50, P95, P99)
        ]
        load = f"{line['share']:.0%} | {median(line['rates']):.0f}"
        lines.append(f"| {load} | {' | '.join(cells)} | {' | '.join(_off(line, kind) for kind in TOLD)} |")
    return "\n".join(
        [
            *lines,
            "",
            "Medians over rounds, what it is off by of each round's own; in brackets the lowest and the highest, and "
            "the median without signs.",
            "",
        ]
    )


def _off(line: dict[str, Any], kind: str) -> str:
    """By how much the p95 of a kind is off: the rounds' median, lowest and highest.

    Each round has a rate and arrivals of its own, so it is compared with itself.
    """
    pairs = zip(line[kind], line["measured"], strict=True)
    each = [told[P95] / seen[P95] - 1 for told, seen in pairs]
    typical = median(abs(one) for one in each)
    return f"**{median(each):+.0%}** ({min(each):+.0%} to {max(each):+.0%}; either way {typical:.0%})"


if __name__ == "__main__":
    main()
