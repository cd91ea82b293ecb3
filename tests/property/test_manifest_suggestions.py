"""A path whose separators are wrong is refused with the one that was meant, whichever key it is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.manifest_kit import leaves, written

from tailcut.errors import ManifestError
from tailcut.manifest import load
from tailcut.manifest.keys import dotted, variable

PATHS = [path for path, _ in leaves() if "NAME" not in path and len(path) > 1]
SEPARATORS = st.sampled_from(["_", "__", "___", ".", "-"])


@given(st.sampled_from(PATHS), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_wrong_separators_are_named(tmp_path: Path, path: tuple[str, ...], data: st.DataObject) -> None:
    """The file's own values matter for none of these keys, so that what is accepted must be the key itself."""
    file = written(tmp_path)
    between = data.draw(st.lists(SEPARATORS, min_size=len(path) - 1, max_size=len(path) - 1))
    flag = path[0] + "".join(f"{separator}{part}" for separator, part in zip(between, path[1:], strict=True))
    if set(between) != {"."}:
        with pytest.raises(ManifestError) as caught:
            load(file, environment={}, overrides=[f"{flag}=1"])
        assert caught.value.hint == f"did you mean {dotted(path)}?"
    name = "TAILCUT_" + flag.upper().replace(".", "_").replace("-", "_")
    if name != variable(path):
        with pytest.raises(ManifestError) as caught:
            load(file, environment={name: "1"})
        assert caught.value.hint == f"did you mean {variable(path)}?"
