"""machine: what /proc and /sys say becomes a fingerprint; nothing there is no error."""

from __future__ import annotations

from pathlib import Path

import pytest

from tailcut.registry import read_machine
from tailcut.system.machine import free_bytes, visible_gpus

CPU = """processor\t: 0
model name\t: Intel(R) Xeon(R) Platinum 8481C
flags\t\t: fpu avx avx2 fma avx512f avx512_vnni amx_int8 sse4_2

processor\t: 1
model name\t: another
flags\t\t: fpu
"""
GPU = "Model: \t\t {model}\nIRQ:   \t\t 42\n"
NVRM = """NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.124.06  Release Build  (dvs-builder)
GCC version:  gcc version 12.3.0
"""


def tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_this_machine_is_read() -> None:
    machine = read_machine()
    assert machine.architecture
    assert machine.processor
    assert machine.cores >= 1
    assert machine.memory_bytes > 0
    assert {"tailcut", "numpy", "onnxruntime"} <= set(machine.packages)


def test_processor_and_memory_are_those_of_proc(tmp_path: Path) -> None:
    root = tree(tmp_path, {"proc/cpuinfo": CPU, "proc/meminfo": "MemTotal:       16384 kB\nMemFree: 1 kB\n"})
    machine = read_machine(root, {})
    assert machine.processor == "Intel(R) Xeon(R) Platinum 8481C"
    assert machine.flags == ("avx", "avx2", "fma", "avx512f", "avx512_vnni", "amx_int8")
    assert machine.memory_bytes == 16384 * 1024
    assert (machine.gpu, machine.driver, machine.quota_cores) == ("", "", None)


def test_an_empty_machine_is_still_one(tmp_path: Path) -> None:
    machine = read_machine(tmp_path, {})
    assert machine.processor
    assert (machine.flags, machine.memory_bytes, machine.quota_cores) == ((), 0, None)


def test_limits_of_control_groups_v2_hold_with_those_above_them(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 1048576 kB\n",
        "proc/self/cgroup": "0::/pods/mine\n",
        "sys/fs/cgroup/pods/mine/cpu.max": "max 100000\n",
        "sys/fs/cgroup/pods/cpu.max": "250000 100000\n",
        "sys/fs/cgroup/pods/mine/memory.max": "536870912\n",
        "sys/fs/cgroup/pods/memory.max": "max\n",
    }
    machine = read_machine(tree(tmp_path, files), {})
    assert machine.quota_cores == 2.5
    assert machine.memory_bytes == 536870912


def test_limits_of_control_groups_v1_are_read_where_the_path_is_the_hosts(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": "MemTotal: 1048576 kB\n",
        "proc/self/cgroup": "4:memory:/docker/abc\n3:cpuacct,cpu:/docker/abc\n0::/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "268435456\n",
    }
    machine = read_machine(tree(tmp_path, files), {})
    assert machine.quota_cores == 0.5
    assert machine.memory_bytes == 268435456


def test_memory_is_free_up_to_the_tightest_limit_and_unused_files_count_as_free(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) is None
    files = {
        "proc/meminfo": "MemTotal: 1048576 kB\nMemAvailable:   8192 kB\n",
        "proc/self/cgroup": "4:memory:/docker/abc\n0::/pods/mine\n",
    }
    assert free_bytes(tree(tmp_path, files)) == 8192 * 1024
    v2 = {
        "sys/fs/cgroup/pods/mine/memory.max": "4000000\n",
        "sys/fs/cgroup/pods/mine/memory.current": "3500000\n",
        "sys/fs/cgroup/pods/mine/memory.stat": "anon 1\ninactive_file 200000\nactive_file 7\n",
        "sys/fs/cgroup/pods/memory.max": "max\n",
        "sys/fs/cgroup/pods/memory.current": "1\n",
    }
    assert free_bytes(tree(tmp_path, v2)) == 700_000
    v1 = {
        "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "1000000\n",
        "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "1000001\n",
    }
    assert free_bytes(tree(tmp_path, v1)) == 0


def test_no_limit_of_control_groups_v1_is_minus_one(tmp_path: Path) -> None:
    files = {
        "proc/self/cgroup": "3:cpu:/\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    assert read_machine(tree(tmp_path, files), {}).quota_cores is None


@pytest.mark.parametrize(
    ("model", "capability"),
    [("NVIDIA H100 80GB HBM3", "9.0"), ("NVIDIA A100-SXM4-40GB", "8.0"), ("Tesla T4", "7.5"), ("NVIDIA L40S", "8.9")],
)
def test_gpus_are_those_of_the_driver(tmp_path: Path, model: str, capability: str) -> None:
    files = {
        "proc/driver/nvidia/gpus/0000:01:00.0/information": GPU.format(model=model),
        "proc/driver/nvidia/version": NVRM,
    }
    machine = read_machine(tree(tmp_path, files), {})
    assert (machine.gpu, machine.driver, machine.capability) == (model, "570.124.06", capability)


def test_two_kinds_of_gpu_have_no_common_capability_and_hidden_ones_are_not_there(tmp_path: Path) -> None:
    for number, model in enumerate(("NVIDIA A100-SXM4-40GB", "Tesla T4")):
        tree(tmp_path, {f"proc/driver/nvidia/gpus/{number}/information": GPU.format(model=model)})
    machine = read_machine(tmp_path, {"CUDA_VISIBLE_DEVICES": "0,1"})
    assert (machine.gpu, machine.capability) == ("NVIDIA A100-SXM4-40GB, Tesla T4", "")
    assert visible_gpus(tmp_path, {"CUDA_VISIBLE_DEVICES": "-1"}) == ()
    assert read_machine(tmp_path, {"CUDA_VISIBLE_DEVICES": ""}).driver == ""
