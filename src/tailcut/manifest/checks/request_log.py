"""Combinations of request log settings that no single key forbids and that still cannot work. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from tailcut.common.units import format_duration, format_size
from tailcut.errors import ManifestError
from tailcut.manifest.schema import Deployment

_LEAST_BYTES = 64 * 1024
_LEAST_AGE_S = 1.0


def request_log_problems(deployment: Deployment) -> Iterator[ManifestError]:
    """Yield what cannot work of the request log."""
    log = deployment.request_log
    for key, value, example in (
        ("share", log.share, '"1%"'),
        ("rotate_size", log.rotate_size_bytes, '"64MiB"'),
        ("rotate_age", log.rotate_age_s, '"1h"'),
    ):
        if not value:
            yield ManifestError(
                f"request_log.{key} is 0", hint=f"write for example {example}; an empty request_log.path is off"
            )
    if 0 < log.rotate_size_bytes < _LEAST_BYTES:
        yield ManifestError(
            f"request_log.rotate_size is {format_size(log.rotate_size_bytes)}, below {format_size(_LEAST_BYTES)}: "
            "few requests would fit into a file",
            hint='write for example "64MiB"',
        )
    if 0 < log.rotate_age_s < _LEAST_AGE_S:
        yield ManifestError(
            f"request_log.rotate_age is {format_duration(log.rotate_age_s)}, below {format_duration(_LEAST_AGE_S)}",
            hint='write for example "1h"',
        )
    if log.hash and not log.hash_key:
        yield ManifestError(
            "request_log.hash names fields, but request_log.hash_key is empty",
            hint="name a file with at least 16 random bytes, or an environment variable as 'env:NAME'",
        )
    if log.keep_bytes < 2 * log.rotate_size_bytes:
        yield ManifestError(
            f"request_log.keep is {format_size(log.keep_bytes)}, less than two files of request_log.rotate_size "
            f"({format_size(log.rotate_size_bytes)}): the log would be deleted while it is written",
            hint="raise keep, or lower rotate_size",
        )
    for name in log.hash:
        if name in log.drop:
            yield ManifestError(
                f"request_log: {name} is in hash and in drop", hint="name it in one: what is dropped has no hash"
            )
