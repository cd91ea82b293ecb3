"""`tailcut simulate --measure` beside what it simulates: p50, p95 and p99 of whole deployments at three rates.

    python -m benchmarks.simulated [--only NAME,...] [--loads 0.3,0.5,0.7] [--rounds 3] [--seconds 20] [--out FOLDER]

Deployments: `examples/flight_risk` (features, caches, hooks) and `examples/flight_pipeline` (a converted Pipeline),
where they were built; and one that is made here, with a preprocess that computes 2 ms in Python and an executor that is
a process. Of each the command is run as a user would, first to learn the capacity, then in every round for the three
rates; it measures at 20 and 60 % of the capacity. Then the deployment is served on the same cores, and the same rates
are sent open loop. No figure is fitted to what is compared.

A machine that others use changes its speed between the two halves of a round: the load average stands beside the
result.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from benchmarks.overhead import commit, cpu
from tailcut.load import LoadPlan, measure, summarise_run
from tailcut.manifest.subject import find_subject
from tailcut.profiler.deployments.deployment import started
from tailcut.profiler.deployments.surroundings import surroundings

P50, P95, P99 = "p50", "p95", "p99"
EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
WARMUP_S = 4.0

OWN = """
name = "scored"
python_path = ["."]
[model]
source = "compute.onnx"
preprocess = "scored_hooks:preprocess"
inputs = [{ name = "x", shape = [-1, 64] }]
outputs = [{ name = "y", shape = [-1, 16] }]
[serve]
variant = "source"
[slo]
p95 = "100ms"
timeout = "2s"
rate = 20
[batching]
max_rows = 8
[pool]
executor = "process"
executors = 1
"""

HOOKS = '''
"""Features of a text, letter by letter: 2 ms of Python."""

import numpy as np


def preprocess(rows):
    return {"x": np.stack([_features(row["text"]) for row in rows])}


def _features(text):
    counts = [0.0] * 64
    for place, letter in enumerate(text):
        counts[(ord(letter) * 31 + place * 7) % 64] += 1.0 / (1 + place % 5)
    return np.array(counts, np.float32)
'''


class Case(NamedTuple):
    """A deployment and what it is asked: ``payloads`` empty for the manifest's own traffic."""

    name: str
    folder: Path
    payloads: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="flight_risk,flight_pipeline,scored")
    parser.add_argument("--loads", default="0.3,0.5,0.7", help="shares of the capacity")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    loads = [float(part) for part in arguments.loads.split(",")]
    found: dict[str, Any] = {
        "command": " ".join(["python", "-m", "benchmarks.simulated", *sys.argv[1:]]),
        "commit": commit(),
        "cpu": cpu(),
        "cases": [],
    }
    with tempfile.TemporaryDirectory() as name:
        for case in cases(Path(name), arguments.only.split(",")):
            found["cases"].append(compared(case, loads, arguments.rounds, arguments.seconds, Path(name)))
            sys.stderr.write(render(found))
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "simulated.json").write_text(json.dumps(found, indent=1) + "\n")
    text = render(found)
    (arguments.out / "simulated.md").write_text(text)
    sys.stdout.write(text)


def cases(folder: Path, names: list[str]) -> Iterator[Case]:
    if "flight_risk" in names:
        yield Case("flight_risk", EXAMPLES / "flight_risk", "")
    if "flight_pipeline" in names:
        yield Case("flight_pipeline", EXAMPLES / "flight_pipeline", str(_pipeline_rows(folder)))
    if "scored" in names:
        yield Case("scored", _scored(folder / "scored"), str(folder / "scored" / "texts.jsonl"))


def _pipeline_rows(folder: Path) -> Path:
    """The pilot's traffic as rows for the deployment."""
    sys.path.insert(0, str(EXAMPLES))
    from flight_pipeline.pilot import traffic

    path = folder / "rows.jsonl"
    bodies = [{"rows": body["flights"]} for body in islice(traffic(1), 1000)]
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies))
    return path


def _scored(folder: Path) -> Path:
    from benchmarks.compute import _made

    folder.mkdir()
    _made(folder)
    (folder / "tailcut.toml").write_text(OWN)
    (folder / "scored_hooks.py").write_text(HOOKS)
    draw = np.random.default_rng(1)
    texts = ["".join(map(chr, draw.integers(97, 123, int(draw.integers(4000, 8000))))) for _ in range(500)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"rows": [{"text": text}]}) + "\n" for text in texts))
    return folder


def compared(case: Case, loads: list[float], rounds: int, seconds: float, folder: Path) -> dict[str, Any]:
    capacity = _simulated(case, [1.0], folder)["assumed"]["deployed"]["capacity"]
    rates = [share * capacity for share in loads]
    runs = []
    for number in range(rounds):
        before = os.getloadavg()[0]
        told = _simulated(case, rates, folder)
        with _served(case) as plan:
            seen, sent = [], 0
            for place, rate in enumerate(rates):
                seen.append(_measured(plan, rate, seconds, 1000 + 10 * number + place, sent))
                sent += int(2 * rate * (seconds + WARMUP_S))
        runs.append(
            {"simulated": told["lines"], "deployed": told["assumed"]["deployed"], "measured": seen, "load": before}
        )
    return {"name": case.name, "capacity": capacity, "loads": loads, "rates": rates, "rounds": runs}


def _simulated(case: Case, rates: list[float], folder: Path) -> dict[str, Any]:
    out = folder / "simulated.json"
    command = [sys.executable, "-m", "tailcut", "simulate", "--manifest", str(case.folder), "--measure"]
    command += ["--rate", ",".join(f"{rate:.3f}" for rate in rates), "--json", str(out)]
    command += ["--payloads", case.payloads] if case.payloads else []
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"error: {' '.join(command)} ended with {done.returncode}")
    sys.stderr.write(done.stdout)
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@contextmanager
def _served(case: Case) -> Iterator[LoadPlan]:
    subject = find_subject([case.folder])
    manifest = subject.manifest
    plan = LoadPlan(url="", payloads=case.payloads, payload_seed=0, timeout_s=float(manifest.deployment.slo.timeout_s))
    with surroundings(manifest, _say) as environment:  # noqa: SIM117
        with started(subject, plan, environment=environment) as served:
            yield served.plan


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _measured(plan: LoadPlan, rate: float, seconds: float, seed: int, sent: int) -> dict[str, float]:
    import msgspec

    plan = msgspec.structs.replace(
        plan, rate=rate, duration_s=seconds, warmup_s=WARMUP_S, seed=seed, payload_offset=sent
    )
    samples, facts = measure(plan)
    result = summarise_run(plan, samples, facts)
    shape = result.latency_ms
    if shape is None:
        raise SystemExit(f"error: no answers at {rate:.0f}/s")
    return {P50: shape.p50, P95: shape.p95, P99: shape.p99, "failed": result.failed, "requests": result.requests}


def render(result: dict[str, Any]) -> str:
    lines = [
        "# Whole deployments beside their simulation",
        "",
        f"`{result['command']}` at commit {result['commit']} on {result['cpu']}.",
        "",
        "Each cell: measured; simulated, medians over rounds. What the p95 is off by is each round's own: the median, "
        "and in brackets the lowest and the highest.",
    ]
    for case in result["cases"]:
        rounds, served = case["rounds"], case["rounds"][0]["deployed"]
        busy = ", ".join(f"{one['load']:.1f}" for one in rounds)
        lines += [
            "",
            f"## {case['name']}",
            "",
            f"Capacity {case['capacity']:.0f}/s; {served['executors']} x {served['executor']}, {served['where']}; "
            f"load average before each round {busy}.",
            "",
            "| load | rate/s | p50 in ms | p95 in ms | p99 in ms | p95 off by |",
            "|---|---|---|---|---|---|",
        ]
        for place, (share, rate) in enumerate(zip(case["loads"], case["rates"], strict=True)):
            cells = [
                f"{median(one['measured'][place][name] for one in rounds):.2f}; "
                f"{median(one['simulated'][place][f'{name}_ms'] for one in rounds):.2f}"
                for name in (P50, P95, P99)
            ]
            off = [one["simulated"][place]["p95_ms"] / one["measured"][place][P95] - 1 for one in rounds]
            shown = f"**{median(off):+.0%}** ({min(off):+.0%} to {max(off):+.0%})"
            lines.append(f"| {share:.0%} | {rate:.0f} | {' | '.join(cells)} | {shown} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    main()
