"""The steps of a build, as they run inside a child process. Each takes a Spec and returns findings for the record."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tailcut.build import hardware, neighbours, parity, race, scoring
from tailcut.build.holdout import Holdout
from tailcut.build.records import Made, Spec, manifest_of, openable
from tailcut.core.tensors import Arrays
from tailcut.errors import BuildError
from tailcut.manifest import Manifest, resolve
from tailcut.runtimes import Runtime, open_runtime

HOLDOUT_FILE = "holdout.npz"
_CANDIDATE_ROWS = 2048


def onnx_source(manifest: Manifest) -> Path | None:
    """Path of the source model where it is an .onnx file, else None (then it is a callable)."""
    source = manifest.deployment.model.source
    return (manifest.directory / source).resolve() if source.endswith(".onnx") else None


def load_holdout(spec: Spec) -> dict[str, Any]:
    """Call holdout.source, check what it gives, and keep it for the other steps."""
    manifest = manifest_of(spec)
    reference = manifest.deployment.holdout.source
    if not reference:
        raise BuildError(
            "holdout.source is not set: no variant can be judged without labelled rows",
            hint="set it to 'package.module:callable' that returns a tailcut.build.Holdout",
        )
    holdout = resolve(reference, manifest)()
    if not isinstance(holdout, Holdout):
        raise BuildError(
            f"holdout.source {reference} gave a {type(holdout).__name__}, expected a tailcut.build.Holdout",
            hint="return Holdout(inputs={...}, labels=...)",
        )
    holdout.check(manifest.deployment.model.inputs)
    holdout.save(Path(spec.folder) / HOLDOUT_FILE)
    return {
        "rows": holdout.rows,
        "sha256": holdout.digest(),
        "slices": sorted(holdout.slices),
        "label_mean": float(holdout.labels.astype(np.float64).mean()),
    }


def make_torch(spec: Spec) -> dict[str, Any]:
    """Recipe "torch"."""
    from tailcut.build.recipes import torch_source

    manifest = manifest_of(spec)
    reference = manifest.deployment.model.source
    return torch_source.save(resolve(reference, manifest), reference, artifact(spec.folder, "torch"))


def make_onnx(spec: Spec) -> dict[str, Any]:
    """Recipe "onnx": export and check parity, or take the source's own .onnx file."""
    from tailcut.build.recipes import onnx_export

    manifest = manifest_of(spec)
    model = manifest.deployment.model
    path = artifact(spec.folder, "onnx")
    given = onnx_source(manifest)
    if given is not None:
        found = onnx_export.copy(given, model.inputs, model.outputs, path)
        _open(spec, Made(name="onnx", runtime="onnxruntime", path=str(path))).close()
        return found
    from tailcut.runtimes.torch import load_module

    holdout = _holdout(spec)
    source = _made(spec, "torch")
    module = load_module(openable(source, manifest.deployment), resolve(model.source, manifest))
    found = onnx_export.export(module, holdout, model.inputs, model.outputs, path)
    names = [tensor.name for tensor in model.outputs]
    torch_runtime = _open(spec, source)
    onnx_runtime = _open(spec, Made(name="onnx", runtime="onnxruntime", path=str(path)))

    def run(runtime: Runtime) -> Callable[[Arrays], Arrays]:
        return lambda inputs: runtime.run(inputs, names)

    compared = parity.check(run(torch_runtime), run(onnx_runtime), holdout, model.outputs)
    return {
        **found,
        "parity": {"absolute": parity.ABSOLUTE, "relative": parity.RELATIVE, "found": compared},
    }


def make_int8_dynamic(spec: Spec) -> dict[str, Any]:
    """Recipe "int8-dynamic", from the onnx variant."""
    from tailcut.build.recipes import int8_dynamic

    base = _made(spec, "onnx")
    manifest = manifest_of(spec)
    holdout = _holdout(spec)
    output = manifest.deployment.model.outputs[0].name
    rows = holdout.take(min(_CANDIDATE_ROWS, holdout.rows))
    expected = _open(spec, base).run(rows, [output])[output]

    def error_of(file: Path) -> float:
        candidate = _open(spec, Made(name="int8-dynamic", runtime="onnxruntime", path=str(file)))
        return int8_dynamic.mean_abs_error(expected, candidate.run(rows, [output])[output])

    cpu = hardware.cpu()
    return int8_dynamic.quantize(
        Path(base.path),
        artifact(spec.folder, "int8-dynamic"),
        saturates=hardware.saturates(cpu["machine"], cpu["flags"]),
        error_of=error_of,
    )


def score(spec: Spec) -> dict[str, Any]:
    """Quality of one variant on the whole holdout; the first one scored in a build is the source model."""
    manifest = manifest_of(spec)
    holdout = _holdout(spec)
    output = manifest.deployment.model.outputs[0].name
    runtime = _open(spec, _made(spec, spec.target), threads=_cores())
    found = scoring.scores(runtime, holdout, output)
    np.save(_scores_file(spec.folder, spec.target), found, allow_pickle=False)
    source = np.load(_scores_file(spec.folder, spec.made[0].name), allow_pickle=False)
    metrics = scoring.measure(holdout, found, source, manifest.deployment.quality.budget)
    evidence = {"metrics": metrics, **neighbours.measure(runtime, holdout, output)}
    if spec.target == spec.made[0].name:
        return {**evidence, "constant": scoring.constant(holdout, found)}
    return {**evidence, "agreement": scoring.agreement(source, found)}


def run_race(spec: Spec) -> dict[str, Any]:
    """Interleaved bare latency of every variant in ``spec.made``."""
    manifest = manifest_of(spec)
    threads = manifest.deployment.pool.threads
    runtimes = {made.name: _open(spec, made, threads=threads) for made in spec.made}
    found = race.run(runtimes, _holdout(spec), manifest.deployment.model.outputs[0].name)
    return {"threads": threads, "rounds": race.ROUNDS, "seed": race.SEED, "ms": found}


STEPS: dict[str, Callable[[Spec], dict[str, Any]]] = {
    "holdout": load_holdout,
    "torch": make_torch,
    "onnx": make_onnx,
    "int8-dynamic": make_int8_dynamic,
    "score": score,
    "race": run_race,
}


def artifact(folder: str | Path, name: str) -> Path:
    """Where a recipe leaves its file."""
    return Path(folder) / f"{name}.{'pt' if name == 'torch' else 'onnx'}"


def _scores_file(folder: str, name: str) -> Path:
    return Path(folder) / f"scores-{name}.npy"


def _holdout(spec: Spec) -> Holdout:
    return Holdout.load(Path(spec.folder) / HOLDOUT_FILE)


def _made(spec: Spec, name: str) -> Made:
    return next(made for made in spec.made if made.name == name)


def _open(spec: Spec, made: Made, threads: int = 1) -> Runtime:
    manifest = manifest_of(spec)
    source = resolve(manifest.deployment.model.source, manifest) if made.runtime == "torch" else None
    return open_runtime(openable(made, manifest.deployment), threads=threads, source=source)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
