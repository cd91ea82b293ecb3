"""Two models in one server: whether one that is overloaded leaves the other its share, and what sharing costs.

    python -m benchmarks.isolation [--rounds 5] [--seconds 10] [--src FOLDER] [--out benchmarks/results]

The server has core 0, the load core 1. Both models are compute-bound and equal. Each round, in another order:

- isolation: model A is offered five times what the core can do, B a third of its share (a sixth of the core).
  Bars: 99 % of B's answers within its SLO of 4.5 of A's longest batches; A's good answers at least 85 % of its share.
- shared: both models are offered 60 % of the core, in one server.
- apart: the same load, each model in a server of its own on the same core.
- apart_again: the same once more, for what chance alone does. Bar: shared has 95 % of the good answers of apart.

A good answer is one within the SLO. Loads are Poisson, counted from the intended moment.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks import openloop
from benchmarks.compute import bare, capacity_rps, compute_model, manifest
from benchmarks.overhead import commit, cpu, interpreter
from benchmarks.peers.bodies import body_of
from benchmarks.peers.processes import SERVER_CORE

ROWS, DEADLINE_MS, BATCHES = 8, 2000, 4.5
WARM_UP_S = 3.0
NAMES = ("a", "b")
ISOLATION, SHARED, APART, AGAIN = "isolation", "shared", "apart", "apart_again"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--src", default="", help="folder of another tailcut's sources to serve with")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    openloop.pin()
    with tempfile.TemporaryDirectory() as name:
        found = _measure(Path(name), asked.rounds, asked.seconds, asked.src)
    print(text := _table(found))
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "isolation.json").write_text(json.dumps(found, indent=1) + "\n")
        (asked.out / "isolation.md").write_text(text)


def _measure(folder: Path, rounds: int, seconds: float, src: str) -> dict[str, Any]:
    model = compute_model(folder)
    times_ms = bare(model, 6.0, SERVER_CORE, tries=2)
    capacity, limit_ms = capacity_rps(times_ms), BATCHES * max(times_ms.values())
    for name in NAMES:
        (folder / "models" / name).mkdir(parents=True)
        (folder / "models" / name / model.path.name).write_bytes(model.path.read_bytes())
        said = manifest(model, rows=ROWS, limit_ms=limit_ms, deadline_ms=DEADLINE_MS)
        (folder / "models" / name / "tailcut.toml").write_text(said.replace('name = "compute"', f'name = "{name}"', 1))
    body, _ = body_of("oip", model.shape)
    bodies = openloop.write_bodies(folder / "bodies.jsonl", body)
    found: dict[str, Any] = {
        "model": model.label,
        "capacity_rps": capacity,
        "limit_ms": limit_ms,
        "arms": {arm: [] for arm in (ISOLATION, SHARED, APART, AGAIN)},
        "seconds": seconds,
    }
    order = random.Random(1)
    for turn in range(rounds):
        for arm in order.sample(list(found["arms"]), 4):
            rates = (5 * capacity, capacity / 6) if arm == ISOLATION else (0.6 * capacity, 0.6 * capacity)
            with ExitStack() as stack:
                models = folder / "models"
                if arm in (APART, AGAIN):
                    urls = [stack.enter_context(serving([models / name], src)) for name in NAMES]
                else:
                    urls = [stack.enter_context(serving([models / name for name in NAMES], src))] * 2
                figures = _loaded(urls, rates, bodies, seconds, turn, limit_ms)
            found["arms"][arm].append(figures)
            print(
                turn,
                arm,
                {name: round(each["within_limit"] * each["requests"] / seconds, 1) for name, each in figures.items()},
                file=sys.stderr,
                flush=True,
            )
    return found


def _loaded(
    urls: Sequence[str], rates: Sequence[float], bodies: Path, seconds: float, seed: int, limit_ms: float
) -> dict[str, Any]:
    """Send both loads at once; return the figures by model."""
    with ProcessPoolExecutor(2) as pool:
        runs = {
            name: pool.submit(
                openloop.run,
                f"{url}/v2/models/{name}/infer",
                bodies,
                seconds=seconds,
                warmup_s=WARM_UP_S,
                seed=10 * seed + at,
                rate=rate,
            )
            for at, (name, url, rate) in enumerate(zip(NAMES, urls, rates, strict=True))
        }
        return {
            name: openloop.figures(run.result(), seconds=seconds, limit_ms=limit_ms, deadline_ms=DEADLINE_MS)
            for name, run in runs.items()
        }


@contextmanager
def serving(manifests: Sequence[Path], src: str) -> Iterator[str]:
    """Serve models on the server's core; yield the URL once they are ready."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    flags = [part for path in manifests for part in ("-m", str(path))]
    command = ["taskset", "-c", str(SERVER_CORE), sys.executable, "-m", "tailcut", "serve", *flags]
    environment = {**os.environ, **({"PYTHONPATH": src} if src else {})}
    with subprocess.Popen(
        [*command, "--port", str(port), "--set", "server.drain=0s"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as server:
        url = f"http://127.0.0.1:{port}"
        try:
            _wait(url, server)
            yield url
        finally:
            server.terminate()


def _wait(url: str, server: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        if server.poll() is not None:
            sys.exit("error: the server ended while it was starting")
        with suppress(OSError), urllib.request.urlopen(f"{url}/v2/health/ready"):  # noqa: S310  # our own
            return
        time.sleep(0.1)
    sys.exit("error: the server was not ready after a minute")


def _table(found: dict[str, Any]) -> str:
    arms, share = found["arms"], found["capacity_rps"] / 2
    seconds = found["seconds"]

    def good_rps(arm: str, name: str) -> float:
        return float(mean(each[name]["within_limit"] * each[name]["requests"] / seconds for each in arms[arm]))

    both = {arm: sum(good_rps(arm, name) for name in NAMES) for arm in (SHARED, APART, AGAIN)}
    calm = [each["b"]["within_limit"] for each in arms[ISOLATION]]
    lines = [
        "# Two models in one server",
        "",
        f"{found['model']}; a core can do {found['capacity_rps']:.0f} rows/s, the SLO is {found['limit_ms']:.0f} ms. "
        f"{len(calm)} rounds of {seconds:g} s.",
        f"At commit {commit()} on {cpu()}, Python {interpreter()}.",
        "",
        "| | figure | bar |",
        "|---|---|---|",
        f"| B within its SLO, beside A at five times the capacity | {mean(calm):.4f} (least {min(calm):.4f}) | 0.99 |",
        f"| A's good answers, of what its share can do | {good_rps(ISOLATION, 'a') / share:.2f} | 0.85 |",
        f"| good answers in one server, of those in two | {both[SHARED] / both[APART]:.3f} | 0.95 |",
        f"| the two servers once more | {both[AGAIN] / both[APART]:.3f} | |",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
