"""What this machine has, as far as it decides which recipes can pay here. Read once per build, by the parent."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

import msgspec

from tailcut.build import hardware


class Here(msgspec.Struct, frozen=True, kw_only=True):
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
    "nvidia-modelopt",
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


def look() -> Here:
    """Look at this machine; opens no device and imports no runtime."""
    cpu = hardware.cpu()
    return Here(
        machine=cpu["machine"],
        flags=tuple(cpu["flags"]),
        cores=cpu["cores"],
        cuda=_cuda_devices(),
        packages=_installed(),
    )


def _installed() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


_DRIVER = Path("/proc/driver/nvidia/gpus")


def _cuda_devices(driver: Path = _DRIVER) -> tuple[str, ...]:
    """Names of the GPUs that the NVIDIA driver lists and that CUDA_VISIBLE_DEVICES leaves visible."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in {"", "-1", "none", "NoDevFiles"}:
        return ()
    try:
        texts = [(entry / "information").read_text(encoding="utf-8") for entry in sorted(driver.iterdir())]
    except OSError:
        return ()
    lines = [line.partition(":") for text in texts for line in text.splitlines()]
    return tuple(value.strip() for name, _, value in lines if name.strip() == "Model")
