"""The portable base of a version in the registry, as the source of a build on another machine.

The source variant is what every verdict is relative to, so it comes first. Where it cannot be opened here (a torch
module whose code is not on this machine), another fp32 variant of the base takes its place: it was compared with the
source when it was made, and an ONNX file needs no code of the user's.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

from msgspec.structs import replace

from tailcut.builder.limits import FoundBounds as Limits
from tailcut.builder.recipes import catalog
from tailcut.builder.records import Made, openable
from tailcut.builder.sources import SOURCES, Found, SourceKind, source_file
from tailcut.errors import BuildError, TailcutError
from tailcut.manifest import Manifest, TensorSpec, resolve
from tailcut.models.runtimes import open_runtime
from tailcut.models.runtimes.live import LIVE, own_types, source_of
from tailcut.models.runtimes.skops import load
from tailcut.models.tuning import without_tuned
from tailcut.registry import Registry, Version
from tailcut.registry.evidence import RecipeEvidence

_TREES = frozenset({"lightgbm", "xgboost"})


def fetch(folder: Path, manifest: Manifest, version: str = "promoted") -> list[Found]:
    """Copy the artifacts of a version's portable base out of the manifest's registry, checked.

    Args:
        folder: where the artifacts go, named as recipes name theirs.
        manifest: names the registry and the model.
        version: "promoted", "latest" or an id.

    Returns:
        those that can be opened here, the reference of every verdict first. What is known of the source model, its
        classes and limits, is this one's.

    Raises:
        ArtifactError: there is no such version, or an artifact is missing or corrupt.
        BuildError: its tensors are not the manifest's, or no variant of the base can be opened here.
    """
    model = manifest.deployment.model
    registry = Registry.of(manifest)
    record = registry.version(manifest.deployment.name, version)
    _check_tensors(record, "inputs", record.inputs, model.inputs)
    _check_tensors(record, "outputs", record.outputs, model.outputs)
    found: list[Found] = []
    why: dict[str, str] = {}
    for name in _names(record):
        kept = registry.artifact(record.model, name, record.id)
        kinds = _kinds(name, kept.runtime)
        path = folder / f"{name}{kinds[0].suffix if kinds else ''}"
        shutil.copyfile(kept.artifact, path)
        made = Made(
            name=name, runtime=kept.runtime, path=str(path), settings=without_tuned(kept.runtime, kept.settings)
        )
        if reason := _not_here(made, manifest):
            why[name] = reason
            continue
        origin = {"version": record.id, "sha256": kept.sha256, **({"instead_of": dict(why)} if why else {})}
        found.append(_found(made, record, manifest, RecipeEvidence(details={"from_registry": origin})))
    if not found:
        said = "; ".join(f"{name}: {reason}" for name, reason in why.items())
        raise BuildError(
            f"no base variant of {record.model!r} version {record.id} can be opened here: {said}",
            hint="install what is missing, or run `tailcut build` from model.source",
        )
    first, *others = found
    classes = record.variants[record.source].evidence.recipe.classes
    limits = Limits(bounds=list(record.evidence.bounds), sizes=record.evidence.table_sizes)
    return [replace(first, found=replace(first.found, classes=classes), limits=limits), *others]


def _names(record: Version) -> Iterable[str]:
    others = (name for name, each in record.variants.items() if each.base and each.sha256 and name != record.source)
    portable = {each.name for each in catalog() if each.precision == "portable"}
    return (record.source, *(name for name in others if name in portable))


def _check_tensors(record: Version, side: str, kept: tuple[TensorSpec, ...], wanted: tuple[TensorSpec, ...]) -> None:
    def plain(tensors: tuple[TensorSpec, ...]) -> list[tuple[str, str, list[int]]]:
        return [(tensor.name, tensor.datatype, list(tensor.shape)) for tensor in tensors]

    if plain(kept) != plain(wanted):
        raise BuildError(
            f"the {side} of {record.model!r} version {record.id} are {plain(kept)}, "
            f"the manifest's model.{side} are {plain(wanted)}",
            hint="build with the manifest of this version: `tailcut registry show --json` prints it",
        )


def _not_here(made: Made, manifest: Manifest) -> str:
    """Say why a variant cannot be opened on this machine; empty where it can."""
    try:
        source = source_of(manifest, made.runtime)
        open_runtime(openable(made, manifest.deployment), threads=1, source=source).close()
    except TailcutError as error:
        return error.message
    except Exception as error:  # whatever the code of the user's model raises
        return f"{manifest.deployment.model.source} raised {type(error).__name__}: {error}"
    return ""


def _found(made: Made, record: Version, manifest: Manifest, evidence: RecipeEvidence) -> Found:
    source = _source(made.name, made.runtime, manifest)
    if made.runtime == "skops":
        trees = source.trees(load(Path(made.path), own_types(manifest)))
    elif made.name == record.source and made.runtime in LIVE and source_file(manifest) is None:
        trees = source.trees(resolve(manifest.deployment.model.source, manifest)())
    else:
        trees = record.source in _TREES
    return Found(
        kind=source.kind,
        variant=made.name,
        runtime=made.runtime,
        trees=trees,
        path=made.path,
        settings=made.settings,
        found=evidence,
        live_code=record.variants[made.name].live_code,
    )


def _source(name: str, runtime: str, manifest: Manifest) -> SourceKind:
    """Find the kind of source that a variant is; kinds that share a name differ by what model.source is."""
    able = _kinds(name, runtime)
    if not able:
        raise BuildError(
            f"variant {name!r} ({runtime}) is not a source that this tailcut supports",
            hint="upgrade tailcut, or run `tailcut build` from model.source",
        )
    path = source_file(manifest)
    return next((each for each in able if path is not None and each.matches(None, path)), able[-1])


def _kinds(name: str, runtime: str) -> list[SourceKind]:
    """Return the kinds of source whose variant has this name and runtime."""
    usual = "sklearn" if runtime == "skops" else runtime
    return [each for each in SOURCES if (each.variant, each.runtime) == (name, usual)]
