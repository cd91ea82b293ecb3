"""Rows that a version keeps: they come back as they were, and what cannot be read says so."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.registry_kit import add

from tailcut.common.tensors import NUMPY_OF, Arrays
from tailcut.errors import ArtifactError
from tailcut.registry import Registry, Version
from tailcut.registry.padding import trimmed
from tailcut.registry.rows import ROWS, KeptRows, kept_rows

EDGES: Arrays = {
    "wide": np.array([[2**63 - 1, -(2**63)], [2**53 + 1, 0]], np.int64),
    "unsigned": np.array([2**64 - 1, 0], np.uint64),
    "half": np.array([[np.inf], [np.nan]], np.float16),
    "gaps": np.array([[np.nan, -0.0], [-np.inf, 5e-324]], np.float64),
    "flags": np.array([[True], [False]]),
    "file": np.array([["", "a\0"], ["Zürich\n", "\ud83d"]], object),
}


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    KeptRows(EDGES).save(tmp_path / "rows.npz")
    found = KeptRows.load(tmp_path / "rows.npz")
    assert list(found.inputs) == list(EDGES)
    for name, array in EDGES.items():
        assert found.inputs[name].dtype == array.dtype
        np.testing.assert_array_equal(found.inputs[name], array)
    assert np.signbit(found.inputs["gaps"][0, 1])


@given(texts=st.lists(st.text(), min_size=1), rows=st.integers(1, 3))
def test_texts_come_back_whatever_they_hold(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], rows: int
) -> None:
    given_texts = np.empty((rows, len(texts)), object)
    given_texts[:] = [texts] * rows
    path = tmp_path_factory.getbasetemp() / "texts.npz"
    KeptRows({"t": given_texts}).save(path)
    assert KeptRows.load(path).inputs["t"].tolist() == given_texts.tolist()


def test_the_same_rows_are_the_same_file(tmp_path: Path) -> None:
    for name in ("one", "two"):
        KeptRows(EDGES, "flags").save(tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


@given(
    ends=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    datatype=st.sampled_from(["INT64", "BOOL", "FP32", "UINT8"]),
)
def test_a_batch_is_as_wide_as_its_longest_row_needs(ends: list[int], datatype: str) -> None:
    mask = (np.arange(40)[None] < np.array(ends)[:, None]).astype(NUMPY_OF[datatype])
    ids = np.tile(np.arange(40), (len(ends), 1))
    found = trimmed({"ids": ids, "mask": mask, "age": np.zeros((len(ends), 3))}, "mask")
    width = found["mask"].shape[1]
    assert width >= max(ends), "no value is cut off"
    assert width == min(40, 16 * max(1, -(-max(ends) // 16)))
    assert found["ids"].shape == found["mask"].shape
    assert found["age"].shape == (len(ends), 3), "what has no tokens stays"


def add_with(registry: Registry, folder: Path, rows: KeptRows) -> Version:
    rows.save(folder / "rows.npz")
    return add(registry, folder, files={ROWS: folder / "rows.npz"})


def test_a_version_and_its_variants_lead_to_their_rows(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    version = add_with(registry, tmp_path, KeptRows({"x": np.arange(3.0)}))
    for of in (version, registry.version("flights", version.id), registry.artifact("flights", "onnx", version.id)):
        found = kept_rows(registry, of)
        assert found is not None
        assert found.count == 3
        assert found.at([2, 0, 2])["x"].tolist() == [2, 0, 2]


def test_a_version_without_rows_has_none(tmp_path: Path) -> None:
    registry = Registry(tmp_path / "registry")
    assert kept_rows(registry, add(registry, tmp_path)) is None


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", "pickle", "uneven", "nothing", "ends"],
)
def test_a_file_that_holds_something_else_is_refused(tmp_path: Path, content: bytes | str) -> None:
    path = tmp_path / "rows.npz"
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        held = {
            "pickle": {"input/x": np.array([{}], object)},
            "uneven": {"input/x": np.zeros(2), "input/y": np.zeros(3)},
            "nothing": {"x": np.zeros(2)},
            "ends": {"text/x": np.zeros(2, np.uint8)},
        }[content]
        with path.open("wb") as file:
            np.savez(file, **held)
    with pytest.raises(ArtifactError, match="cannot be read") as no:
        KeptRows.load(path)
    assert "tailcut build" in no.value.hint
