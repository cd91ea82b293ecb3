"""tailcut for a long time at 70 % of capacity: does its memory grow, do its file descriptors?

    python -m benchmarks.soak [--minutes 30] [--model mlp|compute] [--out benchmarks/results]

Server on core 0, open-loop load on core 1. The MLP (`mlp`, the default) brings most requests and so shows a leak per
request soonest; its rate is bounded by what this generator can send, which on a fast machine is less than 70 %. The
compute-bound model of `benchmarks.overload` (`compute`) has its 70 % everywhere, and its batches run in a thread.
Memory is the RSS of all of the server's processes, looked at every 10 s.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import openloop
from benchmarks.compute import LARGEST, bare, compute_model, manifest
from benchmarks.mlp import BODY_FLOATS, MANIFEST, write_model
from benchmarks.overhead import commit, cpu, interpreter
from benchmarks.peers import wrk
from benchmarks.peers.__main__ import answer
from benchmarks.peers.bodies import Shape, body_of
from benchmarks.peers.catalog import TAILCUT, Task
from benchmarks.peers.measure import Contender, started
from benchmarks.peers.processes import SERVER_CORE, Server
from tailcut.common.statistics import bootstrap

SHARE = 0.7
_EVERY_S = 10.0
_LEG_S = 60.0
_REST_S = 1.0
"""After a leg, for the server to see that its connections are closed."""
_MOST_RPS = 3000.0
"""What one core of this generator sends without being late."""
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--model", choices=("mlp", "compute"), default="mlp")
    parser.add_argument("--every", type=float, default=_EVERY_S, help="seconds between two looks")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    if not wrk.is_there():
        sys.exit(f"error: {wrk.MISSING}")
    if (os.cpu_count() or 1) < 2:
        sys.exit("error: the server and the load need a core each; this machine has one")
    openloop.pin()
    result = collect(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = "soak" if arguments.model == "mlp" else f"soak_{arguments.model}"
    (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    text = render(result)
    (arguments.out / f"{name}.md").write_text(text)
    print(text)


def collect(arguments: argparse.Namespace) -> dict[str, Any]:
    """Load one server and look at it; return it as it goes to the file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task, shape = _prepared(arguments.model, folder)
        with started([TAILCUT], task, shape, answer(task, shape.row), folder) as [contender]:
            if contender.server is None:
                sys.exit(f"error: tailcut does not start: {contender.failure}")
            contender.server.thaw()
            connections = 32 if arguments.model == "mlp" else 2 * task.rows
            wrk.run(contender.url, contender.script, connections, 3)
            capacity = wrk.run(contender.url, contender.script, connections, 5)["rps"]
            bodies = openloop.write_bodies(folder / "bodies.jsonl", body_of("oip", shape)[0])
            rate = min(SHARE * capacity, _MOST_RPS)
            sys.stderr.write(f"capacity {capacity:.0f} req/s, load {rate:.0f} req/s\n")
            with Watch(contender.server, arguments.every) as watch:
                legs = _load(contender, watch, bodies, rate, arguments.minutes * 60)
    return {
        "command": " ".join(["python -m benchmarks.soak", *sys.argv[1:]]),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu(),
        "python": interpreter(),
        "model": arguments.model,
        "capacity_rps": capacity,
        "rate_rps": rate,
        "legs": legs,
        "looks": watch.looks,
        "memory": growth(watch.looks),
    }


def _prepared(model: str, folder: Path) -> tuple[Task, Shape]:
    if model == "mlp":
        row = np.array(json.loads(BODY_FLOATS)["inputs"][0]["data"], dtype=np.float32)
        (folder / "tailcut.toml").write_text(MANIFEST)
        return Task(write_model(folder / "mlp.onnx")), Shape([("x", "FP32")], row)
    compute = compute_model(folder)
    taken_ms = bare(compute, 6.0, SERVER_CORE)
    rows = LARGEST
    (folder / "tailcut.toml").write_text(manifest(compute, rows=rows, limit_ms=25 + taken_ms[rows], deadline_ms=500))
    return Task(compute.path, "compute", rows), compute.shape


def _load(contender: Contender, watch: Watch, bodies: Path, rate: float, seconds: float) -> list[dict[str, Any]]:
    """Send load in legs of a minute, each over connections of its own; after each, count what the server holds open."""
    legs: list[dict[str, Any]] = []
    end_s = time.monotonic() + seconds
    while (left_s := end_s - time.monotonic()) > 1:
        leg_s = min(left_s, _LEG_S)
        samples = openloop.run(contender.url, bodies, seconds=leg_s, warmup_s=0.0, seed=len(legs), rate=rate)
        leg = openloop.figures(samples, seconds=leg_s, limit_ms=500, deadline_ms=500)
        time.sleep(_REST_S)
        legs.append({**leg, "open_at_rest": watch.look()["descriptors"]})
        sys.stderr.write(f"{left_s - leg_s:.0f} s left; p99 {legs[-1]['p99_ms']:.1f} ms\n")
    return legs


class Watch:
    """Looks at a server's memory and descriptors from a thread of its own, while it is entered.

    Attributes:
        looks: seconds since the begin, RSS in bytes, file descriptors, threads; all processes together.
    """

    def __init__(self, server: Server, every_s: float) -> None:
        self._server, self._every_s = server, every_s
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch")
        self.looks: list[dict[str, float]] = []

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def look(self) -> dict[str, float]:
        """Look once."""
        looked = [_look(pid) for pid in self._server.pids]
        rss, descriptors, threads = (float(sum(each[place] for each in looked)) for place in range(3))
        return {"rss_bytes": rss, "descriptors": descriptors, "threads": threads}

    def _run(self) -> None:
        began_s = time.monotonic()
        while True:
            self.looks.append({"at_s": time.monotonic() - began_s, **self.look()})
            if self._end.wait(self._every_s):
                return


def _look(pid: int) -> tuple[int, int, int]:
    with suppress(OSError):
        folder = Path("/proc") / str(pid)
        resident = int((folder / "statm").read_text().split()[1]) * _PAGE_BYTES
        return resident, len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir()))
    return 0, 0, 0


def growth(looks: list[dict[str, float]]) -> dict[str, Any]:
    """Work out what memory did after the warm-up, which is the first tenth, at least a minute.

    Returns:
        warmup_s; first and last, the medians of the first and last fifth after it; growth, as a share of the first;
        slope_per_hour and its 95 % interval, as shares too: least squares, and a bootstrap over ten blocks of time,
        because looks that follow each other are alike.
    """
    warmup_s = min(max(looks[-1]["at_s"] / 10, 60.0), looks[-1]["at_s"] / 2)
    after = [look for look in looks if look["at_s"] >= warmup_s]
    fifth = max(len(after) // 5, 1)
    found: dict[str, Any] = {"warmup_s": warmup_s}
    for key in ("rss_bytes", "threads"):
        first, last = median(look[key] for look in after[:fifth]), median(look[key] for look in after[-fifth:])
        found[key] = {"first": first, "last": last, "growth": last / first - 1}
    hours = np.array([look["at_s"] / 3600 for look in after])
    share = np.array([look["rss_bytes"] for look in after]) / found["rss_bytes"]["first"]
    blocks = np.array_split(np.arange(hours.size), min(10, hours.size))

    def slope(chosen: npt.NDArray[np.float64]) -> float:
        places = np.concatenate([blocks[int(place)] for place in chosen])
        if np.ptp(hours[places]) == 0:
            return 0.0
        return float(np.polyfit(hours[places], share[places], 1)[0])

    everything = np.arange(len(blocks), dtype=np.float64)
    found["slope_per_hour"] = slope(everything)
    found["slope_interval"] = list(bootstrap(everything, slope, seed=1, resamples=2000))
    return found


def render(result: dict[str, Any]) -> str:
    """Return the result as a page of Markdown."""
    memory, legs = result["memory"], result["legs"]
    rss, threads = memory["rss_bytes"], memory["threads"]
    at_rest = [leg["open_at_rest"] for leg in legs]
    opened = at_rest[-1] - at_rest[0]
    low, high = memory["slope_interval"]
    requests = sum(leg["requests"] for leg in legs)
    failed = sum(leg["failed"] * leg["requests"] for leg in legs)
    refused = sum(leg["refused"] * leg["requests"] for leg in legs)
    p99 = [leg["p99_ms"] for leg in legs]
    lines = [
        "# A long run at 70 % of capacity",
        "",
        f"`{result['command']}` at commit {result['commit']}, {result['date']}, on {result['cpu']}, Python "
        f"{result['python']}. Model: {result['model']}. Capacity {result['capacity_rps']:.0f} req/s (closed loop); "
        f"load {result['rate_rps']:.0f} req/s ({result['rate_rps'] / result['capacity_rps']:.0%}), open loop.",
        "",
        f"{requests} requests in {result['looks'][-1]['at_s'] / 60:.1f} minutes; {failed:.0f} failed, {refused:.0f} "
        f"refused; p99 of a minute {median(p99):.1f} ms ({min(p99):.1f} to {max(p99):.1f}).",
        "",
        f"After a warm-up of {memory['warmup_s']:.0f} s:",
        "",
        "| | first fifth | last fifth | growth |",
        "|---|---|---|---|",
        f"| RSS | {rss['first'] / 2**20:.1f} MiB | {rss['last'] / 2**20:.1f} MiB | {rss['growth']:.2%} |",
        f"| threads | {threads['first']:.0f} | {threads['last']:.0f} | {threads['growth']:.0%} |",
        "",
        f"RSS slope: {memory['slope_per_hour']:.2%} of it per hour ({low:.2%} to {high:.2%}, 95 %).",
        "",
        f"File descriptors with no client connected: {at_rest[0]:.0f} after the first minute, {at_rest[-1]:.0f} at the "
        f"end, {max(at_rest):.0f} at most.",
        "",
        f"Bar: RSS grows less than 2 %, descriptors not at all: "
        f"{'met' if rss['growth'] < 0.02 and opened <= 0 else '**missed**'}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
