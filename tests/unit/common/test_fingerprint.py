"""fingerprint: which evidence of one machine holds on another."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.registry_kit import AVX2

from tailcut.common.fingerprint import (
    FLAGS,
    Keys,
    Level,
    Machine,
    isa_class,
    keys_of,
    memory_class_gib,
    trust,
    uses_gpu,
)

RUNTIMES = ["onnxruntime", "torch", "openvino", "tensorrt", "torch-compile", "pickle", "something-new"]
ORDER: list[Level] = ["trusted", "remeasure", "unverified", "not openable"]
H100 = replace(AVX2, gpu="NVIDIA H100 80GB HBM3", driver="570.1", capability="9.0")

machines = st.builds(
    Machine,
    architecture=st.sampled_from(["x86_64", "aarch64"]),
    flags=st.lists(st.sampled_from(FLAGS), unique=True).map(tuple),
    processor=st.sampled_from(["AMD EPYC 7763", "Intel Xeon 8481C"]),
    cores=st.integers(1, 4),
    quota_cores=st.none() | st.sampled_from([0.5, 2.0]),
    memory_bytes=st.integers(0, 1 << 40),
    packages=st.fixed_dictionaries(
        {name: st.sampled_from(["1.31.0", "1.31.1", "2.0"]) for name in ("onnxruntime", "torch", "scikit-learn")}
    ),
    gpu=st.sampled_from(["", "NVIDIA H100", "NVIDIA T4"]),
    driver=st.sampled_from(["550.1", "570.2"]),
)
pairs = st.tuples(machines, machines, st.sampled_from(RUNTIMES), st.booleans())


@given(machines, st.sampled_from(RUNTIMES), st.booleans(), st.booleans())
def test_where_it_was_built_all_is_trusted(machine: Machine, runtime: str, gpu: bool, base: bool) -> None:
    keys = keys_of(machine, runtime, gpu=gpu)
    assert trust(keys, keys, base=base).level == "trusted"
    assert msgspec.json.decode(msgspec.json.encode(keys), type=Keys) == keys


@given(pairs)
def test_trust_is_as_good_as_the_worst_key(pair: tuple[Machine, Machine, str, bool]) -> None:
    first, second, runtime, gpu = pair
    built, here = keys_of(first, runtime, gpu=gpu), keys_of(second, runtime, gpu=gpu)
    level = trust(built, here).level
    assert (level == "trusted") <= (built.numerics == here.numerics and built.performance == here.performance)
    if level != "not openable":
        expected = (
            "unverified"
            if built.numerics != here.numerics
            else "remeasure"
            if built.performance != here.performance
            else "trusted"
        )
        assert level == expected
    else:
        assert built.load != here.load


@given(pairs)
def test_the_base_is_trusted_at_least_as_far_and_never_unverified(pair: tuple[Machine, Machine, str, bool]) -> None:
    first, second, runtime, gpu = pair
    built, here = keys_of(first, runtime, gpu=gpu), keys_of(second, runtime, gpu=gpu)
    of_base = trust(built, here, base=True).level
    assert ORDER.index(of_base) <= ORDER.index(trust(built, here).level)
    assert of_base != "unverified"


@given(pairs)
def test_a_reason_is_given_exactly_where_something_differs(pair: tuple[Machine, Machine, str, bool]) -> None:
    first, second, runtime, gpu = pair
    found = trust(keys_of(first, runtime, gpu=gpu), keys_of(second, runtime, gpu=gpu))
    assert bool(found.reason) == (found.level != "trusted")


@pytest.mark.parametrize(
    ("changes", "runtime", "level", "reason"),
    [
        ({}, "onnxruntime", "trusted", ""),
        ({"processor": "Intel"}, "onnxruntime", "remeasure", "processor: AMD EPYC 7763 where it was built, Intel here"),
        ({"quota_cores": 2.0}, "onnxruntime", "remeasure", "quota in cores: none where it was built, 2.0 here"),
        ({"memory_bytes": 33 << 30}, "onnxruntime", "trusted", ""),
        ({"flags": FLAGS[:7]}, "onnxruntime", "unverified", "instruction sets: avx2 where it was built, avx512"),
        ({"packages": {"onnxruntime": "1.32.0"}}, "onnxruntime", "unverified", "version: 1.31.1 where .* 1.32.0 here"),
        ({"packages": {"onnxruntime": "1.9.0"}}, "onnxruntime", "not openable", "1.31.1 .* 1.9.0 here, which is older"),
        ({"packages": {}}, "onnxruntime", "not openable", "needs onnxruntime .*1.31.1.*not installed here"),
        ({"architecture": "aarch64"}, "onnxruntime", "not openable", "architecture: x86_64 where .* aarch64 here"),
        ({"flags": ("avx",)}, "torch-compile", "not openable", "compiled for avx2, fma, which this processor lacks"),
        ({"flags": FLAGS[:7]}, "torch-compile", "unverified", "instruction sets"),
        ({"gpu": ""}, "tensorrt", "not openable", "GPU: NVIDIA H100 80GB HBM3 where it was built, none here"),
        ({"driver": "580.2"}, "tensorrt", "not openable", "GPU driver: 570.1 where it was built, 580.2 here"),
    ],
)
def test_what_differs_decides_and_is_named(changes: dict[str, object], runtime: str, level: Level, reason: str) -> None:
    there = H100 if runtime == "tensorrt" else AVX2
    gpu = uses_gpu(runtime, {})
    found = trust(keys_of(there, runtime, gpu=gpu), keys_of(replace(there, **changes), runtime, gpu=gpu))
    assert found.level == level
    assert re.search(reason, found.reason), found.reason


def test_the_base_moves_to_another_architecture_and_only_its_timings_do_not() -> None:
    arm = replace(AVX2, architecture="aarch64", flags=("asimd", "asimddp"), processor="Neoverse-V2")
    built, here = keys_of(AVX2, "torch"), keys_of(arm, "torch")
    assert trust(built, here).level == "not openable"
    assert trust(built, here, base=True).level == "remeasure"
    assert trust(None, here).level == "unverified"
    assert trust(None, here, base=True).level == "trusted"
    assert trust(keys_of(AVX2, "pickle"), keys_of(arm, "pickle"), base=True).level == "not openable", "no portable file"


@pytest.mark.parametrize(
    ("architecture", "flags", "name"),
    [
        ("x86_64", (), "generic"),
        ("x86_64", ("avx2",), "generic"),
        ("x86_64", ("avx2", "fma"), "avx2"),
        ("x86_64", ("avx2", "fma", "avx_vnni"), "avx2+avx_vnni"),
        ("x86_64", ("avx2", "fma", "avx512f"), "avx2"),
        ("x86_64", (*FLAGS[:7], "avx512_vnni"), "avx512+vnni"),
        ("x86_64", (*FLAGS[:7], "avx512_vnni", "avx512_bf16", "amx_int8"), "avx512+vnni+bf16+amx_int8"),
        ("aarch64", ("asimd", "asimddp", "i8mm"), "neon+dotprod+i8mm"),
        ("riscv64", (), "generic"),
    ],
)
def test_instruction_sets_have_a_class(architecture: str, flags: tuple[str, ...], name: str) -> None:
    assert FLAGS[:7] == ("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl")
    assert isa_class(architecture, flags) == name


def test_what_runs_on_a_gpu_does_not_depend_on_the_processors_instruction_sets() -> None:
    wide = replace(H100, flags=FLAGS)
    assert uses_gpu("onnxruntime", {"provider": "CUDAExecutionProvider"})
    assert uses_gpu("torch", {"device": "cuda:0"})
    assert uses_gpu("tensorrt", {})
    assert not uses_gpu("openvino", {"device": "CPU"})
    assert keys_of(H100, "torch", gpu=True).numerics == keys_of(wide, "torch", gpu=True).numerics
    assert keys_of(H100, "torch").numerics != keys_of(wide, "torch").numerics


@pytest.mark.parametrize(("gib", "wanted"), [(0, 0), (0.3, 1), (15.6, 16), (16, 16), (23.5, 32), (251, 256)])
def test_memory_is_classed_by_powers_of_two(gib: float, wanted: int) -> None:
    assert memory_class_gib(int(gib * (1 << 30))) == wanted
