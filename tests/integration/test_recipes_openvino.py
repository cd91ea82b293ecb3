"""Recipes "openvino" and "openvino-int8" on a small BERT and on a model with one layer that 8 bits ruin."""

from __future__ import annotations

import ctypes
import threading
import warnings
import zipfile
from pathlib import Path

import numpy as np
import pytest
from tests import recipe_kit
from tests.models import encoder

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes import onnx_export, recipe
from tailcut.builder.recipes.base import TREES, Subject
from tailcut.builder.records import Made
from tailcut.models.runtimes.onnxruntime import flush_subnormals

pytest.importorskip("openvino")
pytest.importorskip("nncf")
pytest.importorskip("transformers")
pytestmark = pytest.mark.integration

X86 = HostCapabilities(machine="x86_64", flags=("avx2",), cores=2, packages={"openvino": "1", "nncf": "1"})


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Made:
    folder = tmp_path_factory.mktemp("bert")
    model = recipe_kit.manifest(folder, recipe_kit.ENCODER).deployment.model
    path = folder / "m.onnx"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        onnx_export.export(encoder.encoder(), encoder.holdout(), model.inputs, model.outputs, path)
    return Made(name="onnx", runtime="onnxruntime", path=str(path))


def made(work: recipe_kit.Work, name: str) -> Made:
    return Made(name=name, runtime="openvino", path=str(work.path))


def test_fp32_gives_the_bases_answers_from_one_file(bert: Made, tmp_path: Path) -> None:
    work = recipe_kit.work(tmp_path, recipe_kit.ENCODER, bert, encoder.holdout(), "openvino.ovir")
    result = recipe("openvino").make(work)
    assert result.found["operators"] == {"MatMul": 8 * encoder.LAYERS}
    assert max(each["max_abs"] for each in result.found["parity"]["found"]) < 1e-4
    assert result.evidence.exact
    assert sorted(zipfile.ZipFile(work.path).namelist()) == ["model.bin", "model.xml"]


def test_a_thread_that_flushes_subnormals_gets_the_same_answers(bert: Made, tmp_path: Path) -> None:
    """New shapes in such a thread failed, every one of them, before the runtime guarded against it."""
    work = recipe_kit.work(tmp_path, recipe_kit.ENCODER, bert, encoder.holdout(), "openvino.ovir")
    recipe("openvino").make(work)
    expected, found, errors = [], [], []

    def run() -> None:
        try:
            flush()
            runtime = work.open(made(work, "openvino"))
            found.extend(runtime.run(work.selection.take(rows), ["embedding"])["embedding"] for rows in (1, 2, 5))
        except Exception as error:
            errors.append(error)

    base = work.open(bert)
    expected.extend(base.run(work.selection.take(rows), ["embedding"])["embedding"] for rows in (1, 2, 5))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join(60)
    assert not errors
    for one, other in zip(expected, found, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def flush() -> None:
    """Set FTZ and DAZ of this thread: bits 15 and 6 of MXCSR, the last word of glibc's fenv_t on x86-64."""
    buffer, library = ctypes.create_string_buffer(256), ctypes.PyDLL(None)
    library.fegetenv(buffer)
    word = int.from_bytes(buffer.raw[28:32], "little") | 0x8040
    buffer[28:32] = word.to_bytes(4, "little")
    library.fesetenv(buffer)


def test_int8_quantises_the_linear_layers_and_stays_close(bert: Made, tmp_path: Path) -> None:
    flush_subnormals()
    work = recipe_kit.work(tmp_path, recipe_kit.ENCODER, bert, encoder.holdout(), "openvino-int8.ovir")
    found = recipe("openvino-int8").make(work).found
    assert found["transformer"] is True
    assert len(found["quantised"]) >= 6 * encoder.LAYERS
    inputs = work.selection.take(8)
    one, other = (work.open(each).run(inputs, ["embedding"])["embedding"] for each in (bert, made(work, "int8")))
    cosine = (one * other).sum(axis=1) / np.linalg.norm(other, axis=1)
    assert 0.99 < cosine.min() < 1.0 - 1e-7, "not the fp32 model"


# -- where it cannot be made -----------------------------------------------------------------------------------------


def test_each_says_why_not(tmp_path: Path) -> None:
    deployment = recipe_kit.manifest(tmp_path, recipe_kit.ENCODER).deployment
    plain, trees = (Subject(kind="torch", trees=trees, deployment=deployment) for trees in (False, True))
    for name in ("openvino", "openvino-int8"):
        assert recipe(name).why_not(plain, X86) == ""
        bare = HostCapabilities(machine="x86_64", flags=(), cores=2)
        assert "pip install 'tailcut[openvino" in recipe(name).why_not(plain, bare)
        other = HostCapabilities(machine="ppc64le", flags=(), cores=2, packages=X86.packages)
        assert "this machine is ppc64le" in recipe(name).why_not(plain, other)
    assert recipe("openvino-int8").why_not(trees, X86) == TREES
    assert recipe("int8-static").why_not(trees, X86) == TREES
    assert "ensembles of trees" in recipe("openvino").why_not(trees, X86)
