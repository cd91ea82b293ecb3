"""Recipe "onnx": the source model exported, checked against it at several batch sizes."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.quality import export_check
from tailcut.builder.recipes import fusions, onnx_export, trees
from tailcut.builder.recipes.base import Result, Subject, Work, missing
from tailcut.common.tensors import Arrays
from tailcut.models.runtimes import Runtime
from tailcut.models.runtimes.live import source_of


class Onnx:
    """The source model in onnxruntime: a torch module exported, a model on tables by ``recipes.trees``."""

    name = "onnx"
    base = ("torch", "sklearn", "lightgbm", "xgboost")
    runtime = "onnxruntime"
    suffix = ".onnx"
    summary = "exported to ONNX, fp32, graph-optimised by onnxruntime"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """An ONNX source is this variant already."""
        if subject.kind == "onnx":
            return "the source is already an ONNX file"
        if subject.kind in trees.KINDS:
            return trees.why_not(subject, here)
        torch = missing(here, "torch", "onnx", "onnxscript", extra="build")
        if subject.kind or not torch:
            return torch
        tables = trees.why_not(msgspec.structs.replace(subject, kind="sklearn"), here)
        return f"depends on the model: PyTorch {torch}; scikit-learn, LightGBM or XGBoost {tables or 'applies'}"

    def make(self, work: Work) -> Result:
        """Export and compare with the source.

        Raises:
            BuildError: it cannot be exported, or gives other answers.
        """
        if work.base.runtime in trees.RUNTIMES:
            return trees.make(work)
        from tailcut.builder.records import openable
        from tailcut.models.runtimes.torch import load_module

        deployment = work.manifest.deployment
        model = deployment.model
        source = source_of(work.manifest, work.base.runtime)
        assert source is not None
        module = load_module(openable(work.base, deployment), source)
        found = onnx_export.export(module, work.selection, model.inputs, model.outputs, work.path)
        names = [tensor.name for tensor in model.outputs]

        def run(runtime: Runtime) -> Callable[[Arrays], Arrays]:
            return lambda inputs: runtime.run(inputs, names)

        compared = export_check.check(
            run(work.open(work.base)),
            run(work.open_file(work.path, self.runtime)),
            work.selection,
            model.outputs,
        )
        return Result(
            {
                **found,
                "parity": {"absolute": export_check.ABSOLUTE, "relative": export_check.RELATIVE, "found": compared},
                "fusions": fusions.improve(work, module, run),
            }
        )
