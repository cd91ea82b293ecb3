"""Refusal of variants that were built with another manifest or other code than this process has."""

from __future__ import annotations

from tailcut.code.digest import few
from tailcut.code.loaded import LoadedCode
from tailcut.errors import ArtifactError
from tailcut.manifest import Deployment
from tailcut.manifest.answer_settings import other_settings, other_tensors
from tailcut.models.deployment_version import has_own_types, is_live
from tailcut.registry import Variant


def refuse_other_model(deployment: Deployment, files: LoadedCode, variant: Variant) -> None:
    """Refuse what this process cannot serve, because its manifest or the user's code is of another build.

    Code is compared as this process has imported it, whatever its files are by now. Of a variant that runs the user's
    own object, that code is imported where it is not yet.

    Raises:
        ArtifactError: the tensors, settings that answers depend on, or the code differ.
    """
    refuse_other_tensors(deployment, variant)
    if differ := other_settings(deployment, variant.manifest, live=is_live(variant)):
        raise ArtifactError(
            f"{_what(variant)} it was built with another manifest than this server was started with: {few(differ)}",
            hint=_RESTART,
        )
    if variant.code is None:  # built by a tailcut that did not write the code down
        if changed := files.changed():
            raise ArtifactError(f"{_what(variant)} {few(changed)} changed since this server started", hint=_RESTART)
        return
    if has_own_types(deployment, variant) and (changed := files.changed()):
        # Its types may be imported only now, as they are by now.
        raise ArtifactError(f"{_what(variant)} {few(changed)} changed since this server started", hint=_RESTART)
    live = is_live(variant)
    lacks = files.lacks(variant.code, live=live)
    if not lacks and live and deployment.pool.executor != "process":
        files.import_source()
        lacks = files.lacks(variant.code, live=live)
    if lacks:
        there = not files.disk_lacks(variant.code, live=live)
        put_back = f"restore its code with `tailcut registry code {variant.version} FOLDER`, then restart to serve it"
        raise ArtifactError(
            f"{_what(variant)} it was built with other code than this server has loaded: {few(lacks)}",
            hint=_RESTART if there else f"{put_back}; until then this server keeps the old variant",
        )
    if live and (changed := files.changed_data()):  # its source is called now, and reads them as they are
        raise ArtifactError(f"{_what(variant)} {few(changed)} changed since this server started", hint=_RESTART)


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
