"""What the evidence was measured on: processor, its instruction sets, cores and package versions."""

from __future__ import annotations

import platform
from collections.abc import Collection, Iterable
from typing import Any

from tailcut.common.fingerprint import Machine
from tailcut.system.machine import package_versions, read_machine

_PACKAGES = ("tailcut", "numpy", "onnxruntime", "onnx", "onnxscript", "torch")


def cpu(machine: Machine | None = None) -> dict[str, Any]:
    """Describe a machine's processor: model, architecture, usable cores and the flags that decide kernels.

    Args:
        machine: the one to describe; this one where None.
    """
    machine = machine or read_machine()
    return {
        "model": machine.processor,
        "machine": machine.architecture,
        "cores": machine.cores,
        "flags": list(machine.flags),
    }


def versions(packages: Iterable[str] = _PACKAGES) -> dict[str, str]:
    """Versions of Python and of the packages that made or ran a variant; absent ones are left out."""
    return {"python": platform.python_version(), **package_versions(packages)}


def saturates(machine: str, flags: Collection[str]) -> bool:
    """Tell whether 8-bit products saturate on this processor, so that weights must keep to 7 bits.

    x86 without VNNI multiplies with VPMADDUBSW, whose 16-bit sums of two u8 x s8 products overflow
    (onnxruntime's quantization guide, "when to use reduce range"; onnxruntime issues 6004 and 14642).
    """
    return machine in {"x86_64", "AMD64"} and not {"avx512_vnni", "avx_vnni"} & set(flags)
