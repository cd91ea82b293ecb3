"""The user's side of a tiny ladder: features, traffic and set-up, as a manifest names them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from tailcut.manifest import Manifest


def features(keys: list[tuple[int]], context: object) -> list[dict[str, float]]:
    """Four features of an id; the set-up's variable must have come through to the server."""
    scale = float(os.environ["LADDER_EXAMPLE_SCALE"])
    return [{name: scale * (key[0] % (place + 2)) for place, name in enumerate("abcd")} for key in keys]


def traffic(seed: int) -> Iterator[bytes]:
    """Yield bodies over ten ids."""
    index = seed
    while True:
        yield b'{"entities": [%d]}' % (index % 10)
        index += 1


@contextmanager
def setup(manifest: Manifest) -> Iterator[dict[str, str]]:
    """Stand for databases: leave a file while they run."""
    mark = manifest.directory / "is-set-up"
    mark.touch()
    yield {"LADDER_EXAMPLE_SCALE": "0.5"}
    mark.unlink()
