"""tailcut beside other model servers, all of them up at once, measured in turns.

    python -m benchmarks.peers [--rounds 15] [--seconds 1] [--only tailcut,Mosec] [--out benchmarks/results]

The model is an MLP 64-256-256-1 in onnxruntime with one thread, a request one row of 64 floats. Servers run on core 0,
wrk on core 1; while one is measured the others are frozen. Rounds are many and short, because shares are taken within a
round, and a shared machine's speed changes within a minute. Each peer has an environment of its own under .peers
($PEERS_CACHE), made with pip on the first run.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.mlp import BODY_FLOATS, MANIFEST, write_model
from benchmarks.overhead import bare, commit, cpu, interpreter
from benchmarks.peers import wrk
from benchmarks.peers.bodies import Shape
from benchmarks.peers.catalog import NOOP, NOOP_BINARY, NOOP_OWN, PEERS, TAILCUT, TAILCUT_BINARY, Task
from benchmarks.peers.measure import Contender, measure, started
from benchmarks.peers.report import render

OURS = (NOOP, NOOP_OWN, TAILCUT, NOOP_BINARY, TAILCUT_BINARY)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=int, default=1, help="of each measurement; two per server and round")
    parser.add_argument("--only", default="", help="names of servers, or how they begin, separated by commas")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    if not wrk.is_there():
        sys.exit(f"error: {wrk.MISSING}")
    if (os.cpu_count() or 1) < 2:
        sys.exit("error: the server and wrk need a core each; this machine has one")
    result = collect(arguments.rounds, arguments.seconds, [one for one in arguments.only.split(",") if one])
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "peers.json").write_text(json.dumps(result, indent=1) + "\n")
    text = render(result)
    (arguments.out / "peers.md").write_text(text)
    print(text)


def collect(rounds: int, seconds: int, only: list[str]) -> dict[str, Any]:
    """Measure everything and return it as it goes to the file."""
    load_before = os.getloadavg()[0]
    row = np.array(json.loads(BODY_FLOATS)["inputs"][0]["data"], dtype=np.float32)
    bares: list[dict[str, float]] = []
    wanted = [peer for peer in (*OURS, *PEERS) if not only or any(peer.name.startswith(name) for name in only)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        task = Task(write_model(folder / "mlp.onnx"))
        (folder / "tailcut.toml").write_text(MANIFEST)

        def after_round(number: int) -> None:
            bares.append(bare(task.model))
            sys.stderr.write(f"round {number + 1}/{rounds} at {time.strftime('%H:%M:%S')}\n")

        with started(wanted, task, Shape([("x", "FP32")], row), answer(task, row), folder) as contenders:
            measure(contenders, rounds, seconds, after_round)
    return {
        "command": " ".join(["python -m benchmarks.peers", *sys.argv[1:]]),
        "commit": commit(),
        "date": time.strftime("%Y-%m-%d"),
        "cpu": cpu(),
        "python": interpreter(),
        "onnxruntime": version("onnxruntime"),
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "seconds": seconds,
        "bare": bares,
        "servers": [_described(each) for each in contenders],
    }


def answer(task: Task, row: Any) -> float:
    """Return the first number that the model says to a row; its other inputs are ones."""
    import onnxruntime

    session = onnxruntime.InferenceSession(str(task.model), providers=["CPUExecutionProvider"])
    first, *others = [each.name for each in session.get_inputs()]
    found = session.run(None, {first: row[None], **{name: np.ones_like(row[None]) for name in others}})
    return float(np.ravel(found[0])[0])


def _described(each: Contender) -> dict[str, Any]:
    return {
        "name": each.peer.name,
        "package": each.peer.package,
        "version": each.version,
        "setting": each.peer.setting,
        "failure": each.failure,
        "rounds": each.rounds,
    }


if __name__ == "__main__":
    main()
