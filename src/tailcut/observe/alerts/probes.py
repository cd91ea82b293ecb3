"""Figures of the process and its machine that leaks and throttling are judged by: files of /proc and /sys, and NVML.

Memory is what is not shared with others: resident less shared pages, over the server and its child processes. Pages of
a model's file that the kernel maps in and out are not counted. Sources: proc(5) (statm), the kernel's
Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ (cpu.stat).
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tailcut.observe.alerts.evidence import Gpu
from tailcut.system.machine import control_groups

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SLOWED = ("SwThermalSlowdown", "HwThermalSlowdown", "HwPowerBrakeSlowdown")


class Figures(NamedTuple):
    """One sample.

    Attributes:
        memory_bytes: unshared, of the server and its children.
        descriptors, threads: of the server; -1 where they are not known.
        periods, throttled: of the CPU quota, since the control group began; 0 without one.
        gpu_bytes: of the server's processes; -1 without a GPU.
    """

    memory_bytes: int
    descriptors: int
    threads: int
    periods: int
    throttled: int
    gpus: Sequence[Gpu] = ()
    gpu_bytes: int = -1


class GpuReader(Protocol):
    """Asks the driver."""

    def read(self, pids: set[int]) -> tuple[list[Gpu], int]:
        """Return the GPUs, and the bytes that these processes hold on them."""
        ...


def _no_gpu() -> GpuReader | None:
    return None


class Probes:
    """Reads figures; a sample takes well under a millisecond without a GPU.

    Args:
        root: where proc/ and sys/ are.
        open_gpu: called by the first ``read``, as a driver may take its time; None where there is no GPU.
    """

    def __init__(
        self, root: Path = Path("/"), open_gpu: Callable[[], GpuReader | None] = _no_gpu, pid: int | None = None
    ) -> None:
        self._root = root
        self._open_gpu: Callable[[], GpuReader | None] | None = open_gpu
        self._gpu: GpuReader | None = None
        self._pid = os.getpid() if pid is None else pid
        self._cpu_stats = list(_cpu_stats(root))

    def read(self) -> Figures:
        """Return the figures as of now."""
        if self._open_gpu is not None:
            self._gpu, self._open_gpu = self._open_gpu(), None
        own = self._root / f"proc/{self._pid}"
        pids = {self._pid, *_children(own)}
        throttled, periods = max(map(_throttling, self._cpu_stats), default=(0, 0))
        gpus, gpu_bytes = self._gpu.read(pids) if self._gpu is not None else ([], -1)
        return Figures(
            sum(_unshared_bytes(self._root / f"proc/{pid}") for pid in pids),
            _entries(own / "fd"),
            _entries(own / "task"),
            periods,
            throttled,
            gpus,
            gpu_bytes,
        )


def _load() -> Any:
    return importlib.import_module("pynvml")  # of nvidia-ml-py


def open_gpu_reader(load: Callable[[], Any] = _load) -> GpuReader | None:
    """Return a reader for NVIDIA's GPUs; None without the package nvidia-ml-py, its driver, or a GPU."""
    try:
        nvml = load()
        nvml.nvmlInit()
        handles = [nvml.nvmlDeviceGetHandleByIndex(place) for place in range(nvml.nvmlDeviceGetCount())]
    except Exception:  # whatever a driver or its binding says where there is none
        return None
    return _Nvml(nvml, handles) if handles else None


class _Nvml:
    """GPUs through NVIDIA's management library; figures that a device does not have are left out."""

    def __init__(self, nvml: Any, handles: Sequence[Any]) -> None:
        self._nvml = nvml
        self._handles = handles
        self._slowed = sum(getattr(nvml, f"nvmlClocksThrottleReason{name}", 0) for name in _SLOWED)

    def read(self, pids: set[int]) -> tuple[list[Gpu], int]:
        gpus, used = [], 0
        for place, handle in enumerate(self._handles):
            celsius = self._ask(float("nan"), "nvmlDeviceGetTemperature", handle, self._nvml.NVML_TEMPERATURE_GPU)
            reasons = self._ask(0, "nvmlDeviceGetCurrentClocksThrottleReasons", handle)
            gpus.append(Gpu(f"GPU {place}", float(celsius), bool(reasons & self._slowed)))
            processes = self._ask([], "nvmlDeviceGetComputeRunningProcesses", handle)
            used += sum(each.usedGpuMemory or 0 for each in processes if each.pid in pids)
        return gpus, used

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


def _entries(folder: Path) -> int:
    try:
        return len(os.listdir(folder))
    except OSError:
        return -1


def _cpu_stats(root: Path) -> Iterator[Path]:
    """Yield the control groups' files, this process's own first, that say how often a quota was enforced."""
    for folder in control_groups(root, "cpu"):
        if "nr_periods" in _text(folder / "cpu.stat"):
            yield folder / "cpu.stat"


def _throttling(path: Path) -> tuple[int, int]:
    """Return in how many periods a quota was used up, and of how many; version 1 and 2 have the same names."""
    fields = dict(re.findall(r"^(nr_periods|nr_throttled) (\d+)$", _text(path), re.MULTILINE))
    return int(fields.get("nr_throttled", 0)), int(fields.get("nr_periods", 0))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
