"""Probes: memory of a process tree, throttling of control groups of both versions, and GPUs through NVML."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tailcut.observe.alerts.probes import GpuFigures, SystemProbes

COUNTS = "nr_periods 40\nnr_throttled 4\n"
GROUPS = {
    "v2": ("0::/app\n", "sys/fs/cgroup/app/cpu.stat", f"usage_usec 5\n{COUNTS}throttled_usec 9\n"),
    "v1": ("4:cpu,cpuacct:/app\n", "sys/fs/cgroup/cpu/app/cpu.stat", f"{COUNTS}throttled_time 9\n"),
    "v1 in a container": ("4:cpu:/docker/1\n", "sys/fs/cgroup/cpu/cpu.stat", COUNTS),
}


@pytest.mark.parametrize("version", GROUPS)
def test_throttling_is_read_from_the_control_group(version: str, tmp_path: Path) -> None:
    group, name, text = GROUPS[version]
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(group)
    (tmp_path / name).parent.mkdir(parents=True)
    (tmp_path / name).write_text(text)
    figures = SystemProbes(tmp_path).read()
    assert (figures.periods, figures.throttled) == (40, 4)


def no_driver() -> Any:
    raise ImportError("pynvml")


def test_without_proc_and_quota_there_is_nothing_to_tell(tmp_path: Path) -> None:
    assert SystemProbes(tmp_path, no_driver).read() == (0, 0, 0, GpuFigures())


def test_memory_is_of_the_process_and_its_children() -> None:
    before = SystemProbes().read()
    held = bytearray(os.urandom(1)) * (30 << 20)
    code = "held = bytearray(b'x') * (40 << 20); print(flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()
    after = SystemProbes().read()
    child.communicate(b"\n")
    assert after.memory_bytes - before.memory_bytes > 65 << 20
    del held


def nvml(**changes: Any) -> SimpleNamespace:
    """A driver with one GPU."""
    calls = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda place: place,
        "nvmlDeviceGetTemperature": lambda handle, sensor: 91,
        "nvmlDeviceGetCurrentClocksThrottleReasons": lambda handle: 0x40,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: [
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=7 << 20),
            SimpleNamespace(pid=1, usedGpuMemory=1 << 30),
        ],
        "NVML_TEMPERATURE_GPU": 0,
        "nvmlClocksThrottleReasonHwThermalSlowdown": 0x40,
    }
    return SimpleNamespace(**calls | changes)


def test_gpus_are_read_and_what_a_device_does_not_tell_is_left_out(tmp_path: Path) -> None:
    probes = SystemProbes(tmp_path, nvml)
    assert [probes.read().gpu for _ in range(2)] == [GpuFigures(7 << 20, 91.0, 1)] * 2

    def unsupported(*_: Any) -> int:
        raise RuntimeError("not supported")

    quiet = {"nvmlDeviceGetTemperature": unsupported, "nvmlDeviceGetCurrentClocksThrottleReasons": unsupported}
    assert SystemProbes(tmp_path, lambda: nvml(**quiet)).read().gpu == GpuFigures(7 << 20, 0.0, 0)


def test_without_a_driver_or_a_device_there_are_no_gpus(tmp_path: Path) -> None:
    def broken() -> None:
        raise RuntimeError("driver/library version mismatch")

    for load in (no_driver, lambda: nvml(nvmlDeviceGetCount=lambda: 0), lambda: nvml(nvmlInit=broken)):
        assert SystemProbes(tmp_path, load).read().gpu == GpuFigures()
