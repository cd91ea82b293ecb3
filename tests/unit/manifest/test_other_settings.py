"""How the manifest that a version was built with differs from the one that is served."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tailcut.manifest import load
from tailcut.manifest.answer_settings import other_settings
from tailcut.manifest.keys import to_plain

MANIFEST = """
name = "m"
[model]
source = "m.onnx"
inputs = [{ name = "x", shape = [-1, 1], allow_nan = true, columns = ["x"] }]
outputs = [{ name = "y", shape = [-1] }]
[features]
entity = ["id"]
database = "sqlite:///x.sqlite"
[[features.groups]]
name = "g"
key = ["id"]
columns = ["x"]
sql = "SELECT id, x FROM t WHERE id IN (SELECT id FROM keys)"
ttl = "1m"
defaults = { x = nan }
"""


def test_a_default_that_is_not_a_number_is_the_same_after_the_registry_has_kept_it(tmp_path: Path) -> None:
    file = tmp_path / "tailcut.toml"
    file.write_text(MANIFEST)
    built = msgspec.json.decode(msgspec.json.encode(to_plain(load(file).deployment)))
    assert other_settings(load(file).deployment, built, live=False) == ()
    file.write_text(MANIFEST.replace("x = nan", "x = 1.5"))
    (differ,) = other_settings(load(file).deployment, built, live=False)
    assert differ.startswith("features.groups.g.defaults was ")
    assert differ.endswith("is {'x': 1.5}")
