"""Variants whose rows influence each other: each row has to run alone there."""

from __future__ import annotations

from dataclasses import replace

from tailcut.common.runtime_spec import spec_of
from tailcut.errors import ArtifactError
from tailcut.models.runtimes.row_coupling import coupling_operators
from tailcut.registry import Variant


def rows_alone(variant: Variant) -> bool:
    """Return True where each row has to run alone.

    Evidence of an older build has no ``rows_alone``. Its ``merge`` is false where the build saw that a neighbour
    changes the answer of a row.
    """
    evidence = variant.evidence
    return bool(evidence.get("rows_alone", not evidence.get("merge", True)))


def with_row_coupling(variant: Variant) -> Variant:
    """Return the variant with ``rows_alone`` in its evidence; reads the artifact where the build did not record it.

    Raises:
        ArtifactError: the artifact cannot be read.
    """
    if "rows_alone" in variant.evidence:
        return variant
    alone = rows_alone(variant)
    if not alone and spec_of(variant.runtime).reads_onnx:
        try:
            alone = bool(coupling_operators((variant.artifact, *variant.parts.values())))
        except OSError as error:
            raise ArtifactError(
                f"cannot read {error.filename} of variant {variant.name!r}: {error.strerror}",
                hint="run `tailcut build` again, or promote another version",
            ) from error
    return replace(variant, evidence={**variant.evidence, "rows_alone": alone})
