"""A manifest that the loading tests start from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tailcut.errors import ManifestError
from tailcut.manifest import Deployment, load
from tailcut.manifest.keys import Key, keys_at
from tailcut.manifest.section import Section

TOML = """
name = "flight"

[model]
source = "flight:build"

[[model.inputs]]
name = "x"
shape = [-1, 2]
columns = ["temperature", "wind"]

[[model.outputs]]
name = "p"

[slo]
p95 = "25ms"

[features]
entity = ["airport"]
database = "sqlite:///features.db"

[[features.groups]]
name = "weather-now"
key = ["airport"]
columns = ["temperature", "wind"]
ttl = "5m"
sql = "SELECT 1"

[ladder]
[[ladder.rungs]]
name = "+ cache"
set = ["features.cache=memory", "cache.entity.enabled=true"]
"""


def written(folder: Path) -> Path:
    """The manifest's file in ``folder``."""
    file = folder / "tailcut.toml"
    file.write_text(TOML)
    return file


def refused(manifest: Path, *overrides: str, **environment: str) -> tuple[str, str]:
    """The message and the hint with which a load is refused."""
    with pytest.raises(ManifestError) as caught:
        load(manifest, environment=environment, overrides=overrides)
    return caught.value.message, caught.value.hint


def leaves(section: type[Section] = Deployment, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Key]]:
    """Every value key with its path; elements of named lists stand under ``NAME``."""
    for key in keys_at(section, path):
        below = (*path, key.name)
        if key.section is not None:
            yield from leaves(key.section, below)
        elif key.element is not None:
            yield from leaves(key.element, (*below, "NAME"))
        else:
            yield below, key
