"""What is looked at before a build runs anything: a wrong name in the manifest must not cost minutes first."""

from __future__ import annotations

from tailcut.builder import sources
from tailcut.builder.holdouts import files
from tailcut.builder.plan import check_names
from tailcut.errors import ManifestError
from tailcut.manifest import Manifest, resolve


def check(manifest: Manifest, *, from_registry: str = "") -> None:
    """Check names and paths, without importing anything of the user's.

    Args:
        from_registry: the version that the build starts from; ``model.source`` is then not needed.

    Raises:
        ManifestError: an unknown recipe, no holdout, or a file that is not there.
    """
    check_names(manifest.deployment.build.recipes)
    check_holdout(manifest)
    if not from_registry:
        sources.check_path(manifest)


def check_holdout(manifest: Manifest) -> None:
    """Check that there is a holdout.

    Raises:
        ManifestError: it is not set, or its file is not there.
    """
    reference = manifest.deployment.holdout.source
    if not reference:
        raise ManifestError(
            "holdout.source is not set: judging variants needs rows that training did not see",
            hint="write a function that returns tailcut.build.Holdout(inputs={...}, labels=...) and name it, "
            '[holdout] source = "my_model:holdout", or name a .parquet, .csv or .npz file; docs/how-to/build.md has '
            "a whole example",
        )
    if files.is_file(reference):
        files.check_path(manifest)


def import_all(manifest: Manifest, *, from_registry: str = "") -> None:
    """Import what the build will call, and call none of it.

    Raises:
        ManifestError: a reference cannot be imported.
    """
    deployment = manifest.deployment
    model = deployment.model
    references = [model.preprocess, model.postprocess, deployment.build.train, *deployment.quality.metrics.values()]
    if not from_registry and sources.source_file(manifest) is None:
        references.append(model.source)
    if not files.is_file(deployment.holdout.source):
        references.append(deployment.holdout.source)
    for reference in references:
        if reference:
            resolve(reference, manifest)
