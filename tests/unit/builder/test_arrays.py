"""Arrays of any names in a file, as outputs of models may be called."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tailcut.builder.holdouts import arrays

NAMES = st.one_of(
    st.sampled_from(["file", "allow_pickle", "args", "self", "a/b", "../a", "a b", "ü"]),
    st.text(st.characters(blacklist_categories=("Cc", "Cs")), min_size=1, max_size=8),
)


@given(names=st.lists(NAMES, min_size=1, max_size=4, unique=True))
def test_every_name_comes_back(names: list[str]) -> None:
    saved = {name: np.full((2, 1), place, np.float32) for place, name in enumerate(names)}
    with tempfile.TemporaryDirectory() as folder:
        arrays.save(Path(folder) / "a.npz", saved)
        with np.load(Path(folder) / "a.npz", allow_pickle=False) as found:
            assert {name: found[name].tolist() for name in found.files} == {
                name: array.tolist() for name, array in saved.items()
            }


def test_text_and_datatypes_come_back(tmp_path: Path) -> None:
    saved = {"text": np.array(["a", "ü"], object), "whole": np.array([2**60]), "flag": np.array([True])}
    arrays.save(tmp_path / "a.npz", saved)
    with np.load(tmp_path / "a.npz", allow_pickle=False) as found:
        assert {name: found[name].tolist() for name in found.files} == {
            "text": ["a", "ü"],
            "whole": [2**60],
            "flag": [True],
        }
        assert found["text"].dtype.kind == "U"
