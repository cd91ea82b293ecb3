"""What a machine is, and how far evidence that was gathered on one machine holds on another.

A variant carries three keys of the machine that it was built and judged on:

* load: what its artifact needs before it can be opened at all;
* numerics: what its answers, and so its quality verdict, depend on: kernels of another instruction set round and
  saturate otherwise (onnxruntime's quantization guide, "when to use reduce range"; onnxruntime issue 6004);
* performance: what its timings depend on.

The base of a version (the source model, and fp32 artifacts that the builder marks) is exempt from load and numerics:
it is a portable file, and its verdict is the reference itself. fp32 kernels of different instruction sets differ by
rounding, some 1e-6 of a value, far below any budget; an INT8 variant's verdict is not worth anything on the next
instruction set, where 8-bit sums may saturate. A runtime that lowers the precision of fp32 models by itself where the
processor offers it (OpenVINO: bf16 on AMX) gives no base.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from math import log2
from typing import Any, Literal, get_args

import msgspec

from tailcut.common.runtime_spec import BUILT_IN, Binding, spec_of

FLAGS = (
    *("avx", "avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni", "avx_vnni"),
    *("avx512_bf16", "avx512_fp16", "amx_int8", "amx_bf16", "asimd", "asimddp", "asimdhp", "i8mm", "bf16", "sve"),
)
"""Instruction sets that decide which kernels run, as /proc/cpuinfo names them."""

_AVX512_CORE = {"avx512f", "avx512bw", "avx512dq", "avx512vl"}
_GIB = 1 << 30

Level = Literal["trusted", "remeasure", "unverified", "not openable"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the best to the worst."""


LIVE = frozenset(name for name, spec in BUILT_IN.items() if spec.live)
"""Runtimes whose artifact holds numbers only: the module or the estimator comes from ``model.source``."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine, as far as variants depend on it.

    Attributes:
        architecture: as ``platform.machine()`` names it.
        flags: those of ``FLAGS`` that the processor has.
        processor: its model, exactly.
        cores: that this process may use.
        quota_cores: processor time that the control group allows, in cores; None where it sets no limit.
        memory_bytes: of the machine, or the control group's limit where that is less.
        packages: installed package -> version.
        gpu: models of the visible GPUs, joined by ", "; empty where there is none.
        driver: version of the GPU's driver.
        capability: CUDA compute capability such as "9.0", where the GPU's model tells it.
    """

    architecture: str
    flags: tuple[str, ...] = ()
    processor: str = ""
    cores: int = 1
    quota_cores: float | None = None
    memory_bytes: int = 0
    packages: dict[str, str] = {}
    gpu: str = ""
    driver: str = ""
    capability: str = ""

    @property
    def usable_cores(self) -> float:
        """Cores' worth of processor time that this process may have."""
        return min(self.cores, self.quota_cores or self.cores)


class LoadKey(msgspec.Struct, frozen=True, kw_only=True):
    """What an artifact needs before it can be opened; ``flags`` are those that it uses, none for a portable file."""

    runtime: str
    binding: Binding
    version: str
    architecture: str
    flags: tuple[str, ...] = ()
    gpu: str = ""
    capability: str = ""
    driver: str = ""


class NumericsKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a quality verdict depends on. ``isa`` is empty for what runs on a GPU; see ``isa_class``."""

    runtime: str
    version: str
    isa: str
    gpu: str = ""


class PerformanceKey(msgspec.Struct, frozen=True, kw_only=True):
    """What a timing depends on. ``memory_gib`` is the nearest power of two."""

    processor: str
    cores: int
    quota_cores: float | None
    memory_gib: int
    gpu: str = ""


class Keys(msgspec.Struct, frozen=True, kw_only=True):
    """The three keys of one variant on one machine."""

    load: LoadKey
    numerics: NumericsKey
    performance: PerformanceKey


class Trust(msgspec.Struct, frozen=True, kw_only=True):
    """How far a variant's evidence holds here; ``reason`` has what differs, with both values."""

    level: Level = "trusted"
    reason: str = ""


def isa_class(architecture: str, flags: Collection[str]) -> str:
    """Name the class of kernels that a processor runs, such as "avx2", "avx512+vnni" or "avx512+vnni+amx_int8"."""
    have = set(flags)
    if architecture in {"aarch64", "arm64"}:
        extra = (("dotprod", "asimddp"), ("fp16", "asimdhp"), ("i8mm", "i8mm"), ("bf16", "bf16"), ("sve", "sve"))
        return "+".join(("neon", *(name for name, flag in extra if flag in have)))
    if architecture not in {"x86_64", "AMD64", "i686"}:
        return "generic"
    wide = have >= _AVX512_CORE
    base = "avx512" if wide else "avx2" if {"avx2", "fma"} <= have else "generic"
    parts = [base]
    parts += [
        name
        for name, flag in (("vnni", "avx512_vnni"), ("bf16", "avx512_bf16"), ("fp16", "avx512_fp16"))
        if wide and flag in have
    ]
    return "+".join((*parts, *(flag for flag in ("avx_vnni", "amx_int8", "amx_bf16") if flag in have)))


def uses_gpu(runtime: str, settings: Mapping[str, Any]) -> bool:
    """Tell whether a variant runs on a GPU: by its runtime, or by its settings ``device`` or ``provider``."""
    if spec_of(runtime).on_gpu:
        return True
    named = (str(settings.get(key, "")).lower() for key in ("device", "provider"))
    return any(name.startswith(("cuda", "gpu", "tensorrt")) for name in named)


def packages_of(runtime: str) -> tuple[str, ...]:
    """Return every package that a runtime's answers may depend on, the one that its artifacts are tied to first."""
    spec = spec_of(runtime)
    return (spec.packages or (runtime,)) + spec.beside


def keys_of(machine: Machine, runtime: str, *, gpu: bool = False) -> Keys:
    """Make the keys of a variant on a machine.

    Args:
        machine: where it is built, or is to be opened.
        runtime: of the variant; one that is not known here counts as tied to its machine.
        gpu: whether it runs on the GPU.
    """
    facts = spec_of(runtime)
    version = next((machine.packages[name] for name in facts.packages if name in machine.packages), "")
    compiled = facts.binding == "machine"
    return Keys(
        load=LoadKey(
            runtime=runtime,
            binding=facts.binding,
            version=version,
            architecture=machine.architecture,
            flags=tuple(sorted(machine.flags)) if compiled else (),
            gpu=machine.gpu if gpu else "",
            capability=machine.capability if gpu else "",
            driver=machine.driver if gpu else "",
        ),
        numerics=NumericsKey(
            runtime=runtime,
            version=version,
            isa="" if gpu else isa_class(machine.architecture, machine.flags),
            gpu=machine.gpu if gpu else "",
        ),
        performance=PerformanceKey(
            processor=machine.processor,
            cores=machine.cores,
            quota_cores=None if machine.quota_cores is None else round(machine.quota_cores, 2),
            memory_gib=memory_class_gib(machine.memory_bytes),
            gpu=machine.gpu if gpu else "",
        ),
    )


def memory_class_gib(size_bytes: int) -> int:
    """Round memory to the nearest power of two of GiB; 0 where it is not known, 1 at the least otherwise."""
    return 2 ** max(0, round(log2(size_bytes / _GIB))) if size_bytes > 0 else 0


def trust(built: Keys | None, here: Keys, *, base: bool = False) -> Trust:
    """Judge how far evidence holds.

    Args:
        built: where the variant was built and judged; None where the record does not say.
        here: the same variant's keys on this machine.
        base: whether it belongs to the portable base, so that only its timings are tied to a machine.

    Returns:
        "not openable" where the load key does not fit, else "unverified" where the numerics key differs, else
        "remeasure" where the performance key differs, else "trusted".
    """
    if built is None:
        return (
            Trust() if base else Trust(level="unverified", reason="its record does not name the machine that judged it")
        )
    exempt = base and built.load.binding == "format"
    if not exempt and (found := list(_load_problems(built.load, here.load))):
        return Trust(level="not openable", reason="; ".join(found))
    if not base and built.numerics != here.numerics:
        return Trust(level="unverified", reason=_differences(built.numerics, here.numerics))
    if built.performance != here.performance:
        return Trust(level="remeasure", reason=_differences(built.performance, here.performance))
    return Trust()


def _load_problems(built: LoadKey, here: LoadKey) -> Iterator[str]:
    if error := spec_of(built.runtime).error:
        yield f"its runtime {built.runtime!r} is {error}"
        return
    package = packages_of(built.runtime)[0]
    if not here.version and built.version:
        yield f"it needs {package} (built with {built.version}), which is not installed here"
    elif built.binding != "format" and built.version != here.version:
        yield _says(f"version of {package}", built.version, here.version)
    elif _release(here.version) < _release(built.version):
        yield f"{_says(f'version of {package}', built.version, here.version)}, which is older"
    if built.architecture != here.architecture:
        yield _says("architecture", built.architecture, here.architecture)
    if missing := sorted(set(built.flags) - set(here.flags)):
        yield f"it was compiled for {', '.join(missing)}, which this processor lacks"
    if built.gpu and not here.gpu:
        yield _says("GPU", built.gpu, here.gpu)
    elif built.binding == "machine":
        for name, label in (("gpu", "GPU"), ("capability", "compute capability"), ("driver", "GPU driver")):
            if getattr(built, name) != getattr(here, name):
                yield _says(label, getattr(built, name), getattr(here, name))


_LABELS = {
    "runtime": "runtime",
    "version": "runtime version",
    "isa": "instruction sets",
    "gpu": "GPU",
    "processor": "processor",
    "cores": "cores",
    "quota_cores": "processor quota in cores",
    "memory_gib": "memory in GiB",
}


def _differences(built: msgspec.Struct, here: msgspec.Struct) -> str:
    pairs = ((name, getattr(built, name), getattr(here, name)) for name in built.__struct_fields__)
    return "; ".join(_says(_LABELS[name], old, new) for name, old, new in pairs if old != new)


def _says(what: str, old: object, new: object) -> str:
    shown = ["none" if value in {"", None} else str(value) for value in (old, new)]
    return f"{what}: {shown[0]} where it was built, {shown[1]} here"


def _release(version: str) -> tuple[int, ...]:
    """Numbers of a release ("2.13.0+cpu" -> 2, 13, 0), so that versions compare as such; () for what has none."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
