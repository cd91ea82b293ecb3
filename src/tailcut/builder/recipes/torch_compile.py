"""Recipe "torch-compile": the source module compiled for each bucket of batch sizes and captured as a CUDA graph."""

from __future__ import annotations

import shutil

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.recipes import cuda
from tailcut.builder.recipes.base import Precision, Recipe, Result, Subject, Work
from tailcut.errors import BuildError, TailcutError
from tailcut.models.runtimes import bucketed

FREE = "is compiled for fixed shapes: tensor {name!r} has a free dimension besides the batch"


class TorchCompile(Recipe):
    """torch.compile for fixed shapes, products in TF32, graphs as in ``runtimes.compiled``."""

    name = "torch-compile"
    base = ("torch",)
    runtime = "torch"
    suffix = ".pt"
    precision: Precision = "runtime"
    summary = "torch.compile on a GPU, one compilation and CUDA graph per batch size, fp32 with TF32 products"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """A device, a torch module and shapes that are fixed but for the batch."""
        if why := cuda.why_not_torch(subject, here):
            return why
        model = subject.deployment.model
        free = [tensor.name for tensor in (*model.inputs, *model.outputs) if not bucketed.fixed([tensor])]
        return FREE.format(name=free[0]) if free else ""

    def make(self, work: Work) -> Result:
        """Compile in one piece; where Python in the module breaks it, in pieces.

        Raises:
            BuildError: it cannot be compiled and captured either way.
        """
        shutil.copyfile(work.base.path, work.path)
        expected = cuda.answers(work, work.open(work.base))
        buckets = list(cuda.sizes(work.manifest.deployment))
        failed = ""
        for fullgraph in (True, False):
            settings = {"device": "cuda", "compile": True, "tf32": True, "buckets": buckets, "fullgraph": fullgraph}
            try:
                found = cuda.answers(work, work.open_file(work.path, self.runtime, settings))
            except TailcutError as error:
                failed = error.message
                continue
            evidence = {"fullgraph": fullgraph, "graphs": buckets, "device": work.here.cuda[0]}
            broke = {} if fullgraph else {"why_not_fullgraph": failed}
            return Result({**evidence, **broke, "difference": cuda.difference(expected, found)}, settings)
        raise BuildError(failed, hint="leave torch-compile out with build.recipes, and try bf16 or tensorrt")
