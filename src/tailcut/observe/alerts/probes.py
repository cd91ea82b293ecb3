"""Figures of the process and its machine: memory, throttling and GPUs, from files of /proc and /sys, and NVML.

Memory is what is not shared with others: resident less shared pages, over the server and its child processes. Pages of
a model's file that the kernel maps in and out are not counted. Sources: proc(5) (statm), the kernel's
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ (cpu.stat).
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from tailcut.system.machine import control_groups, read_text

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SLOWED = ("SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")


class GpuFigures(NamedTuple):
    """GPUs as their driver reports them.

    Attributes:
        used_bytes: of the server's processes.
        celsius: of the hottest one.
        slowed: how many have their clocks held back by heat or by the power supply.
    """

    used_bytes: int = 0
    celsius: float = 0.0
    slowed: int = 0


class Figures(NamedTuple):
    """One sample.

    Attributes:
        memory_bytes: unshared, of the server and its children.
        periods, throttled: of the CPU quota, since the control group began; 0 without one.
        gpu: zeros without a GPU.
    """

    memory_bytes: int
    periods: int
    throttled: int
    gpu: GpuFigures = GpuFigures()


def _load_nvml() -> Any:
    return importlib.import_module("pynvml")  # of nvidia-ml-py


class SystemProbes:
    """Reads figures; a sample takes well under a millisecond without a GPU.

    Args:
        root: where proc/ and sys/ are.
        load_nvml: returns NVIDIA's management library; called by the first ``read``, as a driver may take its time.
    """

    def __init__(self, root: Path = Path("/"), load_nvml: Callable[[], Any] = _load_nvml) -> None:
        self._root = root
        self._load_nvml = load_nvml
        self._nvml: Any = None
        self._gpus: list[Any] | None = None
        self._cpu_stats = list(_cpu_stats(root))

    def read(self) -> Figures:
        """Return the figures as of now."""
        pids = {os.getpid(), *_children(self._root / f"proc/{os.getpid()}")}
        throttled, periods = max(map(_throttling, self._cpu_stats), default=(0, 0))
        memory_bytes = sum(_unshared_bytes(self._root / f"proc/{pid}") for pid in pids)
        return Figures(memory_bytes, periods, throttled, self._read_gpus(pids))

    def _read_gpus(self, pids: set[int]) -> GpuFigures:
        if self._gpus is None:
            self._gpus = []
            with suppress(Exception):  # whatever a driver or its binding says where there is no GPU
                self._nvml = self._load_nvml()
                self._nvml.nvmlInit()
                number = self._nvml.nvmlDeviceGetCount()
                self._gpus = [self._nvml.nvmlDeviceGetHandleByIndex(place) for place in range(number)]
        used, slowed, celsius = 0, 0, 0.0
        reasons = sum(getattr(self._nvml, f"nvmlClocksThrottleReason{name}", 0) for name in _SLOWED)
        for gpu in self._gpus:
            celsius = max(celsius, self._ask(0, "nvmlDeviceGetTemperature", gpu, self._nvml.NVML_TEMPERATURE_GPU))
            slowed += bool(self._ask(0, "nvmlDeviceGetCurrentClocksThrottleReasons", gpu) & reasons)
            processes = self._ask([], "nvmlDeviceGetComputeRunningProcesses", gpu)
            used += sum(each.usedGpuMemory or 0 for each in processes if each.pid in pids)
        return GpuFigures(used, celsius, slowed)

    def _ask(self, default: Any, name: str, *arguments: Any) -> Any:
        try:
            return getattr(self._nvml, name)(*arguments)
        except Exception:  # not supported on this device, or the driver is gone
            return default


def _unshared_bytes(process: Path) -> int:
    with suppress(OSError, ValueError, IndexError):
        fields = (process / "statm").read_text().split()
        return max(int(fields[1]) - int(fields[2]), 0) * _PAGE_BYTES
    return 0  # it has ended


def _children(process: Path) -> Iterator[int]:
    """Yield child processes, and theirs; the kernel may not list them (CONFIG_PROC_CHILDREN)."""
    with suppress(OSError):
        for task in (process / "task").iterdir():
            with suppress(OSError):
                for pid in (task / "children").read_text().split():
                    yield int(pid)
                    yield from _children(process.parent / pid)


def _cpu_stats(root: Path) -> Iterator[Path]:
    """Yield the control groups' files, this process's own first, that say how often a quota was enforced."""
    for folder in control_groups(root, "cpu"):
        if "nr_periods" in read_text(folder / "cpu.stat"):
            yield folder / "cpu.stat"


def _throttling(path: Path) -> tuple[int, int]:
    """Return in how many periods a quota was used up, and of how many; version 1 and 2 have the same names."""
    fields = dict(re.findall(r"^(nr_periods|nr_throttled) (\d+)$", read_text(path), re.MULTILINE))
    return int(fields.get("nr_throttled", 0)), int(fields.get("nr_periods", 0))
