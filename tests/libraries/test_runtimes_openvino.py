"""runtimes.openvino: what it opens, runs and refuses, and what it does not touch."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.models import graphs

from tailcut.errors import ArtifactError, InferenceError
from tailcut.manifest import TensorSpec
from tailcut.models.runtimes import open_runtime
from tailcut.registry import Variant

openvino = pytest.importorskip("openvino")

X = TensorSpec(name="x", shape=(-1, 4))
Y = TensorSpec(name="y", shape=(-1,))


def variant(artifact: Path, inputs: tuple[TensorSpec, ...] = (X,)) -> Variant:
    return Variant("m", "openvino", "openvino", artifact, "", inputs, (Y,), "v1")


def packed(tmp_path: Path, source: Path) -> Path:
    from tailcut.models.runtimes.openvino import load_openvino, pack

    library = load_openvino()
    library.save_model(library.Core().read_model(source), tmp_path / "ir.xml", compress_to_fp16=False)
    pack(tmp_path / "ir.xml", tmp_path / "ir.bin", tmp_path / "m.ovir")
    return tmp_path / "m.ovir"


@pytest.fixture
def onnx_file(tmp_path: Path) -> Path:
    return graphs.linear(tmp_path / "m.onnx", hidden=8)


def expected(file: Path, x: np.ndarray) -> np.ndarray:
    other = replace(variant(file), runtime="onnxruntime")
    return open_runtime(other, threads=1).run({"x": x}, ["y"])["y"]


@pytest.mark.parametrize("form", ["onnx", "ovir"])
def test_it_answers_as_onnxruntime_at_any_batch_size(tmp_path: Path, onnx_file: Path, form: str) -> None:
    runtime = open_runtime(variant(onnx_file if form == "onnx" else packed(tmp_path, onnx_file)), threads=2)
    for rows in (1, 5, 2, 5):
        x = np.random.default_rng(rows).normal(size=(rows, 4)).astype(np.float32)
        np.testing.assert_allclose(runtime.run({"x": x}, ["y"])["y"], expected(onnx_file, x), rtol=1e-5)
    runtime.close()
    runtime.close()


def test_an_answer_stays_when_the_next_batch_runs(onnx_file: Path) -> None:
    runtime = open_runtime(variant(onnx_file), threads=1)
    first = runtime.run({"x": np.ones((3, 4), np.float32)}, ["y"])["y"]
    kept = first.copy()
    runtime.run({"x": np.full((3, 4), -7, np.float32)}, ["y"])
    np.testing.assert_array_equal(first, kept)


def test_it_takes_arrays_that_are_read_only_or_not_contiguous(onnx_file: Path) -> None:
    runtime = open_runtime(variant(onnx_file), threads=1)
    wide = np.random.default_rng(0).normal(size=(6, 8)).astype(np.float32)
    sliced = wide[::2, ::2]
    sliced.flags.writeable = False
    np.testing.assert_array_equal(runtime.run({"x": sliced}, ["y"])["y"], runtime.run({"x": sliced.copy()}, ["y"])["y"])


def test_it_fails_one_batch_by_name_and_runs_the_next(onnx_file: Path) -> None:
    runtime = open_runtime(variant(onnx_file), threads=1)
    with pytest.raises(InferenceError, match=r"variant 'openvino' failed on x FP32 \[2, 7\]: .+"):
        runtime.run({"x": np.zeros((2, 7), np.float32)}, ["y"])
    assert runtime.run({"x": np.zeros((2, 4), np.float32)}, ["y"])["y"].tolist() == pytest.approx([0.5, 0.5])


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (TensorSpec(name="z", shape=(-1, 4)), r"inputs of .* are \['x'\], the manifest names \['z'\]"),
        (TensorSpec(name="x", datatype="FP64", shape=(-1, 4)), r"'x' .* is FP32 \[-1, 4\], the manifest says FP64"),
        (TensorSpec(name="x", shape=(-1, 5)), r"is FP32 \[-1, 4\], the manifest says FP32 \[-1, 5\]"),
        (TensorSpec(name="x", datatype="BYTES", shape=(-1,)), r"input 'x' is BYTES"),
    ],
)
def test_it_refuses_a_model_that_is_not_the_manifests(onnx_file: Path, wrong: TensorSpec, text: str) -> None:
    with pytest.raises(ArtifactError, match=text):
        open_runtime(variant(onnx_file, (wrong,)), threads=1)


def test_it_refuses_a_file_that_is_no_model(tmp_path: Path) -> None:
    for name in ("m.onnx", "m.ovir"):
        (tmp_path / name).write_bytes(b"not a model")
        with pytest.raises(ArtifactError, match=rf"{name}"):
            open_runtime(variant(tmp_path / name), threads=1)


def test_it_refuses_an_archive_of_other_parts_compressed_or_damaged(tmp_path: Path, onnx_file: Path) -> None:
    good = packed(tmp_path, onnx_file)
    with zipfile.ZipFile(good) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(tmp_path / "more.ovir", "w") as archive:
        for name, data in {**parts, "setup.py": b"print()"}.items():
            archive.writestr(name, data)
    with pytest.raises(ArtifactError, match=r"it holds .*'setup\.py'"):
        open_runtime(variant(tmp_path / "more.ovir"), threads=1)
    with zipfile.ZipFile(tmp_path / "small.ovir", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in parts.items():
            archive.writestr(name, data)
    with pytest.raises(ArtifactError, match="compressed"):
        open_runtime(variant(tmp_path / "small.ovir"), threads=1)
    damaged = bytearray(good.read_bytes())
    damaged[damaged.index(parts["model.bin"][:16]) + 3] ^= 0xFF
    (tmp_path / "bad.ovir").write_bytes(damaged)
    with pytest.raises(ArtifactError, match="CRC"):
        open_runtime(variant(tmp_path / "bad.ovir"), threads=1)


def test_packing_twice_gives_the_same_bytes(tmp_path: Path, onnx_file: Path) -> None:
    from tailcut.models.runtimes.openvino import pack

    first = packed(tmp_path, onnx_file).read_bytes()
    pack(tmp_path / "ir.xml", tmp_path / "ir.bin", tmp_path / "again.ovir")
    assert (tmp_path / "again.ovir").read_bytes() == first


def test_settings_of_the_variant_override_the_hints(onnx_file: Path) -> None:
    from tailcut.models.runtimes.openvino import properties

    settings = {"ENABLE_CPU_PINNING": True, "executors": 2}
    given = properties(3, settings)
    assert given["ENABLE_CPU_PINNING"] is True
    assert given["INFERENCE_NUM_THREADS"] == 3
    assert "executors" not in given
    with pytest.raises(ArtifactError, match="NO_SUCH_PROPERTY"):
        open_runtime(replace(variant(onnx_file), settings={"NO_SUCH_PROPERTY": 1}), threads=1)


def smallest() -> float:
    """The smallest float32 halved: 0 where subnormals are flushed."""
    return float((np.full(4, np.finfo(np.float32).tiny) * np.float32(0.5)).max())


def test_it_answers_rightly_in_a_thread_that_flushes_subnormals_and_leaves_it_so(tmp_path: Path) -> None:
    """What went wrong there is shown on a BERT: tests/integration/test_recipes_openvino.py."""
    file = graphs.expanding(tmp_path / "m.onnx")
    found: list[object] = []

    def work() -> None:
        flush_by_hand()
        found.append(smallest())
        runtime = open_runtime(variant(file), threads=1)
        found.extend(runtime.run({"x": np.ones((rows, 4), np.float32)}, ["y"])["y"].tolist() for rows in (2, 3))
        found.append(smallest())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(60)
    assert found == [0.0, [4.0, 4.0], [4.0, 4.0, 4.0], 0.0]


def flush_by_hand() -> None:
    """Set FTZ and DAZ of this thread: bits 15 and 6 of MXCSR, the last word of glibc's fenv_t on x86-64."""
    buffer = ctypes.create_string_buffer(256)
    library = ctypes.PyDLL(None)
    library.fegetenv(buffer)
    word = int.from_bytes(buffer.raw[28:32], "little") | 0x8040
    buffer[28:32] = word.to_bytes(4, "little")
    library.fesetenv(buffer)


def child(script: str) -> None:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


def test_nothing_is_sent_when_it_opens(onnx_file: Path) -> None:
    """The stub of OpenVINO's telemetry is in place, and no socket is made."""
    child(f"""
import socket
def refuse(*_, **__): raise AssertionError("a socket")
socket.socket.connect = refuse
from pathlib import Path
from tailcut.manifest import TensorSpec
from tailcut.registry import Variant
from tailcut.models.runtimes import open_runtime
variant = Variant("m", "openvino", "openvino", Path({str(onnx_file)!r}), "",
    (TensorSpec(name="x", shape=(-1, 4)),), (TensorSpec(name="y", shape=(-1,)),), "v1")
open_runtime(variant, threads=1)
from openvino.tools.ovc import telemetry_utils
assert telemetry_utils.tm.__name__ == "openvino.tools.ovc.telemetry_stub", telemetry_utils.tm
""")


def test_without_the_package_it_names_the_extra() -> None:
    child("""
import sys
sys.modules["openvino"] = None
from tailcut.errors import MissingExtra
from tailcut.models.runtimes.openvino import load_openvino
try:
    load_openvino()
except MissingExtra as error:
    assert "pip install 'tailcut[openvino]'" in error.hint, error
else:
    raise AssertionError("not raised")
""")
