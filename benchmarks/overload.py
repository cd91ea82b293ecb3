"""A compute-bound model under open-loop load: at 80 % of capacity, in bursts, and far beyond it; peers beside tailcut.

    python -m benchmarks.overload [--rounds 3] [--seconds 20] [--overload-seconds 15] [--only tailcut,Mosec]
                                  [--skip-idle] [--tokens 32] [--rows 8] [--out benchmarks/results]

Servers run on core 0, load on core 1. Capacity is what the bare runtime does alone on core 0 at its best batch size,
which need not be the largest that a server may make; it is measured anew before every run, because machines that others
share change their speed from minute to minute, and at four fifths of the capacity a tenth is the difference between
calm and collapse. In each round every server is started anew, loaded, and stopped, so that none inherits another's
queue. Peers take part where `make bench-peers` has made their environments. `--skip-idle` leaves out the comparison of
batching auto and off.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from math import ceil
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from benchmarks import openloop
from benchmarks.compute import LARGEST, SIZES, TOKENS, Compute, bare, capacity_rps, compute_model, manifest
from benchmarks.mlp import BODY_FLOATS, MANIFEST, write_model
from benchmarks.overhead import commit, cpu, interpreter
from benchmarks.overload_report import render
from benchmarks.peers import wrk
from benchmarks.peers.__main__ import answer
from benchmarks.peers.bodies import Shape, body_of
from benchmarks.peers.catalog import PEERS, TAILCUT, TAILCUT_BINARY, Peer, Task
from benchmarks.peers.measure import Contender, started
from benchmarks.peers.processes import SERVER_CORE
from tailcut.common.statistics import bootstrap

DEADLINE_MS = 500
SLACK_MS = 25.0
USUAL, BEYOND = 0.8, 3.0
_WARM_S = 3.0
_CLOSED_WARM_S = 5
_BARE_S = 4.0
_SETTLE_S = 2.0
"""Between two runs of a server, for it to work off what it still has."""
_IDLE_ROUNDS = 10
_WIDE_BATCHES = 5
"""Of the deadline where none shall be refused: who comes waits for a batch that runs, a full one, and its own."""
_CLOSED_BATCHES = 100
"""Of the closed loop: the batch that its end cuts off, which is not counted, is half a percent of so many."""
_CLOSED_PIECES = 3
"""Closed loops of one server, each between two runs of the bare runtime; the median counts. A shared machine's speed
changes by some percent within half a minute, which a single pair of runs takes for the server's doing."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=20, help="of each run at 80 %% of capacity")
    parser.add_argument("--overload-seconds", type=int, default=15, help="of each run at 3x capacity")
    parser.add_argument("--only", default="", help="names of servers, or how they begin, separated by commas")
    parser.add_argument("--skip-idle", action="store_true")
    parser.add_argument("--idle-rounds", type=int, default=_IDLE_ROUNDS)
    parser.add_argument("--tokens", type=int, default=TOKENS, help="of a text: the more, the fewer rows are capacity")
    parser.add_argument("--rows", type=int, default=LARGEST, help="largest batch; the SLO is 25 ms and one of these")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    if not wrk.is_there():
        sys.exit(f"error: {wrk.MISSING}")
    if (os.cpu_count() or 1) < 2:
        sys.exit("error: the server and the load need a core each; this machine has one")
    openloop.pin()
    result = collect(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    name = "overload" if arguments.tokens == TOKENS else f"overload_{arguments.tokens}_tokens"
    name += "" if arguments.rows == LARGEST else f"_{arguments.rows}_rows"
    (arguments.out / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
    text = render(result)
    (arguments.out / f"{name}.md").write_text(text)
    print(text)


def collect(arguments: argparse.Namespace) -> dict[str, Any]:
    """Measure everything and return it as it goes to the file."""
    load_before = os.getloadavg()[0]
    only = [one for one in arguments.only.split(",") if one]
    peers = [peer for peer in (TAILCUT, *PEERS) if not only or any(peer.name.startswith(name) for name in only)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = compute_model(folder, arguments.tokens)
        rows = arguments.rows
        sizes_ms = bare(
            model, 18.0, SERVER_CORE, tries=3, sizes=sorted({rows, *(size for size in SIZES if size < rows)})
        )
        capacity = capacity_rps(sizes_ms)
        limit_ms, wide_ms = limits_ms(sizes_ms[rows])
        if limit_ms >= DEADLINE_MS:
            sys.exit(
                f"error: 25 ms and a batch of {rows} rows are {limit_ms:.0f} ms, but the deadline is {DEADLINE_MS} ms;"
                " give fewer --rows or --tokens"
            )
        (folder / "tailcut.toml").write_text(manifest(model, rows=rows, limit_ms=limit_ms, deadline_ms=DEADLINE_MS))
        wide = folder / "wide"
        wide.mkdir()
        shutil.copy(model.path, wide / model.path.name)
        (wide / "tailcut.toml").write_text(manifest(model, rows=rows, limit_ms=wide_ms, deadline_ms=wide_ms))
        sys.stderr.write(f"{model.label}: {capacity:.0f} rows/s, limit {limit_ms:.0f} ms\n")
        task = Task(model.path, "compute", rows, True, DEADLINE_MS, DEADLINE_MS)
        bench = Bench(model, task, folder, sizes_ms, arguments.seconds, arguments.overload_seconds)
        bench.run(peers, arguments.rounds)
        idle = [] if arguments.skip_idle else idle_differences(folder, arguments.idle_rounds)
    return {
        "command": " ".join(["python -m benchmarks.overload", *sys.argv[1:]]),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu(),
        "python": interpreter(),
        "onnxruntime": version("onnxruntime"),
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "model": model.label,
        "bare_ms": sizes_ms,
        "rows": rows,
        "best_rows": bench.best,
        "capacity_rps": capacity,
        "limit_ms": limit_ms,
        "deadline_ms": DEADLINE_MS,
        "wide_ms": wide_ms,
        "closed_warm_s": _CLOSED_WARM_S,
        "closed_pieces": _CLOSED_PIECES,
        "servers": bench.found,
        "idle": _idle_summary(idle),
    }


class Bench:
    """One model, measured behind many servers.

    Attributes:
        best: size at which the bare runtime does most.
        found: by server: its version, why it failed where it did, and one entry per round.
    """

    def __init__(
        self, model: Compute, task: Task, folder: Path, sizes_ms: dict[int, float], usual_s: int, beyond_s: int
    ) -> None:
        self._model, self._task, self._folder = model, task, folder
        self.best = min(sizes_ms, key=lambda size: sizes_ms[size] / size)
        self._limit_ms, self._wide_ms = limits_ms(sizes_ms[task.rows])
        self._usual_s, self._beyond_s = usual_s, beyond_s
        self._closed_s = max(ceil(_CLOSED_BATCHES * sizes_ms[task.rows] / 1000), usual_s // 4, 2)
        self._expected = answer(task, model.shape.row)
        self.found: dict[str, dict[str, Any]] = {}

    def run(self, peers: Sequence[Peer], rounds: int) -> None:
        """Measure every peer once in each round, in another order each time."""
        draw = random.Random(1)
        self.found = {
            peer.name: {"version": "", "setting": peer.setting, "failure": "", "rounds": []} for peer in peers
        }
        for number in range(rounds):
            for peer in draw.sample(list(peers), len(peers)):
                entry = self.found[peer.name]
                if not entry["failure"]:
                    self._turn(peer, entry, seed=number + 1)
            sys.stderr.write(f"round {number + 1}/{rounds} at {time.strftime('%H:%M:%S')}\n")

    def _turn(self, peer: Peer, entry: dict[str, Any], seed: int) -> None:
        shape = self._model.shape
        wide = self._wide(peer)
        with started([peer], self._task, shape, self._expected, self._folder, install=False) as [contender]:
            entry["version"], entry["failure"] = contender.version, contender.failure
            if contender.server is None:
                return
            contender.server.thaw()
            seen = self._loaded(contender, seed)
        entry["rounds"].append({**seen, **wide})

    def _wide(self, peer: Peer) -> dict[str, Any]:
        """The closed loop where no SLO has batches cut: what a server does at its best batch size."""
        folder = self._folder / "wide"
        # A manifest is looked for beside its model.
        model = folder / self._task.model.name
        task = replace(self._task, model=model, latency_ms=self._wide_ms, deadline_ms=self._wide_ms)
        forms = {"wide": peer}
        if peer is TAILCUT:
            forms["wide_binary"] = TAILCUT_BINARY
        found: dict[str, Any] = {}
        for key, form in forms.items():
            with started([form], task, self._model.shape, self._expected, folder, install=False) as [contender]:
                if contender.server is None:
                    continue
                contender.server.thaw()
                wrk.run(contender.url, contender.script, 1, 2)
                # A batch that runs, and a full one that waits for it; warm like the open loops are.
                connections = 2 * self._task.rows
                wrk.run(contender.url, contender.script, connections, _CLOSED_WARM_S)
                pieces = self._beside_bare(contender, connections)
                rps, bare_rps = sorted(pieces, key=lambda piece: piece[0] / piece[1])[_CLOSED_PIECES // 2]
                found |= {f"{key}_rps": rps, f"{key}_bare_rps": bare_rps, f"{key}_pieces": pieces}
        return found

    def _beside_bare(self, contender: Contender, connections: int) -> list[tuple[float, float]]:
        """Return what a server answers per second, and the bare runtime right before and after, piece by piece."""
        pieces: list[tuple[float, float]] = []
        before = self._capacity()
        for _ in range(_CLOSED_PIECES):
            closed = self._closed(contender, connections)
            after = self._capacity()
            pieces.append((closed["rps"], (before + after) / 2))
            before = after
        return pieces

    def _closed(self, contender: Contender, connections: int) -> dict[str, float]:
        return wrk.run(contender.url, contender.script, connections, self._closed_s)

    def _loaded(self, contender: Contender, seed: int) -> dict[str, Any]:
        body, _ = body_of(contender.peer.form, self._model.shape)
        bodies = openloop.write_bodies(self._folder / "bodies.jsonl", body)
        wrk.run(contender.url, contender.script, 1, 2)
        usual, beyond = float(self._usual_s), float(self._beyond_s)

        def judged(seconds: float, share: float, *, bursts: bool = False) -> dict[str, Any]:
            capacity = self._capacity()
            rate, trace = share * capacity, ""
            if bursts:
                trace = str(openloop.write_bursts(self._folder / "bursts.txt", rate, _WARM_S + seconds, seed))
            samples = openloop.run(
                contender.url,
                bodies,
                seconds=seconds,
                warmup_s=_WARM_S,
                seed=seed,
                rate=None if bursts else rate,
                trace=trace,
            )
            time.sleep(_SETTLE_S)
            found = openloop.figures(samples, seconds=seconds, limit_ms=self._limit_ms, deadline_ms=DEADLINE_MS)
            ideals = openloop.ideals_within(samples, capacity_rps=capacity, limit_ms=self._limit_ms)
            return {**found, "ideal_within": ideals[0], "best_within": ideals[1], "capacity_rps": capacity}

        before = self._capacity()
        # So many that one and a half batches are always there; where that takes longer than the SLO, some are refused.
        closed = self._closed(contender, self._task.rows * 3 // 2)
        bare_rps = (before + self._capacity()) / 2
        poisson, bursts = judged(usual, USUAL), judged(usual, USUAL, bursts=True)
        overload = judged(beyond, BEYOND)
        return {
            "closed_rps": closed["rps"],
            "closed_errors": closed["errors"],
            "bare_rps": bare_rps,
            "poisson": poisson,
            "bursts": bursts,
            "overload": overload,
        }

    def _capacity(self) -> float:
        """What the bare runtime does now, beside a server that has nothing to do."""
        return capacity_rps(bare(self._model, _BARE_S, SERVER_CORE, sizes=(self.best,)))


def limits_ms(batch_ms: float) -> tuple[float, int]:
    """Return the SLO's limit for a batch of the largest size, and a deadline that no such batch misses."""
    return SLACK_MS + batch_ms, max(DEADLINE_MS, ceil(_WIDE_BATCHES * batch_ms))


def idle_differences(folder: Path, rounds: int, seconds: int = 3) -> list[dict[str, float]]:
    """Return, per round, the p50 at 1 connection of tailcut with batching auto and with batching off, microseconds.

    Every round has processes of its own: each has luck of its own with its memory, some microseconds of it, and that of
    one pair would be in all rounds.
    """
    row = np.array(json.loads(BODY_FLOATS)["inputs"][0]["data"], dtype=np.float32)
    shape = Shape([("x", "FP32")], row)
    tasks: dict[str, Task] = {}
    for mode in ("auto", "off"):
        own = folder / mode
        own.mkdir()
        tasks[mode] = Task(write_model(own / "mlp.onnx"))
        (own / "tailcut.toml").write_text(f'{MANIFEST}[batching]\nmode = "{mode}"\n')
    return [_idle_pair(folder, tasks, shape, number, seconds) for number in range(rounds)]


def _idle_pair(folder: Path, tasks: dict[str, Task], shape: Shape, number: int, seconds: int) -> dict[str, float]:
    order = ("auto", "off") if number % 2 == 0 else ("off", "auto")
    with ExitStack() as stack:
        running = {}
        for mode in order:
            peer, task = replace(TAILCUT, name=f"batching {mode}"), tasks[mode]
            [running[mode]] = stack.enter_context(started([peer], task, shape, answer(task, shape.row), folder / mode))
            if running[mode].server is None:
                sys.exit(f"error: tailcut with batching {mode} does not start: {running[mode].failure}")
        return {mode: _idle_p50_us(running[mode], seconds) for mode in order}


def _idle_p50_us(contender: Contender, seconds: int) -> float:
    assert contender.server is not None
    contender.server.thaw()
    wrk.run(contender.url, contender.script, 1, 1)
    figures = wrk.run(contender.url, contender.script, 1, seconds)
    contender.server.freeze()
    return figures["p50_us"]


def _idle_summary(rounds: list[dict[str, float]]) -> dict[str, Any]:
    if not rounds:
        return {}
    differences = [each["auto"] - each["off"] for each in rounds]
    low, high = bootstrap(differences, lambda values: float(np.mean(values)), seed=1, resamples=10_000)
    return {"rounds": rounds, "difference_us": median(differences), "interval_us": [low, high]}


if __name__ == "__main__":
    main()
