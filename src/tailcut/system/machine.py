"""Reads this machine: processor, cores, what its control groups allow, memory, GPUs and package versions.

Files of /proc and /sys only: no runtime is imported and no device is opened. Control groups are described in the
kernel's Documentation/admin-guide/cgroup-v2.rst (cpu.max, memory.max) and cgroup-v1/ (cpu.cfs_quota_us,
memory.limit_in_bytes); a group's limits hold with those of all groups above it.
"""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path, PurePosixPath

from tailcut.common.fingerprint import FLAGS, Machine
from tailcut.common.runtime_spec import spec_packages

_CAPABILITIES = (
    (r"B[23]00", "10.0"),
    (r"RTX (PRO \d+ Blackwell|50\d0)", "12.0"),
    (r"H[12]00|H20|GH200", "9.0"),
    (r"L4|L40S?|RTX 40\d0|RTX \d+ Ada", "8.9"),
    (r"A2|A10G?|A16|A40|RTX 30\d0|RTX A\d+", "8.6"),
    (r"A100|A30", "8.0"),
    (r"T4|RTX 20\d0", "7.5"),
    (r"V100", "7.0"),
)
"""Compute capability by model (developer.nvidia.com/cuda-gpus): the driver's files do not tell it."""


def read_machine(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> Machine:
    """Read this machine.

    Args:
        root: where proc/ and sys/ are looked for.
        environment: variables to read instead of the process's own (CUDA_VISIBLE_DEVICES).
    """
    environment = os.environ if environment is None else environment
    processor = _fields(read_text(root / "proc/cpuinfo").partition("\n\n")[0])
    flags = set(processor.get("flags", processor.get("Features", "")).split())
    gpus = visible_gpus(root, environment)
    return Machine(
        architecture=platform.machine(),
        flags=tuple(flag for flag in FLAGS if flag in flags),
        processor=processor.get("model name", "") or platform.processor() or platform.machine(),
        cores=_cores(),
        quota_cores=_quota_cores(root),
        memory_bytes=memory_bytes(root),
        packages=package_versions(("tailcut", "numpy", *spec_packages())),
        gpu=", ".join(gpus),
        driver=_driver(root) if gpus else "",
        capability=_capability(gpus),
    )


def usable_cores(root: Path = Path("/")) -> float:
    """Return ``Machine.usable_cores`` of this machine without reading the rest, which takes milliseconds."""
    return Machine(architecture="", cores=_cores(), quota_cores=_quota_cores(root)).usable_cores


def package_versions(packages: Iterable[str]) -> dict[str, str]:
    """Versions of the packages that are installed; the others are left out."""
    found = {}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def visible_gpus(root: Path = Path("/"), environment: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Models of the GPUs that the NVIDIA driver lists, unless CUDA_VISIBLE_DEVICES hides all of them."""
    visible = (os.environ if environment is None else environment).get("CUDA_VISIBLE_DEVICES")
    if visible is not None and visible.strip() in {"", "-1", "none", "NoDevFiles"}:
        return ()
    folder = root / "proc/driver/nvidia/gpus"
    try:
        texts = [read_text(entry / "information") for entry in sorted(folder.iterdir())]
    except OSError:
        return ()
    return tuple(fields["Model"] for fields in map(_fields, texts) if fields.get("Model"))


def _driver(root: Path) -> str:
    first = read_text(root / "proc/driver/nvidia/version").partition("\n")[0]
    found = re.search(r"\b\d+\.\d+(\.\d+)?\b", first)
    return found[0] if found else ""


def _capability(gpus: Collection[str]) -> str:
    """Name the capability of the GPUs where all have the same one and their models are known."""
    found = {next((value for models, value in _CAPABILITIES if re.search(rf"\b({models})\b", gpu)), "") for gpu in gpus}
    return found.pop() if len(found) == 1 else ""


def memory_bytes(root: Path = Path("/")) -> int:
    """Memory of the machine, or the control groups' limit where that is less; 0 where nothing tells."""
    total = _fields(read_text(root / "proc/meminfo")).get("MemTotal", "").removesuffix("kB").strip()
    limits = [int(total) * 1024] if total.isdigit() else []
    for folder in control_groups(root, "memory"):
        for name in ("memory.max", "memory.limit_in_bytes"):
            text = read_text(folder / name).strip()
            limits += [int(text)] if text.isdigit() else []
    return min(limits, default=0)


def free_bytes(root: Path = Path("/")) -> int | None:
    """Memory that can still be taken: of the machine, or below a control group's limit; None where nothing tells.

    What a group holds of files that nobody uses counts as free, as MemAvailable has it: the kernel gives it back.
    """
    available = _fields(read_text(root / "proc/meminfo")).get("MemAvailable", "").removesuffix("kB").strip()
    free = [int(available) * 1024] if available.isdigit() else []
    for folder in control_groups(root, "memory"):
        for most, used, cached in (
            ("memory.max", "memory.current", "inactive_file"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ):
            limit, taken = read_text(folder / most).strip(), read_text(folder / used).strip()
            if limit.isdigit() and taken.isdigit():
                held = re.search(rf"^{cached} (\d+)$", read_text(folder / "memory.stat"), re.MULTILINE)
                free.append(int(limit) - int(taken) + (int(held[1]) if held else 0))
    return max(min(free), 0) if free else None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _quota_cores(root: Path) -> float | None:
    quotas = []
    for folder in control_groups(root, "cpu"):
        parts = read_text(folder / "cpu.max").split() or [
            read_text(folder / "cpu.cfs_quota_us").strip(),
            read_text(folder / "cpu.cfs_period_us").strip(),
        ]
        # "max" (v2) and -1 (v1) say that there is no limit.
        if len(parts) == 2 and all(part.isdigit() for part in parts) and int(parts[1]):
            quotas.append(int(parts[0]) / int(parts[1]))
    return min(quotas, default=None)


def control_groups(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders of this process's control group and of those above it, for one controller, v2 and v1.

    Inside a container the path may be the host's; what is not there is passed over on the way up.
    """
    mounted = root / "sys/fs/cgroup"
    for line in read_text(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if names and controller not in names.split(","):
            continue
        base = mounted / controller if names else mounted
        for above in (PurePosixPath(path), *PurePosixPath(path).parents):
            yield base / above.relative_to("/") if above.is_absolute() else base


def _fields(text: str) -> dict[str, str]:
    """Lines "name : value" as a dictionary."""
    lines = (line.partition(":") for line in text.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def read_text(path: Path) -> str:
    """Return a file's text; empty where it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
