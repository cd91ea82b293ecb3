"""What tailcut knows of each runtime: how its artifacts are opened, what they are tied to, and what may be tuned.

Another package adds a runtime with an entry point of the group ``tailcut.runtimes``, whose name is the runtime's and
whose value is a ``RuntimeSpec``; and the recipes that make variants for it with one of the group ``tailcut.recipes``.
"""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import Any, Literal

import msgspec

GROUP = "tailcut.runtimes"

Binding = Literal["format", "version", "machine"]
"""What an artifact is tied to: a file format that later versions of the runtime read too, one version of the
runtime, or one kind of machine (compiled code, engines)."""


class Variation(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a runtime that are tried at the chosen threads and executors.

    Attributes:
        settings: of the variant.
        threaded: only where a batch has more threads than one.
        alone: only where there is one executor.
    """

    settings: dict[str, Any]
    threaded: bool = False
    alone: bool = False


class RuntimeSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One runtime.

    Attributes:
        name: as variants name it.
        opens: "package.module:function", which is called with an ``Openable`` and ``OpenOptions`` and returns a
            ``Runtime``, all of ``tailcut.models.runtimes``. The module is imported when a variant is opened.
        packages: distributions whose version an artifact is tied to, one of which is installed.
        beside: further distributions that answers depend on.
        binding: what an artifact is tied to.
        on_gpu: whether it runs on a GPU whatever its settings say.
        live: whether the artifact holds numbers only, and the model comes from ``model.source``.
        imports: the package that it imports, to be imported ahead of a switch.
        loads: "package.module:function" that imports it, where that takes more than an import.
        shared: large shared libraries of that package, patterns of paths within it, those that others need first.
            None that uses Python.
        computes: whether its batches do nothing but compute, on cores, and in the calling thread where threads are 1.
        reads_onnx: whether an artifact, or a part of it, may be an ONNX file.
        tuned: whether it takes a number of threads, which the build chooses with the number of executors.
        variations: further settings that may be tuned then.
        tables: whether it is of a library for tables.
        error: why another package's registration cannot be used; empty where it can. Opening a variant raises it.
    """

    name: str
    opens: str = ""
    packages: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()
    binding: Binding = "machine"
    on_gpu: bool = False
    live: bool = False
    imports: str = ""
    loads: str = ""
    shared: tuple[str, ...] = ()
    computes: bool = False
    reads_onnx: bool = False
    tuned: bool = False
    variations: tuple[Variation, ...] = ()
    tables: bool = False
    error: str = ""


_OWN = "tailcut.models.runtimes"
_TORCH = ("lib/libc10.so", "lib/libtorch_cpu.so", "lib/libtorch_cuda.so", "lib/libtorch.so")

BUILT_IN = {
    spec.name: spec
    for spec in (
        RuntimeSpec(
            name="onnxruntime",
            opens=f"{_OWN}.cuda:open_onnx",
            packages=("onnxruntime", "onnxruntime-gpu"),
            binding="format",
            imports="onnxruntime",
            computes=True,
            reads_onnx=True,
            tuned=True,
            variations=(
                # How long idle threads spin, in microseconds; and subnormal floats computed as they are.
                Variation(settings={"spin_us": 0}, threaded=True),
                Variation(settings={"spin_us": 1000}, threaded=True),
                Variation(settings={"denormals": True}),
            ),
        ),
        RuntimeSpec(
            name="openvino",
            opens=f"{_OWN}.openvino:OpenVinoRuntime",
            packages=("openvino",),
            binding="format",
            imports="openvino",
            loads=f"{_OWN}.openvino:load_openvino",
            shared=("libs/libopenvino.so.*",),
            computes=True,
            reads_onnx=True,
            tuned=True,
            variations=(
                Variation(settings={"hint": "THROUGHPUT"}),
                # Where no other executor would be pinned to the same cores.
                Variation(settings={"pinning": True}, alone=True),
            ),
        ),
        RuntimeSpec(
            name="torch",
            opens=f"{_OWN}.compiled:open_torch",
            packages=("torch",),
            beside=("transformers",),
            binding="format",
            live=True,
            imports="torch",
            shared=_TORCH,
            tuned=True,
        ),
        RuntimeSpec(
            name="lightgbm",
            opens=f"{_OWN}.lightgbm:open_variant",
            packages=("lightgbm",),
            binding="format",
            imports="lightgbm",
            shared=("lib/lib_lightgbm.so",),
            tuned=True,
            tables=True,
        ),
        RuntimeSpec(
            name="xgboost",
            opens=f"{_OWN}.xgboost:open_variant",
            packages=("xgboost", "xgboost-cpu"),
            binding="format",
            imports="xgboost",
            shared=("lib/libxgboost.so",),
            tuned=True,
            tables=True,
        ),
        RuntimeSpec(name="huggingface", packages=("torch",), binding="format"),
        RuntimeSpec(
            name="sklearn",
            opens=f"{_OWN}.sklearn:SklearnRuntime",
            packages=("scikit-learn",),
            binding="format",
            live=True,
            imports="sklearn",
            tables=True,
        ),
        RuntimeSpec(
            name="skops",
            opens=f"{_OWN}.skops:SkopsRuntime",
            packages=("scikit-learn",),
            beside=("skops",),
            binding="version",
            imports="skops.io",
            loads=f"{_OWN}.skops:load_skops",
            tables=True,
        ),
        RuntimeSpec(name="pickle", packages=("scikit-learn",), binding="version"),
        RuntimeSpec(name="torch-compile", packages=("torch",)),
        RuntimeSpec(name="tensorrt", opens=f"{_OWN}.tensorrt:open_variant", packages=("tensorrt",), on_gpu=True),
        RuntimeSpec(name="pair", opens=f"{_OWN}.pair:PairRuntime", packages=("pair",), reads_onnx=True),
    )
}


def spec_of(name: str) -> RuntimeSpec:
    """Return the spec of a runtime. An unknown runtime has one that ties its artifacts to the machine."""
    return BUILT_IN.get(name) or _registered(name) or RuntimeSpec(name=name, packages=(name,))


def spec_packages() -> tuple[str, ...]:
    """List the distributions that artifacts of any runtime here may be tied to."""
    found = [package for spec in BUILT_IN.values() for package in spec.packages]
    for entry in entry_points(group=GROUP):
        found += spec_of(entry.name).packages
    return tuple(dict.fromkeys(found))


@cache
def _registered(name: str) -> RuntimeSpec | None:
    for entry in entry_points(group=GROUP, name=name):
        try:
            found = entry.load()
        except Exception as error:
            return RuntimeSpec(name=name, error=f"registered as {entry.value!r}, which cannot be imported: {error}")
        if isinstance(found, RuntimeSpec) and found.name == name:
            return found
        return RuntimeSpec(name=name, error=f"registered as {entry.value!r}, which is no RuntimeSpec of that name")
    return None
