"""The requests of a comparison: of the same files and functions that ``tailcut load`` and ``profile`` take."""

from __future__ import annotations

from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tailcut.common.json_values import UNREADABLE, decode
from tailcut.errors import LoadTestError, ManifestError, ProfileError
from tailcut.load import LoadPlan
from tailcut.load.payloads import bodies
from tailcut.manifest import Manifest, resolve
from tailcut.profiler.payload_log import read_payload_log

_JSON: msgspec.json.Decoder[Any] = msgspec.json.Decoder()


class Payload(NamedTuple):
    """One request of the pilot.

    Attributes:
        path: where it goes; empty: the pilot's path.
        raw: the body as it is sent.
        body: decoded.
    """

    path: str
    raw: bytes
    body: Any


def read_payloads(manifest: Manifest, source: str, most: int, seed: int) -> list[Payload]:
    """Read the first requests of a log, or make them.

    Args:
        manifest: its ``ladder.traffic`` counts where ``source`` is empty.
        source: a .jsonl file, with or without times, or "module:callable" of (seed).
        most: requests at most.
        seed: of payloads that are made.

    Raises:
        ManifestError: neither is given, the payloads cannot be read or made, or a body is not JSON.
    """
    traffic = manifest.deployment.ladder.traffic
    source = source or traffic
    if not source:
        raise ManifestError(
            "no payloads are given", hint="give --payloads log.jsonl, or ladder.traffic in the manifest"
        )
    if source == traffic:
        resolve(source, manifest)  # puts python_path on the import path, and says what is wrong with the reference
    file = Path(source)
    try:
        if file.is_file():
            first = [("", raw) for raw in read_payload_log(file, rate=1.0).bodies[:most]]
        else:
            made = bodies(LoadPlan(url="", payloads=source, seed=seed))
            first = [(body.path, body.content) for body in islice(made, most)]
        return [_payload(number, path, raw) for number, (path, raw) in enumerate(first, 1)]
    except (LoadTestError, ProfileError) as error:
        raise ManifestError(f"--payloads: {error.message}", hint=error.hint) from error


def _payload(number: int, path: str, raw: bytes) -> Payload:
    try:
        return Payload(path, raw, decode(_JSON, raw))
    except UNREADABLE as error:
        raise LoadTestError(
            f"the body of request {number} is not JSON: {error}", hint="write one JSON body per line"
        ) from None
