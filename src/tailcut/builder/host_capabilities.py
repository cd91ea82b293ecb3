"""What this machine has: what decides which recipes can pay here, and what the evidence was measured on."""

from __future__ import annotations

import platform
from collections.abc import Mapping

import msgspec

from tailcut.system.machine import package_versions, read_machine, visible_gpus


class HostCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine has.

    Attributes:
        machine: architecture, as ``platform.machine()`` names it.
        flags: instruction sets that decide kernels, see ``cpu``.
        cores: that this process may use.
        cuda: names of the CUDA devices, as the driver's own tool lists them; empty where there is none.
        packages: installed package -> version, of those that recipes need.
    """

    machine: str
    flags: tuple[str, ...]
    cores: int
    cuda: tuple[str, ...] = ()
    packages: Mapping[str, str] = {}

    @property
    def saturates(self) -> bool:
        """Whether 8-bit products saturate here, so that weights must keep to 7 bits.

        x86 without VNNI multiplies with VPMADDUBSW, whose 16-bit sums of two u8 x s8 products overflow
        (onnxruntime's quantization guide, "when to use reduce range"; onnxruntime issues 6004 and 14642).
        """
        return self.machine in {"x86_64", "AMD64"} and not {"avx512_vnni", "avx_vnni"} & set(self.flags)


_PACKAGES = (
    "torch",
    "onnx",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxscript",
    "openvino",
    "nncf",
    "tensorrt",
    "cuda-bindings",
    "scikit-learn",
    "skl2onnx",
    "onnxmltools",
    "lightgbm",
    "xgboost",
    "xgboost-cpu",
    "transformers",
    "tokenizers",
    "safetensors",
)


def look() -> HostCapabilities:
    """Look at this machine; opens no device and imports no runtime."""
    machine = read_machine()
    return HostCapabilities(
        machine=machine.architecture,
        flags=tuple(machine.flags),
        cores=machine.cores,
        cuda=visible_gpus(),
        packages=package_versions(_PACKAGES),
    )


# -- Evidence ----------------------------------------------------------------------------------------------------------


_RECORDED = ("tailcut", "numpy", "onnxruntime", "onnx", "onnxscript", "torch")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that made or ran a variant; absent ones are left out."""
    return {"python": platform.python_version(), **package_versions(_RECORDED)}
