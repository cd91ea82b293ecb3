"""What this machine has, as far as it decides which recipes can pay here. Read once per build, by the parent."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tailcut.builder.speed import hardware
from tailcut.system.machine import package_versions, visible_gpus


class HostCapabilities(msgspec.Struct, frozen=True, kw_only=True):
    """What a machine has.

    Attributes:
        machine: architecture, as ``platform.machine()`` names it.
        flags: instruction sets that decide kernels, see ``hardware.cpu``.
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
        """Whether 8-bit products saturate here; see ``hardware.saturates``."""
        return hardware.saturates(self.machine, self.flags)


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
    cpu = hardware.cpu()
    return HostCapabilities(
        machine=cpu["machine"],
        flags=tuple(cpu["flags"]),
        cores=cpu["cores"],
        cuda=visible_gpus(),
        packages=package_versions(_PACKAGES),
    )
