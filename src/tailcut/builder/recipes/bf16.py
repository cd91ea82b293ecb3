"""Recipe "bf16": the source module on a GPU with weights and activations in bfloat16, which has the range of fp32."""

from __future__ import annotations

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes import cuda
from tailcut.builder.recipes.base import Precision, Recipe, Result, Subject, Work


class Bf16(Recipe):
    """The torch module in bfloat16 on a GPU."""

    name = "bf16"
    base = ("torch",)
    runtime = "torch"
    suffix = ".pt"
    precision: Precision = "lower"
    summary = "the torch module in bfloat16 on a GPU, a CUDA graph per batch size"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """A device and a torch module."""
        return cuda.why_not_torch(subject, here)

    def make(self, work: Work) -> Result:
        """Take the base's state dict; the settings make the variant.

        Raises:
            BuildError: the module cannot run in bfloat16, such as one that makes float32 tensors by itself.
        """
        return cuda.by_settings(work, self.runtime, {"device": "cuda", "dtype": "bfloat16"})
