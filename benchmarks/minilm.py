"""MiniLM in every variant that was built, beside PyTorch eager and tuned onnxruntime fp32, interleaved.

    PYTHONPATH=examples python -m benchmarks.minilm [--rounds 7] [--calls 15] [--registry FOLDER] [--out FOLDER]
                                                    [--pair SHORT,LONG,AT]

`--pair` opens two variants in the pair runtime, the first up to AT tokens, also where the recipe `pair` made none
because one is nearly the best at every length.

One process, two threads per runtime. Each round measures every contender at every shape, in another order each time,
with a pause before each so that the threads of the one before have stopped spinning. A figure is the median call of a
round; ratios are taken within a round. Texts are real passages of the holdout, another one on every call.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.minilm_baselines import Run, eager, onnxruntime_candidates
from benchmarks.minilm_built import built, put_together
from benchmarks.overhead import commit, cpu, interpreter, spread
from minilm.holdout import holdout
from minilm.settings import HERE

SHAPES = ((1, 28), (1, 128), (8, 28))
"""Rows x tokens; 28 tokens is a sentence, 128 the longest that the model was trained on."""
THREADS = 2
PAUSE_S = 0.1
TEXTS = 16
COSINE_TEXTS = 200
SEP = 102
EAGER, TUNED = "PyTorch eager", "onnxruntime fp32, tuned"

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Contender:
    """Something that is timed: per shape, because the best settings may differ."""

    name: str
    runs: dict[tuple[int, int], Run]
    note: str = ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--calls", type=int, default=15, help="calls of a contender per round and shape")
    parser.add_argument("--registry", type=Path, default=HERE / ".tailcut" / "registry")
    parser.add_argument("--version", default="latest", help="of the model in the registry")
    parser.add_argument("--pair", metavar="SHORT,LONG,AT", help="measure these two as a pair as well")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    load_before = os.getloadavg()[0]
    texts = Texts()
    contenders = [Contender(name, dict.fromkeys(SHAPES, run)) for name, run in eager(THREADS).items()]
    contenders.append(tuned(texts))
    variants, refused = built(arguments.registry, arguments.version, THREADS)
    contenders += [Contender(name, dict.fromkeys(SHAPES, run), note) for name, (run, note) in variants.items()]
    if arguments.pair:
        name, run = put_together(arguments.registry, arguments.version, arguments.pair, THREADS)
        contenders.append(Contender(name, dict.fromkeys(SHAPES, run), "put together for this table"))
    timings = measure(contenders, texts, arguments.rounds, arguments.calls)
    result = {
        "command": "python -m benchmarks.minilm " + " ".join(sys.argv[1:]),
        "commit": commit(),
        "cpu": cpu(),
        "python": interpreter(),
        "versions": dict(versions()),
        "load_average": {"before": load_before, "after": os.getloadavg()[0]},
        "notes": {each.name: each.note for each in contenders if each.note},
        "not_opened": refused,
        "median_ms": timings,
        "cosine": cosines(contenders, texts),
    }
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "minilm.json").write_text(json.dumps(result, indent=1) + "\n")
    text = render(result)
    (arguments.out / "minilm.md").write_text(text)
    print(text)


class Texts:
    """Real passages, cut to the shapes."""

    def __init__(self) -> None:
        found = holdout()
        self._inputs = found.inputs
        self._lengths = found.inputs["attention_mask"].sum(axis=1)

    def batches(self, rows: int, tokens: int) -> list[Arrays]:
        """Return TEXTS batches, int64 [rows, tokens] without padding, of passages that are long enough."""
        long_enough = np.flatnonzero(self._lengths >= tokens)
        places = np.resize(long_enough, (TEXTS, rows))
        batches = []
        for chosen in places:
            ids = self._inputs["input_ids"][chosen, :tokens].copy()
            ids[:, -1] = SEP
            batches.append({"input_ids": ids, "attention_mask": np.ones_like(ids)})
        return batches

    def whole(self, count: int) -> Iterator[Arrays]:
        """Yield passages of all lengths one at a time, as a request brings them."""
        for row in range(min(count, len(self._lengths))):
            width = self._lengths[row]
            yield {name: np.ascontiguousarray(array[row : row + 1, :width]) for name, array in self._inputs.items()}


def tuned(texts: Texts) -> Contender:
    """Give onnxruntime fp32 its best chance: per shape the fastest of all exports and settings worth trying."""
    candidates = onnxruntime_candidates(THREADS)
    runs, chosen = {}, []
    for shape in SHAPES:
        trial = [Contender(name, {shape: run}) for name, run in candidates.items()]
        found = measure(trial, texts, rounds=5, calls=8, shapes=[shape], tell=False)
        best = min(candidates, key=lambda name: median(found[_cell(shape)][name]))
        runs[shape] = candidates[best]
        chosen.append(f"{_cell(shape)}: {best}")
    return Contender(TUNED, runs, f"best of {len(candidates)} ({'; '.join(chosen)})")


def measure(
    contenders: Sequence[Contender],
    texts: Texts,
    rounds: int,
    calls: int,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    tell: bool = True,
) -> dict[str, dict[str, list[float]]]:
    """Return shape -> contender -> median milliseconds of each round."""
    found: dict[str, dict[str, list[float]]] = {
        _cell(shape): {each.name: [] for each in contenders} for shape in shapes
    }
    batches = {shape: texts.batches(*shape) for shape in shapes}
    draw = random.Random(1)
    for number in range(rounds):
        for shape in shapes:
            for contender in draw.sample(contenders, len(contenders)):
                time.sleep(PAUSE_S)
                found[_cell(shape)][contender.name].append(_median_ms(contender.runs[shape], batches[shape], calls))
        if tell:
            sys.stderr.write(f"round {number + 1}/{rounds}\n")
    return found


def _median_ms(run: Run, batches: list[Arrays], calls: int) -> float:
    for batch in batches[:3]:
        run(batch)
    taken_ns = []
    for call in range(calls):
        batch = batches[call % len(batches)]
        began_ns = time.perf_counter_ns()
        run(batch)
        taken_ns.append(time.perf_counter_ns() - began_ns)
    return median(taken_ns) / 1e6


def cosines(contenders: Sequence[Contender], texts: Texts) -> dict[str, dict[str, float]]:
    """Compare every contender with PyTorch eager on passages of all lengths, one at a time."""
    reference = contenders[0].runs[SHAPES[0]]
    expected = [reference(inputs)[0] for inputs in texts.whole(COSINE_TEXTS)]
    found = {}
    for contender in contenders[1:]:
        run: Callable[[Arrays], Any] = contender.runs[SHAPES[0]]
        given = [run(inputs)[0] for inputs in texts.whole(COSINE_TEXTS)]
        cosine = [float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b))) for a, b in zip(expected, given, strict=True)]
        found[contender.name] = {"mean": float(np.mean(cosine)), "min": min(cosine), "texts": len(cosine)}
    return found


def versions() -> Iterator[tuple[str, str]]:
    """Yield the versions of what is measured, where it is installed."""
    for name in ("torch", "transformers", "onnxruntime", "openvino", "nncf", "onnx", "numpy"):
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def _cell(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"


def render(result: dict[str, Any]) -> str:
    lines = [
        "# MiniLM: PyTorch, onnxruntime and what was built",
        "",
        f"`{result['command'].strip()}` at commit {result['commit']} on {result['cpu']}, Python {result['python']}, "
        + ", ".join(f"{name} {number}" for name, number in result["versions"].items())
        + f"; load average {result['load_average']['before']:.1f} before, {result['load_average']['after']:.1f} after.",
        "",
        "Milliseconds of a call: median over rounds (least to most). Ratios are within a round; above 1 is faster.",
    ]
    for shape, timings in result["median_ms"].items():
        lines += _shape_table(shape, timings)
    lines += ["", "## Cosine to PyTorch eager, fp32", "", "| | mean | least | passages |", "|---|---|---|---|"]
    lines += [
        f"| {name} | {each['mean']:.5f} | {each['min']:.5f} | {each['texts']} |"
        for name, each in result["cosine"].items()
    ]
    notes = [f"- {name}: {note}." for name, note in result["notes"].items()]
    notes += [f"- {name} is not in the tables: {reason}." for name, reason in result["not_opened"].items()]
    return "\n".join([*lines, "", "## Notes", "", *notes, *_CAVEATS, ""])


_CAVEATS = (
    "- All runtimes share one process and two cores; the pause between them is for threads that spin on.",
    "- Rows x tokens are exact: no padding. A server pads to a multiple of 16, and adds its own path.",
)


def _shape_table(shape: str, timings: dict[str, list[float]]) -> list[str]:
    rounds = len(timings[EAGER])
    lines = [
        "",
        f"## {shape} tokens, {rounds} rounds",
        "",
        "| | ms | x eager | x tuned onnxruntime |",
        "|---|---|---|---|",
    ]
    for name, values in timings.items():
        ratios = [[a / b for a, b in zip(timings[base], values, strict=True)] for base in (EAGER, TUNED)]
        cells = [spread(values, "{:.2f}".format), *(spread(each, "{:.2f}".format) for each in ratios)]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


if __name__ == "__main__":
    main()
