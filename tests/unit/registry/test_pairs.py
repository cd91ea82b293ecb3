"""registry: a pair is kept, trusted and checked with both variants that it runs."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.registry_kit import AVX2, X, Y

from tailcut.common.fingerprint import FLAGS, Machine
from tailcut.errors import ArtifactError
from tailcut.registry import NewVariant, Registry, Version

VNNI = replace(AVX2, flags=(*FLAGS[:7], "avx512_vnni"), processor="Intel Xeon 8481C")


def on(tmp_path: Path, machine: Machine = AVX2) -> Registry:
    return Registry(tmp_path / "registry", machine=machine)


def add(registry: Registry, folder: Path, *, content: bytes = b"", int8: bytes = b"") -> Version:
    folder.mkdir(exist_ok=True)
    files = {name: folder / name for name in ("onnx", "int8", "pair")}
    for name, file in files.items():
        file.write_bytes(content + name.encode())
    if int8:
        files["int8"].write_bytes(int8)
    return registry.add(
        "m",
        source="onnx",
        inputs=X,
        outputs=Y,
        variants=[
            NewVariant("onnx", "onnxruntime", files["onnx"]),
            NewVariant("int8", "onnxruntime", files["int8"]),
            NewVariant("pair", "pair", files["pair"], parts={name: files[name] for name in ("onnx", "int8")}),
        ],
    )


def test_it_opens_with_both_artifacts(tmp_path: Path) -> None:
    version = add(on(tmp_path), tmp_path / "made")
    found = on(tmp_path).variant("m", "pair", version.id)
    assert {name: path.read_bytes() for name, path in found.parts.items()} == {"onnx": b"onnx", "int8": b"int8"}
    assert found.part_runtimes == ("onnxruntime", "onnxruntime")
    assert found.trust.level == "trusted"
    assert on(tmp_path).variant("m", "int8", version.id).parts == {}


def test_it_is_trusted_no_more_than_its_weaker_part(tmp_path: Path) -> None:
    version = add(on(tmp_path), tmp_path / "made")
    with pytest.raises(ArtifactError, match=r"'pair' .* is unverified here.*its part 'int8': instruction sets: avx2"):
        on(tmp_path, VNNI).variant("m", "pair", version.id)
    arm = replace(AVX2, architecture="aarch64", flags=("asimd",))
    with pytest.raises(ArtifactError, match=r"'pair' .* cannot be opened here: its part 'int8': architecture"):
        on(tmp_path, arm).variant("m", "pair", version.id)
    faster = on(tmp_path, replace(AVX2, processor="AMD EPYC 9754"))
    assert faster.variant("m", "pair", version.id).trust.level == "remeasure"


def test_a_damaged_part_is_noticed(tmp_path: Path) -> None:
    registry = on(tmp_path)
    version = add(registry, tmp_path / "made")
    sha = version.variants["int8"].sha256
    (blob,) = registry.root.glob(f"blobs/sha256/*/*{sha[4:]}*")
    blob.chmod(0o644)
    blob.write_bytes(b"INT8")
    with pytest.raises(ArtifactError, match=r"part 'int8' of variant 'pair'"):
        registry.variant("m", "pair", version.id)
    bad = [what.rsplit(" ", 1)[0] for what, error in registry.verify() if error is not None]
    assert bad == [f"m {version.id} int8", f"m {version.id} pair"]


def test_a_part_must_be_a_variant_of_the_version(tmp_path: Path) -> None:
    files = {name: tmp_path / name for name in ("onnx", "other", "pair")}
    for name, file in files.items():
        file.write_bytes(name.encode())
    variants = [NewVariant("onnx", "onnxruntime", files["onnx"])]
    for parts, text in (
        ({"int8": files["other"]}, "in this version 'int8' is no variant"),
        ({"onnx": files["other"]}, "in this version 'onnx' has"),
    ):
        pair = NewVariant("pair", "pair", files["pair"], parts=parts)
        with pytest.raises(ArtifactError, match=text):
            on(tmp_path).add("m", source="onnx", inputs=X, outputs=Y, variants=[*variants, pair])
    assert on(tmp_path).list() == ()


def test_garbage_collection_keeps_what_a_kept_pair_runs(tmp_path: Path) -> None:
    registry = on(tmp_path)
    first = add(registry, tmp_path / "made")
    other = add(registry, tmp_path / "other", content=b"2")
    registry.promote("m", first.id, "pair")
    registry.retire("m", other.id)
    assert registry.collect_garbage().versions == (f"m/{other.id}",)
    assert set(registry.variant("m").parts) == {"onnx", "int8"}


def test_a_pickle_among_the_parts_is_refused(tmp_path: Path) -> None:
    version = add(on(tmp_path), tmp_path / "made", int8=pickle.dumps([1], protocol=4))
    with pytest.raises(ArtifactError, match="is a pickle"):
        on(tmp_path).variant("m", "pair", version.id)


def test_a_pair_has_no_keys_of_its_own(tmp_path: Path) -> None:
    version = add(on(tmp_path), tmp_path / "made")
    assert version.variants["pair"].keys is None
    assert version.variants["int8"].keys is not None
