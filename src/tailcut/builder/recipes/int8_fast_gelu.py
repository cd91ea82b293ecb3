"""Recipe "int8-fast-gelu": as int8-dynamic, and GELU by its tanh approximation.

A variant of its own name, because it computes another function than the source: the gate judges what that costs.
"""

from __future__ import annotations

from pathlib import Path

from tailcut.builder.recipes import kernels
from tailcut.builder.recipes.base import OnnxInt8, Result, Work
from tailcut.builder.recipes.int8_dynamic import make
from tailcut.errors import DoesNotApply


class Int8FastGelu(OnnxInt8):
    """Linear layers with 8-bit weights, activations quantised row by row, approximated GELU."""

    name = "int8-fast-gelu"
    summary = "int8-dynamic with GELU approximated by tanh"

    def make(self, work: Work) -> Result:
        """Approximate, quantise every way that fits this processor, keep the closest.

        Raises:
            DoesNotApply: the model has no exact GELU.
            BuildError: it cannot be quantised.
        """
        approximated = work.folder / f"{work.path.stem}.approximated.onnx"
        gelus = kernels.approximate(Path(work.base.path), approximated)
        if not gelus:
            raise DoesNotApply(
                "there is nothing to approximate: the model has no exact GELU",
                hint="use int8-dynamic, which is otherwise the same",
            )
        return Result({"approximated": {"gelu by tanh": gelus}, **make(work, approximated)})
