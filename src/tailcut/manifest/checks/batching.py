"""Combinations in the batching section that cannot work."""

from __future__ import annotations

from collections.abc import Iterator

from tailcut.common.units import format_duration, format_share
from tailcut.errors import ManifestError
from tailcut.manifest.schema import Batching, Deployment


def batching_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield every impossible combination."""
    batching = deployment.batching
    if batching.max_rows > batching.max_queue_rows:
        yield ManifestError(
            f"batching.max_rows: {batching.max_rows} is more than batching.max_queue_rows = {batching.max_queue_rows}; "
            "a full batch could never be queued",
            hint=f"set batching.max_queue_rows to at least {batching.max_rows}",
        )
    if not 0 < batching.tenant_share <= 1:
        yield ManifestError(
            f"batching.tenant_share: {format_share(batching.tenant_share)} is not above 0% and at most 100%",
            hint='write a share of the queue, such as "50%"',
        )
    yield from _fixed(deployment, batching)


def _fixed(deployment: Deployment, batching: Batching) -> Iterator[ManifestError]:
    delay_s, timeout_s = batching.max_queue_delay_s, deployment.slo.timeout_s
    if batching.mode != "fixed":
        for name, given in (("preferred_rows", batching.preferred_rows), ("max_queue_delay", delay_s)):
            if given:
                yield ManifestError(
                    f'batching.{name} has no effect with batching.mode = "{batching.mode}"',
                    hint=f'set batching.mode = "fixed", or leave batching.{name} out',
                )
        return
    for rows in batching.preferred_rows:
        if not 0 < rows <= batching.max_rows:
            yield ManifestError(
                f"batching.preferred_rows: {rows} is not from 1 to batching.max_rows = {batching.max_rows}",
                hint="give sizes from 1 to batching.max_rows",
            )
    if delay_s >= timeout_s:
        yield ManifestError(
            f"batching.max_queue_delay: {format_duration(delay_s)} is not below slo.timeout = "
            f"{format_duration(timeout_s)}; requests would miss their deadline while they wait for a batch to fill",
            hint="lower batching.max_queue_delay to a small part of slo.timeout",
        )
