"""One file per recipe: how a variant is made. Each runs in a child process of the builder.

A new recipe is a file here and a line in ``BUILT_IN``, or one of another package that its entry point of the group
``tailcut.recipes`` names.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes.base import Precision, Recipe, Result, Subject, Work
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
from tailcut.errors import BuildError

BUILT_IN: tuple[Recipe, ...] = (
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
"""tailcut's own, in the order in which they are made: a recipe stands after those that it can be made from."""

GROUP = "tailcut.recipes"


@dataclass
class Unloadable(Recipe):
    """A recipe that another package registers, and that cannot be imported: listed with the reason."""

    name: str
    error: str
    base: tuple[str, ...] = ()
    runtime: str = ""
    suffix: str = ""
    precision: Precision = "runtime"
    summary: str = "of another package"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """Say what went wrong."""
        return self.error

    def make(self, work: Work) -> Result:
        """Never: it applies nowhere."""
        raise BuildError(f"recipe {self.name!r}: {self.error}")


@cache
def catalog() -> tuple[Recipe, ...]:
    """Return every recipe, in the order in which they are made: those that other packages register come last."""
    return (*BUILT_IN, *map(_registered, sorted(entry_points(group=GROUP), key=lambda one: one.name)))


def _registered(entry: EntryPoint) -> Recipe:
    try:
        found: Recipe = entry.load()
    except Exception as error:
        return Unloadable(entry.name, f"registered as {entry.value!r}, which cannot be imported: {error}")
    return found


def recipe(name: str) -> Recipe:
    """Find a recipe; KeyError where there is none."""
    return {each.name: each for each in catalog()}[name]
