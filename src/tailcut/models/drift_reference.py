"""What a variant's drift is judged by: the sketches that its version keeps, and the manifest's settings."""

from __future__ import annotations

import logging

from tailcut.manifest import Manifest
from tailcut.observe.drift.detector import DriftSettings
from tailcut.observe.drift.sketch import NAME, Reference, decode
from tailcut.observe.drift_sink import Watch
from tailcut.registry import Registry, Variant

log = logging.getLogger("tailcut.drift")


def watch_of(manifest: Manifest, variant: Variant) -> Watch | None:
    """Return what to watch of a variant; None with ``drift.mode = "off"``, or where there is nothing to compare with.

    Reads the registry. A version that keeps no sketches is served all the same: one line says what adds them.

    Raises:
        ArtifactError: the file with the sketches is missing, truncated or corrupt.
    """
    deployment, drift = manifest.deployment, manifest.deployment.drift
    if drift.mode == "off":
        return None
    if not variant.manifest:  # a file that was never built
        if deployment.holdout.source:
            log.info(
                "drift of %s is not watched: variant %s was not built, so no sketches of a holdout were kept; "
                '`tailcut build` keeps them, drift.mode = "off" ends this line',
                deployment.name,
                variant.name,
            )
        return None
    path = Registry.of(manifest).file(variant, NAME)
    if path is None:
        log.info(
            "drift of %s is not watched: version %s keeps no sketches of its holdout, because an earlier tailcut built "
            'it; `tailcut build` adds them, drift.mode = "off" ends this line',
            deployment.name,
            variant.version,
        )
        return None
    reference = decode(path.read_bytes())
    _check_ignored(deployment.name, drift.ignore, reference, variant.name)
    sketches = tuple(each for each in reference.of(variant.name) if each.name not in drift.ignore)
    if not sketches:
        return None
    settings = DriftSettings(
        drift.false_alarms_per_month, float(drift.min_effect), drift.psi, window_s=float(drift.window_s)
    )
    keeps_outputs = not deployment.model.postprocess
    return Watch(
        variant.name, variant.version, sketches, variant.inputs, variant.outputs, settings, keeps_outputs=keeps_outputs
    )


def _check_ignored(model: str, ignored: tuple[str, ...], reference: Reference, variant: str) -> None:
    names = [each.name for each in reference.of(variant)]
    if unknown := [name for name in ignored if name not in names]:
        log.warning(
            "drift.ignore of %s names %s, which is no column that is watched; the columns are %s",
            model,
            ", ".join(unknown),
            ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else ""),
        )
