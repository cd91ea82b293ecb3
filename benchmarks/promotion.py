"""What a promotion costs those who are asking meanwhile: p99 before and during switches at a steady rate.

    python -m benchmarks.promotion [--switches 10] [--rate 200] [--out benchmarks/results/promotion.md]
    python -m benchmarks.promotion --manifest examples/flight_risk --variants onnx,int8-dynamic

Without --manifest the model is an MLP 64-256-256-1 in two versions. With one, its registry is copied and its promoted
version switches between two variants. The server follows the registry; requests are sent open loop (Poisson) by
another process and timed from their intended moment. Each switch: some seconds of quiet, a promotion, and its window,
which ends 1 s after the promotion was written, or half a second after the new version answered where that is later.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import shutil
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.mlp import BODY_FLOATS, MANIFEST, write_model
from benchmarks.overhead import commit, cpu, free_port, interpreter, server

_LOAD_CORE = 1
_FOLLOW_S = 0.1
_WINDOW_S = 1.0
_AFTER_S = 0.5
_QUIET_S = 4.0
_SETTLE_S = 0.5
_RESAMPLES = 4000
_PARTS = ("before", "during")

Floats = npt.NDArray[np.float64]
Sent = tuple[float, Any, dict[str, str]]
"""When a load began, its samples, and the body of the first reply of each status that is a failure."""


class Workload(NamedTuple):
    """A deployment, the two promotions to switch between, and a request.

    Attributes:
        moves: version and variant of each.
    """

    directory: Path
    registry: Path
    name: str
    moves: list[tuple[str, str]]
    body: bytes
    label: str


class Window(NamedTuple):
    """Latencies of the requests around one switch, in ms, and how the switch went."""

    before: Floats
    during: Floats
    failed: int
    requests: int
    swap_s: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--switches", type=int, default=10)
    parser.add_argument("--rate", type=float, default=200.0)
    parser.add_argument("--manifest", type=Path)
    parser.add_argument("--variants", default="onnx,int8-dynamic", help="of --manifest")
    parser.add_argument("--onnx", type=Path, help="a model of your own, in two versions")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/promotion.md"))
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.manifest:
            made = existing(arguments.manifest, arguments.variants.split(","), Path(folder))
        else:
            made = own(arguments.onnx, Path(folder)) if arguments.onnx else mlp(Path(folder))
        load_before = os.getloadavg()[0]
        windows = measure(made, arguments.rate, arguments.switches)
    section = render(made.label, windows, arguments.rate, load_before)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    write_section(arguments.out, made.label, section)
    print(section)


# -- Workloads -----------------------------------------------------------------------------------------------------


def mlp(folder: Path) -> Workload:
    """Two versions of the small model that overhead is measured on."""
    from tailcut.manifest import load
    from tailcut.registry import NewVariant, Registry

    (folder / "tailcut.toml").write_text(MANIFEST.replace('variant = "source"', 'variant = "promoted"'))
    manifest = load(folder, environment={})
    model = manifest.deployment.model
    registry = Registry.of(manifest)
    moves = []
    for seed in (0, 1):
        path = write_model(folder / f"{seed}.onnx", seed)
        variants = [NewVariant("onnx", "onnxruntime", path, base=True)]
        made = registry.add("mlp", source="onnx", inputs=model.inputs, outputs=model.outputs, variants=variants)
        moves.append((made.id, "onnx"))
    return Workload(folder, registry.root, "mlp", moves, BODY_FLOATS, "MLP 64-256-256-1, two versions, onnxruntime")


def own(path: Path, folder: Path) -> Workload:
    """An .onnx file in two versions, which differ in a remark only."""
    import onnx
    import onnxruntime

    from tailcut.manifest import load
    from tailcut.models.example_rows import Examples
    from tailcut.models.value_limits import input_specs
    from tailcut.registry import NewVariant, Registry

    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    tensors = {
        kind: ", ".join(
            f'{{ name = "{node.name}", datatype = "{_DATATYPES[node.type]}", shape = {_shape(node.shape)} }}'
            for node in nodes
        )
        for kind, nodes in (("inputs", session.get_inputs()), ("outputs", session.get_outputs()))
    }
    del session
    (folder / "tailcut.toml").write_text(
        f'name = "own"\n[model]\nsource = "0.onnx"\ninputs = [{tensors["inputs"]}]\noutputs = [{tensors["outputs"]}]\n'
        "[batching]\nmax_rows = 8\n"
    )
    manifest = load(folder, environment={})
    model = manifest.deployment.model
    registry = Registry.of(manifest)
    graph = onnx.load(path)
    moves = []
    for number in range(2):
        graph.doc_string = f"version {number}"
        onnx.save(graph, folder / f"{number}.onnx")
        variants = [NewVariant("onnx", "onnxruntime", folder / f"{number}.onnx", base=True)]
        made = registry.add("own", source="onnx", inputs=model.inputs, outputs=model.outputs, variants=variants)
        moves.append((made.id, "onnx"))
    size_mb = path.stat().st_size / 1e6
    body = _body(model, Examples(input_specs(model)).batch(1))
    return Workload(folder, registry.root, "own", moves, body, f"{path.name} of {size_mb:.1f} MB, two versions")


_DATATYPES = {"tensor(float)": "FP32", "tensor(int64)": "INT64", "tensor(int32)": "INT32"}


def _shape(dimensions: list[Any]) -> list[int]:
    return [-1, *(each if isinstance(each, int) else -1 for each in dimensions[1:])]


def _body(model: Any, arrays: dict[str, Any]) -> bytes:
    datatypes = {tensor.name: tensor.datatype for tensor in model.inputs}
    inputs = [
        {"name": name, "shape": array.shape, "datatype": datatypes[name], "data": array.ravel().tolist()}
        for name, array in arrays.items()
    ]
    return msgspec.json.encode({"inputs": inputs})


def existing(directory: Path, variants: list[str], folder: Path) -> Workload:
    """Two variants of what a deployment has promoted, in a copy of its registry."""
    from tailcut.manifest import load
    from tailcut.models.example_rows import Examples
    from tailcut.models.value_limits import input_specs
    from tailcut.registry import Registry

    manifest = load(directory, environment=dict(os.environ))
    deployment = manifest.deployment
    copied = folder / "registry"
    shutil.copytree(Registry.of(manifest).root, copied)
    promotion = Registry(copied).promotion(deployment.name)
    if promotion is None:
        sys.exit(f"error: nothing of {deployment.name} is promoted\n\nhint: run `tailcut build`")
    arrays = Examples(input_specs(deployment.model)).batch(1)
    body = _body(deployment.model, arrays)
    moves = [(promotion.version, name) for name in variants]
    label = f"{deployment.name}, {' and '.join(variants)}"
    return Workload(directory.resolve(), copied, deployment.name, moves, body, label)


# -- Measuring -----------------------------------------------------------------------------------------------------


def measure(made: Workload, rate: float, switches: int) -> list[Window]:
    """Serve, send, switch, and cut the samples into windows."""
    from tailcut.registry import Registry

    registry = Registry(made.registry)
    registry.promote(made.name, *made.moves[0], force=True)
    port = free_port()
    settings = {
        "registry.path": made.registry,
        "serve.variant": "promoted",
        "serve.follow": f"{_FOLLOW_S * 1e3:.0f}ms",
        "server.drain": "100ms",
    }
    command = [sys.executable, "-m", "tailcut", "serve", "--manifest", str(made.directory), "--port", str(port)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    os.sched_setaffinity(0, {_LOAD_CORE})
    with server(command, port, path="/v2/health/ready"):
        duration_s = 3.0 + switches * (_QUIET_S + _WINDOW_S + _SETTLE_S + 3.0)
        with load(f"http://127.0.0.1:{port}/v2/models/{made.name}/infer", made.body, rate, duration_s) as samples:
            os.nice(5)  # checking an artifact takes the core of the load
            time.sleep(2.0)
            moments = [switch(registry, made, number, port) for number in range(1, switches + 1)]
            started_s, found, _ = samples()
    return [cut(moment, started_s, found) for moment in moments]


def switch(registry: Any, made: Workload, number: int, port: int) -> tuple[float, float]:
    """Wait, promote, wait for it; return when it was promoted and when the metadata named it (monotonic seconds)."""
    time.sleep(_QUIET_S)
    wanted = made.moves[number % 2]
    registry.promote(made.name, *wanted, force=True)
    promoted_s = time.perf_counter()
    while True:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/models/{made.name}", timeout=30) as reply:
            metadata = json.loads(reply.read())
        if metadata["versions"] == [wanted[0]] and metadata["platform"].endswith(f"_{wanted[1]}"):
            break
        if time.perf_counter() > promoted_s + 60 or metadata.get("promotion", {}).get("state") == "failed":
            raise SystemExit(f"error: the server did not switch: {metadata}")
        time.sleep(0.02)
    swapped_s = time.perf_counter()
    sys.stderr.write(f"switch {number}: {(swapped_s - promoted_s) * 1e3:.0f} ms after the promotion\n")
    time.sleep(max(promoted_s + _WINDOW_S, swapped_s + _AFTER_S) + _SETTLE_S - time.perf_counter())
    return promoted_s, swapped_s


@contextlib.contextmanager
def load(
    url: str, body: bytes, rate: float, duration_s: float
) -> Iterator[Callable[[], tuple[float, Any, dict[str, str]]]]:
    """Send from another process; yields what waits for its end and returns what was sent."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_send, args=(there, url, body, rate, duration_s), daemon=True)
    process.start()
    assert here.poll(60)
    here.recv()
    try:
        yield here.recv
    finally:
        process.terminate()
        process.join()


def _send(pipe: Any, url: str, body: bytes, rate: float, duration_s: float) -> None:
    from tailcut.load import LoadPlan, measure

    with tempfile.NamedTemporaryFile(suffix=".jsonl") as payloads:
        payloads.write(body + b"\n")
        payloads.flush()
        plan = LoadPlan(url=url, rate=rate, duration_s=duration_s, warmup_s=1.0, payloads=payloads.name, timeout_s=5.0)
        started: list[float] = []

        def note(progress: Any) -> None:
            if not started:
                started.append(time.perf_counter() - progress.elapsed_s)
                pipe.send("started")

        samples, facts = measure(plan, on_progress=note)
    pipe.send((started[0], samples, facts.bodies))


def cut(moment: tuple[float, float], started_s: float, samples: Any) -> Window:
    """Take the requests that were due in the quiet before a switch, and in its window."""
    promoted_s, swapped_s = (each - started_s for each in moment)
    due_s = samples.intended_ns / 1e9
    took_ms = (samples.done_ns - samples.intended_ns) / 1e6
    ok = samples.status == 200
    # The first half second of the quiet belongs to nobody: the switch before has its window, and time to settle.
    quiet = (due_s >= promoted_s - _QUIET_S + 0.5) & (due_s < promoted_s - 0.2)
    window = (due_s >= promoted_s) & (due_s < max(promoted_s + _WINDOW_S, swapped_s + _AFTER_S))
    both = quiet | window
    return Window(
        took_ms[quiet & ok], took_ms[window & ok], int((both & ~ok).sum()), int(both.sum()), swapped_s - promoted_s
    )


# -- Figures -------------------------------------------------------------------------------------------------------


def percentile(windows: list[Window], part: str, q: float) -> float:
    """Of all requests of a part, over all switches."""
    return float(np.percentile(np.concatenate([getattr(window, part) for window in windows]), q))


def ratio(windows: list[Window], q: float) -> float:
    """A percentile during switches by that before."""
    return percentile(windows, "during", q) / percentile(windows, "before", q)


def interval(windows: list[Window], figure: Callable[[list[Window]], float]) -> str:
    """A figure with its 95 % interval: the switches are drawn again, each with all of its requests."""
    random = np.random.default_rng(0)
    drawn = [
        figure([windows[index] for index in random.integers(0, len(windows), len(windows))]) for _ in range(_RESAMPLES)
    ]
    low, high = np.percentile(drawn, [2.5, 97.5])
    return f"{figure(windows):.2f} ({low:.2f} to {high:.2f})"


def render(label: str, windows: list[Window], rate: float, load_before: float) -> str:
    versions = ", ".join(f"{name} {version(name)}" for name in ("granian", "onnxruntime", "numpy", "uvloop"))
    swaps_ms = sorted(window.swap_s * 1e3 for window in windows)
    lines = [
        f"## {label}",
        "",
        f"`python -m benchmarks.promotion {' '.join(sys.argv[1:])}`".replace(" `", "`") + f" at commit {commit()} on "
        f"{cpu()}, Python {interpreter()}, {versions}; load average before: {load_before:.1f} (other work "
        "on the machine, if any, is in the figures).",
        "",
        f"{len(windows)} switches at {rate:g} req/s; server on one core, load on the other; registry looked at every "
        f"{_FOLLOW_S * 1e3:.0f} ms.",
        "",
        "| figure | before: no switch | during: the window of a switch | ratio |",
        "|---|---|---|---|",
    ]
    for q in (50, 95, 99):
        parts = [interval(windows, partial(percentile, part=part, q=q)) for part in _PARTS]
        lines.append(f"| p{q}, ms | {parts[0]} | {parts[1]} | {interval(windows, partial(ratio, q=q))} |")
    most = [max(float(getattr(window, part).max()) for window in windows) for part in _PARTS]
    counts = [sum(len(getattr(window, part)) for window in windows) for part in _PARTS]
    lines += [
        f"| most, ms | {most[0]:.2f} | {most[1]:.2f} | |",
        f"| requests | {counts[0]} | {counts[1]} | |",
        "",
        f"Errors: {sum(window.failed for window in windows)} of {sum(window.requests for window in windows)}. From the "
        f"promotion to the first answer of the new variant: {np.median(swaps_ms):.0f} ms ({swaps_ms[0]:.0f} to "
        f"{swaps_ms[-1]:.0f}). p99 of each window: "
        f"{', '.join(f'{np.percentile(window.during, 99):.2f}' for window in windows)} ms.",
    ]
    return "\n".join(lines) + "\n"


_HEAD = """# Promotion under load

Latency from the intended moment of each request, in milliseconds. In brackets: 95 % interval by bootstrap over the
switches. See `benchmarks/promotion.py` for what a window is.

Caveats: one machine, one run of each; with 10 windows of 200 requests the p99 of a window is its second or third
slowest request. The server has one core only, so that loading competes with serving. Both promotions of a section have
the same runtime: the first switch to a runtime that the process has not imported yet pays for its import, during which
Python's lock is held at times (longest pause seen: openvino 13 ms, torch 220 ms). Freeing a large session holds it too
(90 MB: about 15 ms, the slowest requests of that section).
"""


def write_section(path: Path, label: str, section: str) -> None:
    """Replace the section of a workload in the page, or add it."""
    page = path.read_text() if path.is_file() else _HEAD
    parts = [part for part in page.split("\n## ")[1:] if not part.startswith(f"{label}\n")]
    kept = "".join(f"\n## {part.rstrip()}\n" for part in parts)
    path.write_text(f"{_HEAD}{kept}\n{section}")


if __name__ == "__main__":
    main()
