"""Which extra of tailcut installs a package that is missing."""

from __future__ import annotations

EXTRA_OF_MODULE = {
    "asyncpg": "postgres",
    "cuda": "tensorrt",
    "fsspec": "remote",
    "grpc": "grpc",
    "hiredis": "redis",
    "lightgbm": "trees",
    "matplotlib": "report",
    "nncf": "openvino-build",
    "onnx": "build",
    "onnxmltools": "trees-build",
    "onnxscript": "build",
    "opentelemetry": "otel",
    "openvino": "openvino",
    "pyarrow": "parquet",
    "redis": "redis",
    "safetensors": "text-build",
    "sentence_transformers": "text-build",
    "skl2onnx": "trees-build",
    "sklearn": "trees",
    "skops": "trees",
    "sympy": "build",
    "tensorrt": "tensorrt",
    "tokenizers": "text",
    "torch": "torch",
    "transformers": "text-build",
    "uvicorn": "profile",
    "xgboost": "trees",
}
"""Top-level module -> extra."""


def install(module: str) -> str:
    """Return the command that installs a module, submodules by their full names."""
    top = module.partition(".")[0]
    return f"pip install 'tailcut[{EXTRA_OF_MODULE[top]}]'" if top in EXTRA_OF_MODULE else f"pip install {top}"
