"""What tailcut's variants for a GPU win over torch as it is, on this machine's GPU.

    python -m benchmarks.gpu [--models small,minilm,base] [--out benchmarks/results/gpu.md]

Each recipe that can run here makes its variant as ``tailcut build`` does, without the gate; then all are opened side by
side and asked in turns, one row and eight at a time. Beside them stands the module as a pilot has it: moved to the GPU,
called, and its answer read. Its launch gaps are those that ``tailcut profile`` tells.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import gpu_models
from tailcut.builder import sources
from tailcut.builder.host_capabilities import look
from tailcut.builder.recipes import recipe
from tailcut.builder.recipes.base import Subject, Work
from tailcut.builder.records import Made
from tailcut.errors import TailcutError
from tailcut.load.machine import commit_of
from tailcut.manifest import Manifest
from tailcut.manifest.reading import read
from tailcut.profiler.layers.torch import of_torch
from tailcut.report.profile.document import layers_words
from tailcut.system.machine import package_versions

ROWS = (1, 8)
_ROUNDS, _CALLS, _MOST_S = 9, 30, 0.3
_RECIPES = ("onnx", "bf16", "torch-compile", "onnx-cuda", "fp16", "tensorrt")
_EAGER = "torch on the GPU, as it is"


def main() -> None:
    """Make the variants, ask in turns, write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(gpu_models.SHAPES))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/gpu.md"))
    options = parser.parse_args()
    import torch

    if not torch.cuda.is_available():
        sys.exit(f"error: torch {torch.__version__} finds no CUDA device here\n\nhint: run this on a machine with one")
    versions = package_versions(("torch", "onnxruntime-gpu", "tensorrt"))
    parts = [
        "# Variants for a GPU",
        f"`python -m benchmarks.gpu` at commit {commit_of(Path.cwd())} on {torch.cuda.get_device_name()}, "
        f"{', '.join(f'{name} {version}' for name, version in versions.items())}. Milliseconds from arrays on the host"
        f" to the answer on the host: medians of {_ROUNDS} rounds in turns of at most {_CALLS} calls each (lowest to"
        " highest round). Weights are of chance: what is off is the largest difference of a score (0 to 1) from the"
        " module's on the processor in FP32.",
    ]
    for name in options.models.split(","):
        os.environ[gpu_models.VARIABLE] = name
        layers, width, heads, tokens = gpu_models.shape()
        with tempfile.TemporaryDirectory() as folder:
            table = _table(Path(folder))
        parts.append(
            f"## {name}: {layers} layers, width {width}, {heads} heads, {tokens} tokens\n\n" + "\n".join(table)
        )
        options.out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(options.out.read_text(encoding="utf-8"))


def _table(folder: Path) -> list[str]:
    work = _source(folder)
    made, said = dict(work.made), {_EAGER: "what the pilot does"}
    runs, opened, ready_s = {_EAGER: _eager()}, list[Any](), dict[str, float]()
    for name in _RECIPES:
        said[name] = _make(name, work, made)
    for name, each in made.items():
        began_s = time.monotonic()
        try:
            opened.append(work.open(each))
        except TailcutError as error:
            said[name] = f"does not open: {error.message}"
            continue
        ready_s[name] = time.monotonic() - began_s
        said.setdefault(name, "on the processor, one thread")
        runs[name] = _run(opened[-1])
    took = {(name, rows): _Times() for name in runs for rows in ROWS}
    for _ in range(_ROUNDS):
        for (name, rows), times in took.items():
            times.add(lambda name=name, rows=rows: runs[name](rows))  # type: ignore[misc]
    for one in opened:
        one.close()
    lines = ["| variant | " + " | ".join(f"{rows} rows ms | times" for rows in ROWS) + " | opens in s | made |"]
    lines.append("|---" * (3 + 2 * len(ROWS)) + "|")
    for name, words in said.items():
        cells = [
            f"{took[name, rows]} | {took[_EAGER, rows].middle / took[name, rows].middle:.1f}"
            if name in runs
            else "- | -"
            for rows in ROWS
        ]
        opens = f"{ready_s[name]:.1f}" if name in ready_s else "-"
        lines.append(f"| {name} | {' | '.join(cells)} | {opens} | {words} |")
    return [*lines, "", *(f"- {line}" for line in _gaps())]


def _source(folder: Path) -> Work:
    values = {
        "name": "encoder",
        "model": {
            "source": "benchmarks.gpu_models:model",
            "inputs": [{"name": "ids", "datatype": "INT64", "shape": [-1, gpu_models.shape()[3]]}],
            "outputs": [{"name": "score", "shape": [-1]}],
        },
        "batching": {"max_rows": max(ROWS)},
    }
    manifest, holdout = Manifest(read(values, {}), folder, {}), gpu_models.holdout()
    found = sources.make(folder, manifest, holdout)
    base = Made(name=found.variant, runtime=found.runtime, path=found.path, settings=found.settings)
    return Work(manifest, folder, folder / "source", base, {base.name: base}, holdout, look())


def _make(name: str, work: Work, made: dict[str, Made]) -> str:
    """Make a variant, if that can be done here; say what came of it."""
    each, began_s = recipe(name), time.monotonic()
    why = each.why_not(Subject(kind="torch", deployment=work.manifest.deployment), work.here)
    base = next((made[one] for one in each.base if one in made), None)
    if why or base is None:
        return why or f"there is no {' or '.join(each.base)}"
    path = work.folder / f"{name}{each.suffix}"
    mine = Work(work.manifest, work.folder, path, base, made, work.selection, work.here)
    try:
        result = each.make(mine)
    except TailcutError as error:
        return f"could not be made: {error.message}"
    made[name] = Made(name=name, runtime=each.runtime, path=str(path), settings=dict(result.settings))
    took_s = time.monotonic() - began_s
    print(f"{name}: {took_s:.1f} s, {result.settings}, {result.found}", flush=True)
    off = result.found.get("difference", {}).get("max_abs")
    return f"in {took_s:.1f} s" + ("" if off is None else f", at most {off:.2g} off")


class _Times:
    """Of one variant and number of rows, by rounds."""

    def __init__(self) -> None:
        self._rounds_ms: list[float] = []

    def add(self, run: Callable[[], Any]) -> None:
        run()
        took_ms = list[float]()
        while len(took_ms) < _CALLS and sum(took_ms) < 1e3 * _MOST_S:
            began_ns = time.perf_counter_ns()
            run()
            took_ms.append((time.perf_counter_ns() - began_ns) / 1e6)
        self._rounds_ms.append(median(took_ms))

    @property
    def middle(self) -> float:
        return median(self._rounds_ms)

    def __str__(self) -> str:
        return f"{self.middle:.3g} ({min(self._rounds_ms):.3g}-{max(self._rounds_ms):.3g})"


def _eager() -> Callable[[int], Any]:
    import torch

    module, given = gpu_models.model().cuda(), _given()

    def run(rows: int) -> Any:
        with torch.inference_mode():
            return module(torch.from_numpy(given[rows]).cuda()).cpu().numpy()

    return run


def _run(runtime: Any) -> Callable[[int], Any]:
    given = _given()
    return lambda rows: runtime.run({"ids": given[rows]}, ["score"])["score"]


def _given() -> dict[int, Any]:
    return {rows: gpu_models.ids(rows) for rows in ROWS}


def _gaps() -> list[str]:
    """Say what ``tailcut profile`` says of the module on the GPU."""
    import torch

    module, lines = gpu_models.model().cuda(), []
    for rows in ROWS:
        found = of_torch(module, (torch.from_numpy(gpu_models.ids(rows)).cuda(),), {}, f"{rows} rows")
        words = layers_words(found)
        lines.append(f"{words[0]}; {words[2]}")
    return lines


if __name__ == "__main__":
    main()
