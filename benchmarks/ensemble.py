"""What a text costs a classifier whose embedding is cached: p95 with the text, and of the same classifier without it.

    python -m benchmarks.ensemble [--rounds 10] [--seconds 15] [--rate 300] [--src FOLDER] [--out benchmarks/results]

Needs ``python -m text_risk.prepare`` (in examples/). The server has core 0, the load core 1. Each round, in another
order, each in a server of its own, with the same requests for the same tickets:

- text: examples/text_risk, the encoder and the classifier in one server. Every text was asked for once before.
- plain: the classifier on the two SQL columns alone, without an encoder. The text is sent, and nothing looks at it.
- plain_again: the same once more, for what chance alone does.

Figures are the ratio of p95 within a round, and its geometric mean over the rounds with a 95 % interval by bootstrap
over the rounds. Bar: text is at most 1.2 times plain. Loads are Poisson, counted from the intended moment.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import openloop
from benchmarks.isolation import serving
from benchmarks.overhead import commit, cpu, interpreter
from tailcut.common.statistics import percentile
from tailcut.manifest.keys import to_toml
from text_risk import model
from text_risk.prepare import DATABASE
from text_risk.settings import COLUMNS, HERE, home
from text_risk.traffic import polls

NAME = "text-risk"
TEXT, PLAIN, AGAIN = "text", "plain", "plain_again"
BAR = 1.2
WARM_UP_S = 3.0
BODIES = 5000
_RESAMPLES = 4000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--rate", type=float, default=300.0)
    parser.add_argument("--src", default="", help="folder of another tailcut's sources to serve with")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if not (home() / "prepared.json").is_file():
        sys.exit("error: nothing is prepared\n\nhint: python -m text_risk.prepare (in examples/)")
    openloop.pin()
    with tempfile.TemporaryDirectory() as name:
        found = _measure(Path(name), asked.rounds, asked.seconds, asked.rate, asked.src)
    print(text := _table(found))
    if asked.out:
        asked.out.mkdir(parents=True, exist_ok=True)
        (asked.out / "ensemble.json").write_text(json.dumps(found, indent=1) + "\n")
        (asked.out / "ensemble.md").write_text(text)


def _measure(folder: Path, rounds: int, seconds: float, rate: float, src: str) -> dict[str, Any]:
    plain = _write_plain(folder / "plain")
    bodies = list(itertools.islice(polls(seed=1, new_share=0.0), BODIES))
    payloads = folder / "bodies.jsonl"
    payloads.write_bytes(b"\n".join(bodies) + b"\n")
    found: dict[str, Any] = {
        "arms": {arm: [] for arm in (TEXT, PLAIN, AGAIN)},
        "seconds": seconds,
        "rate": rate,
        "texts": len(set(bodies)),
    }
    order = random.Random(1)
    for turn in range(rounds):
        for arm in order.sample(list(found["arms"]), 3):
            with serving([HERE if arm == TEXT else plain], src) as url:
                _ask_each(f"{url}/predict/{NAME}", bodies)
                figures = _loaded(f"{url}/predict/{NAME}", payloads, seconds, rate, turn)
                if arm == TEXT:
                    figures["embedded_later"] = _embedded(url) - found["texts"]
            found["arms"][arm].append(figures)
            print(turn, arm, figures, file=sys.stderr, flush=True)
    return found


def _write_plain(folder: Path) -> Path:
    """Write the classifier without the text: the same manifest, less what the text needs."""
    folder.mkdir()
    with np.load(home() / model.FILE) as file:
        model.write_onnx(model.fit_on(file["columns"], file["left"]), folder / "plain.onnx")
    tree = tomllib.loads((HERE / "risk" / "tailcut.toml").read_text())
    for section in ("ladder", "holdout", "quality"):
        tree.pop(section, None)
    tree["python_path"] = [str(HERE.parent)]
    tree["model"]["source"] = "plain.onnx"
    tree["model"]["inputs"] = [{"name": "x", "shape": [-1, len(COLUMNS)], "columns": list(COLUMNS)}]
    tree["features"]["database"] = f"sqlite:///{home() / DATABASE}"
    tree["features"]["groups"] = [group for group in tree["features"]["groups"] if "model" not in group]
    (folder / "tailcut.toml").write_text("".join(f"{key} = {to_toml(value)}\n" for key, value in tree.items()))
    return folder


def _ask_each(url: str, bodies: Sequence[bytes]) -> None:
    """Ask for every ticket once: its embedding and its columns are cached from then on."""
    for body in dict.fromkeys(bodies):
        request = urllib.request.Request(url, body, {"content-type": "application/json"})  # noqa: S310  # our own
        with urllib.request.urlopen(request):  # noqa: S310
            pass


def _loaded(url: str, bodies: Path, seconds: float, rate: float, turn: int) -> dict[str, Any]:
    samples = openloop.run(url, bodies, seconds=seconds, warmup_s=WARM_UP_S, seed=turn, rate=rate)
    figures = openloop.figures(samples, seconds=seconds, limit_ms=25, deadline_ms=1000)
    window = (samples.intended_ns >= samples.measured_from_ns) & (samples.status == 200)
    took_ms = (samples.done_ns - samples.intended_ns)[window] / 1e6
    keys = ("requests", "failed", "refused", "p50_ms", "p99_ms", "lag_p99_ms")
    return {**{key: figures[key] for key in keys}, "p95_ms": percentile(took_ms, 0.95)}


def _embedded(url: str) -> int:
    """Read how many rows the encoder has computed."""
    with urllib.request.urlopen(f"{url}/metrics") as reply:  # noqa: S310  # our own
        lines = reply.read().decode().splitlines()
    (value,) = (line.split()[-1] for line in lines if line.startswith('tailcut_batch_rows_sum{model="minilm"}'))
    return int(float(value))


def ratio_of(measured: Sequence[float], base: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of the ratios and its 95 % interval: the rounds are drawn again."""
    logs = np.log(np.array(measured) / np.array(base))
    draw = np.random.default_rng(0)
    means = logs[draw.integers(0, len(logs), (_RESAMPLES, len(logs)))].mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high))


def _table(found: dict[str, Any]) -> str:
    arms = found["arms"]
    p95_ms = {arm: [each["p95_ms"] for each in rounds] for arm, rounds in arms.items()}
    ratios = {arm: ratio_of(p95_ms[arm], p95_ms[PLAIN]) for arm in (TEXT, AGAIN)}
    failed = sum(each["failed"] + each["refused"] for rounds in arms.values() for each in rounds)
    again = sum(each["embedded_later"] for each in arms[TEXT])
    met = ratios[TEXT][2] <= BAR and not failed
    lines = [
        "# A classifier with a text whose embedding is cached",
        "",
        f"examples/text_risk, {found['texts']} tickets, {found['rate']:g} requests/s. {len(p95_ms[TEXT])} rounds of "
        f"{found['seconds']:g} s.",
        f"At commit {commit()} on {cpu()}, Python {interpreter()}.",
        "",
        "| | p50, ms | p95, ms | p99, ms | p95 by plain's (95 % interval) |",
        "|---|---|---|---|---|",
    ]
    for arm, rounds in arms.items():
        figures = (f"{np.median([each[key] for each in rounds]):.2f}" for key in ("p50_ms", "p95_ms", "p99_ms"))
        found_ratio = "{:.2f} ({:.2f} to {:.2f})".format(*ratios[arm]) if arm in ratios else ""
        lines.append(f"| {arm} | {' | '.join(figures)} | {found_ratio} |")
    verdict = "met" if met else "missed"
    lines += [
        "",
        "Percentiles are medians over the rounds. "
        f"{'No request failed' if not failed else 'Requests failed'}; texts embedded again under load: {again}.",
        "",
        f"Bar: text by plain is at most {BAR:g}, interval included: {verdict}.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
