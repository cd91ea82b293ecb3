"""What the evidence was measured on: processor, its instruction sets, cores and package versions."""

from __future__ import annotations

import os
import platform
from collections.abc import Collection, Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

_FLAGS = ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimddp")
_PACKAGES = ("tailcut", "numpy", "onnxruntime", "onnx", "onnxscript", "torch")


def cpu() -> dict[str, Any]:
    """Describe this machine's processor: model, architecture, usable cores and the flags that decide kernels."""
    info = _first_processor()
    flags = set(info.get("flags", info.get("Features", "")).split())
    return {
        "model": info.get("model name", "") or platform.processor() or platform.machine(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "flags": [flag for flag in _FLAGS if flag in flags],
    }


def versions(packages: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Versions of Python and of the packages that made or ran a variant; absent ones are left out."""
    found = {"python": platform.python_version()}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def saturates(machine: str, flags: Collection[str]) -> bool:
    """Tell whether 8-bit products saturate on this processor, so that weights must keep to 7 bits.

    x86 without VNNI multiplies with VPMADDUBSW, whose 16-bit sums of two u8 x s8 products overflow
    (onnxruntime's quantization guide, "when to use reduce range"; onnxruntime issues 6004 and 14642).
    """
    return machine in {"x86_64", "AMD64"} and not {"avx512_vnni", "avx_vnni"} & set(flags)


def _first_processor() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
