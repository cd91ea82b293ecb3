"""What tailcut's variants for a GPU win over torch as it is, on this machine's GPU.

    python -m benchmarks.gpu [--models small,minilm,base] [--out benchmarks/results/gpu.md]

Each model is built with ``tailcut build`` with every recipe that can run here, so that each variant has passed the gate
or was refused by it; then all are opened side by side and asked in turns, one row and eight at a time. Beside them
stands the module as a pilot has it: moved to the GPU, called, and its answer read. Its launch gaps are those that
``tailcut profile`` tells.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import gpu_models
from tailcut.errors import TailcutError
from tailcut.ladder.machine import commit_of
from tailcut.manifest import load
from tailcut.profile.layers_torch import of_torch
from tailcut.registry import Registry
from tailcut.registry.machine import package_versions
from tailcut.report.profile_words import layers_words
from tailcut.runtimes import open_runtime
from tailcut.runtimes.live import source_of

ROWS = (1, 8)
_ROUNDS, _CALLS = 9, 30
_RECIPES = ("onnx", "bf16", "torch-compile", "onnx-cuda", "fp16", "tensorrt")
_MANIFEST = """
name = "encoder"
python_path = [{root}]
[model]
source = "benchmarks.gpu_models:model"
inputs = [{{ name = "ids", datatype = "INT64", shape = [-1, {tokens}] }}]
outputs = [{{ name = "score", shape = [-1] }}]
[holdout]
source = "benchmarks.gpu_models:holdout"
[quality]
budget = {{ auc = 0.01 }}
[build]
recipes = {recipes}
rounds = 3
round = "300ms"
[batching]
max_rows = 8
"""


def main() -> None:
    """Build, ask in turns, write the report."""
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
        f" to the answer on the host: medians of {_ROUNDS} rounds in turns of {_CALLS} calls each (lowest to highest"
        " round). Weights are of chance; labels are what the model in FP32 says.",
    ]
    for name in options.models.split(","):
        parts.append(_one(name))
        options.out.write_text("\n\n".join(parts) + "\n", encoding="utf-8")
    print(options.out.read_text(encoding="utf-8"))


def _one(name: str) -> str:
    os.environ[gpu_models.VARIABLE] = name
    layers, width, heads, tokens = gpu_models.shape()
    lines = [f"## {name}: {layers} layers, width {width}, {heads} heads, {tokens} tokens\n"]
    with tempfile.TemporaryDirectory() as root:
        folder = Path(root)
        values = {"root": json.dumps(str(Path.cwd())), "tokens": tokens, "recipes": json.dumps(_RECIPES)}
        (folder / "tailcut.toml").write_text(_MANIFEST.format(**values), encoding="utf-8")
        began_s = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "tailcut", "build", "--manifest", str(folder)],
            env={**os.environ, "NO_COLOR": "1", "COLUMNS": "160"}, check=False, capture_output=True, text=True,
        )  # fmt: skip
        took_s = time.monotonic() - began_s
        print(done.stdout, done.stderr, flush=True)
        if done.returncode not in (0, 1):
            return f"{lines[0]}\n`tailcut build` ended with exit code {done.returncode}."
        lines += _table(folder)
        lines.append(f"\n`tailcut build` took {took_s:.0f} s.")
    return "\n".join(lines)


def _table(folder: Path) -> list[str]:
    manifest = load(folder)
    registry = Registry.of(manifest)
    runs: dict[str, Callable[[int], Any]] = {"torch on the GPU, as it is": _eager()}
    said, opened = {"torch on the GPU, as it is": "the pilot's"}, list[Any]()
    for name, each in registry.version(manifest.deployment.name).variants.items():
        recipe = each.evidence.get("recipe", {})
        difference = recipe.get("difference", {}).get("max_abs")
        off = "" if difference is None else f", at most {difference:.2g} off"
        said[name] = (f"refused: {each.refused}" if each.refused else "passed") + off
        try:
            variant = registry.variant(manifest.deployment.name, name)
            opened.append(open_runtime(variant, threads=1, source=source_of(manifest, variant.runtime)))
        except TailcutError as error:
            said[name] = f"does not open: {error.message}"
            continue
        runs[name] = _run(opened[-1])
    took = {(name, rows): _Times() for name in runs for rows in ROWS}
    for _ in range(_ROUNDS):
        for (name, rows), times in took.items():
            times.add(lambda name=name, rows=rows: runs[name](rows))  # type: ignore[misc]
    for one in opened:
        one.close()
    first = next(iter(runs))
    lines = ["| variant | " + " | ".join(f"{rows} rows ms | times" for rows in ROWS) + " | gate |"]
    lines.append("|---" * (2 + 2 * len(ROWS)) + "|")
    for name, verdict in said.items():
        cells = [
            f"{took[name, rows]} | {took[first, rows].middle / took[name, rows].middle:.1f}"
            if name in runs
            else "- | -"
            for rows in ROWS
        ]
        lines.append(f"| {name} | {' | '.join(cells)} | {verdict} |")
    return [*lines, "", *(f"- {line}" for line in _gaps())]


class _Times:
    """Of one variant and number of rows, by rounds."""

    def __init__(self) -> None:
        self._rounds_ms: list[float] = []

    def add(self, run: Callable[[], Any]) -> None:
        run()
        took_ms = []
        for _ in range(_CALLS):
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
