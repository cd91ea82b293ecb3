"""Warnings for the operator about a variant that is served: where it was measured, and what code it was built with."""

from __future__ import annotations

import logging

from tailcut.code.digest import few
from tailcut.code.loaded import LoadedCode
from tailcut.manifest import Deployment
from tailcut.manifest.answer_settings import other_settings
from tailcut.models.deployment_version import is_live
from tailcut.registry import Variant
from tailcut.serving.deployment_loader import Opened
from tailcut.serving.feature_verdict import build_command

log = logging.getLogger("tailcut.server")


def tell_code(deployment: Deployment, variant: Variant, files: LoadedCode) -> None:
    """Tell the operator where a variant is served with another manifest or code than it was built and judged with.

    Args:
        files: the code that this process has loaded.
    """
    if differ := other_settings(deployment, variant.manifest, live=is_live(variant)):
        log.warning(
            "variant %s of version %s was built with another manifest than the served one: %s; cached answers are kept "
            "apart. `tailcut build` judges it with this manifest",
            variant.name,
            variant.version,
            few(differ),
        )
    if variant.code is None:
        return
    if lacks := files.lacks(variant.code, live=is_live(variant)):
        log.warning(
            "variant %s of version %s was built with other code than the served code: %s; cached answers are kept "
            "apart. "
            "`tailcut build` judges it with this code, `tailcut registry code %s FOLDER` writes out the other",
            variant.name,
            variant.version,
            few(lacks),
            variant.version,
        )


def tell_trust(variant: Variant) -> None:
    """Tell the operator where a variant's speed was measured on other hardware."""
    if variant.trust.level == "remeasure":
        log.warning(
            "variant %s of version %s is served, but its speed was measured on another machine: %s; "
            "`tailcut build --from-registry` measures it here",
            variant.name,
            variant.version,
            variant.trust.reason,
        )


def tell_unjudged(deployment: Deployment, variant: Variant, why: str) -> None:
    """Tell the operator where a variant gets its features from another version of a model than it was judged with."""
    log.warning(
        "variant %s of version %s is served unjudged: %s; `%s` judges it",
        variant.name,
        variant.version,
        why,
        build_command(deployment),
        extra={"model": deployment.name},
    )


def tell_ready(name: str, opened: Opened, took_s: float, where: str) -> None:
    """Tell the operator what is served from now on, and how.

    Args:
        where: that it is reached at, to follow "is ready".
    """
    batch_ms = {rows: round(ns / 1e6, 3) for rows, ns in opened.warm_up_ns.items()}
    log.info(
        "%s is ready%s after %.1f s: variant %s (%s, version %s), %s executor (%s), %s%s%s",
        name,
        where,
        took_s,
        opened.variant.name,
        opened.variant.runtime,
        opened.variant.version,
        opened.executor,
        opened.executor_reason,
        f"ms per batch of rows {batch_ms}" if batch_ms else "not warmed up: the first request warms it up",
        _sharing(opened),
        f"; refused by the gate: {opened.variant.refused}" if opened.variant.refused else "",
    )


def _sharing(opened: Opened) -> str:
    if opened.rows_alone:
        return ", each row runs alone: other rows in its batch would change its answer"
    return "" if opened.merges else ", requests do not share batches"
