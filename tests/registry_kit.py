"""Registries for tests: small artifacts, and machines that are not this one."""

from __future__ import annotations

from pathlib import Path

from tailcut.common.fingerprint import Machine
from tailcut.manifest import TensorSpec
from tailcut.registry import NewVariant, Registry, VariantEvidence, Version, VersionEvidence

X = (TensorSpec(name="x", shape=(-1, 4)),)
Y = (TensorSpec(name="y"),)

AVX2 = Machine(
    architecture="x86_64",
    flags=("avx", "avx2", "fma"),
    processor="AMD EPYC 7763",
    cores=8,
    memory_bytes=32 << 30,
    packages={"onnxruntime": "1.31.1", "torch": "2.13.0+cpu", "tensorrt": "11.0.0", "openvino": "2026.4.1"},
)


def add(
    registry: Registry,
    folder: Path,
    content: bytes = b"weights",
    *,
    model: str = "flights",
    refused: str = "",
    **more: object,
) -> Version:
    """Add a version: torch is the source, onnx is of the base, int8 is tied to its machine."""
    folder.mkdir(exist_ok=True)
    files = {name: folder / name for name in ("torch", "onnx", "int8")}
    for name, file in files.items():
        file.write_bytes(name.encode() + content)
    measured, code = VariantEvidence(metrics={"auc": 0.75}), ("my_model:build",)
    variants = [
        NewVariant("torch", "torch", files["torch"], evidence=measured, live_code=code),
        NewVariant("onnx", "onnxruntime", files["onnx"], base=True),
        NewVariant("int8", "onnxruntime", files["int8"], refused=refused, settings={"threads": len(content)}),
        NewVariant("fp16", "onnxruntime", None, refused="not here: no CUDA device"),
    ]
    return registry.add(
        model,
        source="torch",
        inputs=X,
        outputs=Y,
        variants=variants,
        evidence=VersionEvidence(versions={"onnx": "1.18"}),
        **more,  # type: ignore[arg-type]
    )
