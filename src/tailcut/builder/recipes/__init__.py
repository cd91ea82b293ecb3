"""One file per recipe: how a variant is made. Each runs in a child process of the builder.

A new recipe is a file here and a line in ``CATALOG``.
"""

from __future__ import annotations

from tailcut.builder.recipes.base import Recipe
from tailcut.builder.recipes.bf16 import Bf16
from tailcut.builder.recipes.cuda import OnnxCuda
from tailcut.builder.recipes.fp16 import Fp16
from tailcut.builder.recipes.int8_dynamic import Int8Dynamic
from tailcut.builder.recipes.int8_fast_gelu import Int8FastGelu
from tailcut.builder.recipes.int8_qat import Int8Qat
from tailcut.builder.recipes.int8_static import Int8Static
from tailcut.builder.recipes.onnx import Onnx
from tailcut.builder.recipes.openvino import OpenVino
from tailcut.builder.recipes.openvino_int8 import OpenVinoInt8
from tailcut.builder.recipes.pair import Pair
from tailcut.builder.recipes.tensorrt import TensorRT
from tailcut.builder.recipes.torch_compile import TorchCompile

CATALOG: tuple[Recipe, ...] = (
    Onnx(),
    Int8Dynamic(),
    Int8FastGelu(),
    Int8Static(),
    OpenVino(),
    OpenVinoInt8(),
    OnnxCuda(),
    Fp16(),
    Bf16(),
    TorchCompile(),
    TensorRT(),
    Int8Qat(),
    Pair(),
)
"""Every recipe, in the order in which they are made: a recipe stands after those that it can be made from."""


def recipe(name: str) -> Recipe:
    """Find a recipe; KeyError where there is none."""
    return {each.name: each for each in CATALOG}[name]
