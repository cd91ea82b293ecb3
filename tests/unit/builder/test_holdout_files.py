"""build.holdout_files: holdouts from .parquet, .csv and .npz, and what is said of those that cannot be read."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd
import pytest

from tailcut.builder import Holdout
from tailcut.builder.holdouts import datatypes, files
from tailcut.errors import BuildError, ManifestError
from tailcut.manifest import Deployment, Manifest, Model, TensorSpec
from tailcut.manifest import HoldoutSettings as Section

TABLE = pd.DataFrame(
    {
        "age": [30.5, 41.0, 52.25],
        "visits": [1, 2, 3],
        "country": ["CH", "DE", "CH"],
        "bought": [0, 1, 0],
    }
)
PERSON = TensorSpec(name="person", shape=(-1, 2), columns=("age", "visits"))
VISITS = TensorSpec(name="visits", datatype="INT64", shape=(-1,))


def manifest(
    folder: Path,
    file: str,
    *inputs: TensorSpec,
    labels: str = "bought",
    slices: tuple[str, ...] = (),
) -> Manifest:
    model = Model(source="m:model", inputs=inputs or (PERSON,), outputs=(TensorSpec(name="y"),))
    holdout = Section(source=file, labels=labels, slices=slices)
    return Manifest(Deployment(name="m", model=model, holdout=holdout), folder, {})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    TABLE.to_csv(tmp_path / "rows.csv", index=False)
    TABLE.to_parquet(tmp_path / "rows.parquet")
    arrays = {name: TABLE[name].to_numpy() for name in ("visits", "bought")}
    country = TABLE["country"].to_numpy().astype("U")
    np.savez(tmp_path / "rows.npz", country=country, person=TABLE[["age", "visits"]].to_numpy(), **arrays)
    return tmp_path


@pytest.mark.parametrize("file", ["rows.csv", "rows.parquet"])
def test_tables_fill_tensors_from_columns(folder: Path, file: str) -> None:
    found = files.load(manifest(folder, file, PERSON, VISITS, slices=("country",)))
    np.testing.assert_array_equal(found.inputs["person"], np.array([[30.5, 1], [41, 2], [52.25, 3]]))
    assert found.inputs["person"].dtype == np.float64  # as the file has it: what rounds it keeps what it was
    assert found.inputs["visits"].tolist() == [1, 2, 3]
    assert found.truth.tolist() == [0, 1, 0]
    assert found.slices["country"].tolist() == ["CH", "DE", "CH"]


def test_npz_has_an_array_per_tensor(folder: Path) -> None:
    whole = TensorSpec(name="person", shape=(-1, 2))
    found = files.load(manifest(folder, "rows.npz", whole, VISITS))
    assert found.inputs["person"].shape == (3, 2)
    assert found.truth.tolist() == [0, 1, 0]


def test_labels_are_optional(folder: Path) -> None:
    found = files.load(manifest(folder, "rows.csv", labels=""))
    assert found.labels is None
    with pytest.raises(BuildError, match="no labels"):
        _ = found.truth


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"file": "row.csv"}, r"there is no file .*row\.csv[\s\S]*the folder has rows\.csv, rows\.npz, rows\.parquet"),
        ({"labels": "bougth"}, r"holdout\.labels: .* no column 'bougth'\s+hint: did you mean bought\?"),
        ({"slices": ("countri",)}, r"holdout\.slices: .* no column 'countri'"),
    ],
)
def test_what_is_missing_is_named(folder: Path, change: dict, text: str) -> None:
    wanted = {"file": "rows.csv"} | change
    with pytest.raises((BuildError, ManifestError), match=text) as refused:
        files.load(manifest(folder, **wanted))
    assert refused.value.hint


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (
            TensorSpec(name="p", shape=(-1, 2), columns=("age", "visit")),
            r"model\.inputs 'p', columns: .* no column 'visit'",
        ),
        (TensorSpec(name="ages", shape=(-1,)), r"model\.inputs: .* no column 'ages'\s+hint: did you mean age\?"),
        (TensorSpec(name="country", shape=(-1,)), r"column 'country' of the holdout holds .*, 'country' is FP32"),
        (
            TensorSpec(name="age", datatype="INT64", shape=(-1,)),
            r"holds 30\.5 in row 0, 'age' is INT64 \(2 such rows\)",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_named(folder: Path, tensor: TensorSpec, text: str) -> None:
    with pytest.raises(BuildError, match=text):
        files.load(manifest(folder, "rows.parquet", tensor))


@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        ("UINT8", [1, 300, 2], r"column 'n' of the holdout holds 300 in row 1, 'n' is UINT8 \(1 such rows\)"),
        ("UINT8", [1, -1, 256], r"holds -1 in row 1, 'n' is UINT8 \(2 such rows\)"),
        ("INT32", [3e9, 1.0, 2.0], r"holds 3000000000\.0 in row 0, 'n' is INT32"),
        ("INT64", [1.0, 2.0**53, 2.0], r"holds 9007199254740992\.0 in row 1, 'n' is INT64"),
        ("BOOL", [1, 2, 0], r"holds 2 in row 1, 'n' is BOOL"),
        ("BOOL", [1, None, 0], r"holds nan in row 1, 'n' is BOOL"),
        ("BOOL", [True, None, False], r"holds nan in row 1, 'n' is BOOL"),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_numbers_that_a_datatype_does_not_hold_are_refused(
    folder: Path, datatype: Any, values: list[Any], text: str, suffix: str
) -> None:
    table = TABLE.assign(n=values)
    table.to_csv(folder / "n.csv", index=False)
    table.to_parquet(folder / "n.parquet")
    with pytest.raises(BuildError, match=text):
        files.load(manifest(folder, f"n.{suffix}", TensorSpec(name="n", datatype=datatype, shape=(-1,))))


@pytest.mark.parametrize(
    ("datatype", "values"),
    [("UINT8", [0, 255, 7]), ("INT8", [-128, 127, 0]), ("BOOL", [True, False, True]), ("BOOL", [1, 0, 1])],
)
def test_numbers_that_a_datatype_holds_are_taken(folder: Path, datatype: Any, values: list[Any]) -> None:
    TABLE.assign(n=values).to_csv(folder / "n.csv", index=False)
    found = files.load(manifest(folder, "n.csv", TensorSpec(name="n", datatype=datatype, shape=(-1,)))).inputs["n"]
    assert found.tolist() == values


def test_texts_of_a_csv_are_read_as_they_are_written(folder: Path) -> None:
    rows = ["zip,plan,shop,age,y", "00501,None,007,1.5,None", "02134,NA,07,,Mild", ",basic,7,2.5,NA"]
    (folder / "t.csv").write_text("\n".join(rows) + "\n")
    texts = [TensorSpec(name=name, datatype="BYTES", shape=(-1,), allow_nan=True) for name in ("zip", "plan")]
    given = manifest(folder, "t.csv", *texts, TensorSpec(name="age", shape=(-1,)), labels="y", slices=("shop",))
    found = files.load(given)
    assert datatypes.fitted(
        Holdout(inputs={name: found.inputs[name] for name in ("zip", "plan")}),
        Model(source="m:model", inputs=tuple(texts), outputs=(TensorSpec(name="y"),)),
    ).inputs["zip"].tolist() == ["00501", "02134", ""]
    assert found.inputs["plan"].tolist() == ["None", "NA", "basic"]
    assert found.slices["shop"].tolist() == ["007", "07", "7"]
    assert found.truth.tolist() == ["None", "Mild", "NA"]
    assert np.isnan(found.inputs["age"][1])


@pytest.mark.parametrize(("classes", "labels"), [((), [1, 2, 1]), (("01", "02"), ["01", "02", "01"])])
def test_number_labels_of_a_csv_are_text_where_the_classes_are(
    folder: Path, classes: tuple[str, ...], labels: list[Any]
) -> None:
    (folder / "t.csv").write_text("age,visits,y\n1,2,01\n3,4,02\n5,6,01\n")
    given = manifest(folder, "t.csv", labels="y")
    section = msgspec.structs.replace(given.deployment.holdout, classes=classes)
    deployment = msgspec.structs.replace(given.deployment, holdout=section)
    assert files.load(Manifest(deployment, folder, {})).truth.tolist() == labels


@pytest.mark.parametrize("suffix", ["npz", "parquet"])
def test_bytes_are_utf_8(folder: Path, suffix: str) -> None:
    def write(values: list[bytes]) -> Manifest:
        np.savez(folder / "b.npz", code=np.array(values), bought=np.arange(2))
        pd.DataFrame({"code": values, "bought": [0, 1]}).to_parquet(folder / "b.parquet")
        return manifest(folder, f"b.{suffix}", TensorSpec(name="code", datatype="BYTES", shape=(-1,)))

    assert files.load(write([b"ab", "é".encode()])).inputs["code"].tolist() == ["ab", "é"]
    with pytest.raises(BuildError, match=r"column 'code' of the holdout holds b'\\xff', which is not UTF-8"):
        files.load(write([b"ab", b"\xff"]))


def test_booleans_with_gaps_and_decimals_are_numbers(folder: Path) -> None:
    table = TABLE.assign(
        member=pd.array([True, None, False], dtype="boolean"), price=list(map(Decimal, ("1.5", "2", "3")))
    )
    table.to_parquet(folder / "n.parquet")
    inputs = [TensorSpec(name=name, datatype="FP64", shape=(-1,), allow_nan=True) for name in ("member", "price")]
    found = files.load(manifest(folder, "n.parquet", *inputs)).inputs
    np.testing.assert_array_equal(found["member"], [1.0, np.nan, 0.0])
    assert found["price"].tolist() == [1.5, 2.0, 3.0]


def test_nan_labels_are_counted(folder: Path) -> None:
    TABLE.assign(bought=[0, None, 1]).to_csv(folder / "gaps.csv", index=False)
    with pytest.raises(BuildError, match="1 of 3 labels are NaN, infinite or missing, the first in row 1"):
        files.load(manifest(folder, "gaps.csv"))


@pytest.mark.parametrize("kind", ["bool", "boolean", object])
def test_boolean_labels_are_booleans_in_whatever_way_the_file_keeps_them(folder: Path, kind: Any) -> None:
    TABLE.assign(bought=pd.Series([True, False, True], dtype=kind)).to_parquet(folder / "flags.parquet")
    found = files.load(manifest(folder, "flags.parquet"))
    assert (found.truth.dtype, found.truth.tolist()) == (np.bool_, [True, False, True])


def test_empty_and_broken_files_are_refused(folder: Path) -> None:
    TABLE[:0].to_csv(folder / "empty.csv", index=False)
    with pytest.raises(BuildError, match=r"empty\.csv has no rows"):
        files.load(manifest(folder, "empty.csv"))
    for suffix in ("parquet", "npz"):
        (folder / f"broken.{suffix}").write_bytes(b"not this")
        with pytest.raises(BuildError, match=rf"cannot read the holdout .*broken\.{suffix}"):
            files.load(manifest(folder, f"broken.{suffix}"))


def test_pickled_arrays_are_not_loaded(folder: Path) -> None:
    np.savez(folder / "objects.npz", person=np.array([[1.0, 2.0]]), bought=np.array([{}], dtype=object))
    with pytest.raises(BuildError, match=r"cannot read the holdout .*objects\.npz"):
        files.load(manifest(folder, "objects.npz", TensorSpec(name="person", shape=(-1, 2))))


@pytest.mark.parametrize(("reference", "file"), [("rows.CSV", True), ("a/b.npz", True), ("m.csv:load", False)])
def test_paths_are_told_from_callables(reference: str, file: bool) -> None:
    assert files.is_file(reference) is file


@pytest.mark.parametrize("gap", [None, float("nan"), pd.NA, pd.NaT])
@pytest.mark.parametrize("kind", ["string", object])
def test_missing_texts_of_every_spelling_are_sent_as_empty_texts(folder: Path, gap: object, kind: Any) -> None:
    column = pd.Series(["CH", gap, "DE"], dtype=kind)
    text = TensorSpec(name="country", datatype="BYTES", shape=(-1,), allow_nan=True)
    model = Model(source="m:model", inputs=(text,), outputs=(TensorSpec(name="y"),))
    given = Holdout(inputs={"country": column.to_numpy()})
    assert datatypes.fitted(given, model).inputs["country"].tolist() == ["CH", "", "DE"]
    with pytest.raises(BuildError, match="no text in row 1"):
        datatypes.fitted(given, msgspec.structs.replace(model, inputs=(TensorSpec(name="country", datatype="BYTES"),)))
    if gap is not pd.NaT or kind == "string":  # Arrow takes no NaT beside text
        TABLE.assign(country=column).to_parquet(folder / "gaps.parquet")
        read = files.load(manifest(folder, "gaps.parquet", text))
        assert datatypes.fitted(read, model).inputs["country"].tolist() == ["CH", "", "DE"]


def test_an_empty_text_beside_a_missing_one_is_refused() -> None:
    text = TensorSpec(name="country", datatype="BYTES", shape=(-1,), allow_nan=True)
    model = Model(source="m:model", inputs=(text,), outputs=(TensorSpec(name="y"),))
    given = Holdout(inputs={"country": pd.Series(["", None, "DE"], dtype="string").to_numpy()})
    with pytest.raises(BuildError, match="both missing texts and empty ones"):
        datatypes.fitted(given, model)
