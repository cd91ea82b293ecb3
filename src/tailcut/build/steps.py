"""The steps of a build, as they run inside a child process. Each takes a Spec and returns findings for the record."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tailcut.build import here, neighbours, race, scoring, sources
from tailcut.build.holdout import Holdout
from tailcut.build.recipes import recipe
from tailcut.build.recipes.base import Work
from tailcut.build.records import Made, Spec, manifest_of, openable
from tailcut.errors import BuildError
from tailcut.manifest import resolve
from tailcut.runtimes import Runtime, open_runtime

HOLDOUT_FILE = "holdout.npz"


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


def make_source(spec: Spec) -> dict[str, Any]:
    """Load the source model, find its kind and write its artifact; a ``Found`` as plain values."""
    found = sources.make(Path(spec.folder), manifest_of(spec), _holdout(spec))
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return plain


def make_variant(spec: Spec) -> dict[str, Any]:
    """Run the recipe ``spec.target`` on the variant ``spec.base``."""
    made = {each.name: each for each in spec.made}
    work = Work(
        manifest=manifest_of(spec),
        folder=Path(spec.folder),
        path=artifact(spec.folder, spec.target),
        base=made[spec.base],
        made=made,
        selection=_holdout(spec),
        here=here.look(),
    )
    result = recipe(spec.target).make(work)
    return {"found": dict(result.found), "settings": dict(result.settings)}


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
    "source": make_source,
    "make": make_variant,
    "score": score,
    "race": run_race,
}


def artifact(folder: str | Path, name: str) -> Path:
    """Where a recipe leaves its file."""
    return Path(folder) / f"{name}{recipe(name).suffix}"


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
