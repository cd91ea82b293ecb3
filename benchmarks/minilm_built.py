"""MiniLM's variants as a registry holds them, opened for the benchmark."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import msgspec

from benchmarks.minilm_baselines import Run
from minilm.settings import HERE
from tailcut.errors import TailcutError
from tailcut.manifest import Manifest, load
from tailcut.models.runtimes import Runtime, open_runtime
from tailcut.models.runtimes.base import OpenSpec
from tailcut.models.runtimes.live import source_of
from tailcut.models.runtimes.pair import PairFile, Part
from tailcut.registry import Registry, Variant

OUTPUT = "embedding"


def built(root: Path, number: str, threads: int) -> tuple[dict[str, tuple[Run, str]], dict[str, str]]:
    """Open every variant of the registry but the source, which is the benchmark's first baseline.

    Returns:
        Name -> how to run it, and a note; name -> why it does not open.
    """
    manifest, registry = load(HERE / "tailcut.toml"), Registry(root)
    opened: dict[str, tuple[Run, str]] = {}
    refused: dict[str, str] = {}
    try:
        record = registry.version(manifest.deployment.name, number)
    except TailcutError as error:
        return {}, {"every variant": error.message}
    for name, each in record.variants.items():
        if each.runtime == "torch":
            continue
        try:
            run = _opened(registry, manifest, name, record.id, threads)
        except TailcutError as error:
            refused[name] = error.message
            continue
        opened[name] = run, f"refused by the gate: {each.refused}" * bool(each.refused)
    return opened, refused


def put_together(root: Path, number: str, chosen: str, threads: int) -> tuple[str, Run]:
    """Open SHORT,LONG,AT of the registry as one variant that is switched by length, as the recipe `pair` writes it."""
    short, long, at = chosen.split(",")
    manifest, registry = load(HERE / "tailcut.toml"), Registry(root)
    try:
        first, second = (registry.variant(manifest.deployment.name, name, number) for name in (short, long))
    except TailcutError as error:
        sys.exit(f"error: --pair: {error.message}")
    pair = PairFile(input="input_ids", dimension=1, at=int(at), short=_part(first), long=_part(second))
    parts = {each.name: each.artifact for each in (first, second)}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "pair.json"
        path.write_bytes(msgspec.json.encode(pair))
        opening = OpenSpec("pair", "pair", path, first.inputs, first.outputs, {}, parts)
        runtime = open_runtime(opening, threads=threads)
    return f"pair: {short} up to {at} tokens, {long} above", _run_of(runtime)


def _part(variant: Variant) -> Part:
    return Part(variant=variant.name, runtime=variant.runtime, sha256=variant.sha256, settings=dict(variant.settings))


def _opened(registry: Registry, manifest: Manifest, name: str, number: str, threads: int) -> Run:
    variant = registry.variant(manifest.deployment.name, name, number)
    return _run_of(open_runtime(variant, threads=threads, source=source_of(manifest, variant.runtime)))


def _run_of(runtime: Runtime) -> Run:
    return lambda inputs: runtime.run(inputs, [OUTPUT])[OUTPUT]
