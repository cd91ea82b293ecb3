"""Refusal of variants that were built with another manifest or other code than this process has."""

from __future__ import annotations

from tailcut.code.digest import few
from tailcut.code.files import lacks as lacking_on_disk
from tailcut.code.loaded import LoadedCode
from tailcut.errors import ArtifactError
from tailcut.manifest import Deployment, Manifest
from tailcut.manifest.answer_settings import other_settings, other_tensors
from tailcut.models.deployment_version import is_live, opening_references, opens_with_code
from tailcut.registry import Variant


def refuse_other_model(manifest: Manifest, files: LoadedCode, variant: Variant) -> None:
    """Refuse what this process cannot serve, because its manifest or the user's code is of another build.

    Code is compared as this process has imported it, whatever its files are by now. What opening the variant imports
    is imported here, where no file has changed since the start.

    Raises:
        ArtifactError: the tensors, settings that answers depend on, or the code differ.
    """
    deployment, live = manifest.deployment, is_live(variant)
    refuse_other_tensors(deployment, variant)
    if differ := other_settings(deployment, variant.manifest, live=live):
        raise ArtifactError(
            f"{_what(variant)} it was built with another manifest than this server was started with: {few(differ)}",
            hint=_RESTART,
        )
    _refuse_other_code(manifest, files, variant)
    if (variant.code is None or opens_with_code(manifest, variant)) and (changed := files.changed()):
        raise ArtifactError(f"{_what(variant)} {few(changed)} changed since this server started", hint=_RESTART)
    files.import_also(opening_references(manifest, variant))
    _refuse_other_code(manifest, files, variant)


def _refuse_other_code(manifest: Manifest, files: LoadedCode, variant: Variant) -> None:
    live = is_live(variant)
    if variant.code is not None and (lacks := files.lacks(variant.code, live=live)):
        there = not lacking_on_disk(manifest, variant.code, live=live)
        put_back = f"restore its code with `tailcut registry code {variant.version} FOLDER`, then restart to serve it"
        raise ArtifactError(
            f"{_what(variant)} it was built with other code than this server has loaded: {few(lacks)}",
            hint=_RESTART if there else f"{put_back}; until then this server keeps the old variant",
        )


def refuse_other_tensors(deployment: Deployment, variant: Variant) -> None:
    """Refuse a variant whose inputs or outputs are not those of the manifest.

    Raises:
        ArtifactError: they differ.
    """
    if differ := other_tensors(deployment, variant.inputs, variant.outputs):
        raise ArtifactError(f"{_what(variant)} {differ}", hint=_RESTART)


_RESTART = "restart to serve it; until then this server keeps the old variant"


def _what(variant: Variant) -> str:
    return f"variant {variant.name!r} of version {variant.version} is to be served, but"
