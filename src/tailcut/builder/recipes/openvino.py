"""Recipe "openvino": the fp32 ONNX model in OpenVINO's own format, in one file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tailcut.builder.host_capabilities import HostCapabilities
from tailcut.builder.quality import export_check
from tailcut.builder.recipes.base import Precision, Recipe, Result, Subject, Work, missing
from tailcut.errors import BuildError
from tailcut.models.runtimes import Runtime
from tailcut.models.runtimes.floats import subnormals_kept
from tailcut.registry.evidence import RecipeEvidence

MACHINES = frozenset({"x86_64", "AMD64", "aarch64", "arm64"})
"""That OpenVINO's CPU plugin is built for."""


class OpenVino(Recipe):
    """The model in OpenVINO, fp32."""

    name = "openvino"
    base = ("onnx",)
    runtime = "openvino"
    suffix = ".ovir"
    precision: Precision = "runtime"
    summary = "converted to OpenVINO, fp32"

    def why_not(self, subject: Subject, here: HostCapabilities) -> str:
        """Say what is missing; OpenVINO has no operators for ensembles of trees."""
        if subject.trees:
            return "OpenVINO has no operator for ensembles of trees"
        if here.machine not in MACHINES:
            return f"not here: OpenVINO's CPU plugin is for x86-64 and ARM64, this machine is {here.machine}"
        return missing(here, "openvino", extra="openvino")

    def make(self, work: Work) -> Result:
        """Convert, and compare with the base.

        Raises:
            BuildError: OpenVINO cannot read the model, or gives other answers.
        """
        found = convert(Path(work.base.path), work.path, work.folder)
        names = [tensor.name for tensor in work.manifest.deployment.model.outputs]

        def answers(runtime: Runtime) -> export_check.Run:
            return lambda inputs: runtime.run(inputs, names)

        base, made = work.open(work.base), work.open_file(work.path, self.runtime)
        outputs = work.manifest.deployment.model.outputs
        compared = export_check.check(answers(base), answers(made), work.selection, outputs)
        return Result({**found, "parity": compared}, evidence=RecipeEvidence(exact=True))


def convert(source: Path, path: Path, folder: Path) -> dict[str, object]:
    """Write ``source`` (.onnx) as an .ovir file.

    Raises:
        BuildError: OpenVINO cannot read it.
    """
    model = read(source)
    save(model, path, folder)
    return {"operators": count(model), "bytes": path.stat().st_size}


def read(source: Path) -> Any:
    """Read an .onnx file as an openvino.Model.

    Raises:
        BuildError: it has operators that OpenVINO does not know.
    """
    from tailcut.models.runtimes.openvino import load_openvino

    openvino = load_openvino()
    try:
        with subnormals_kept():
            return openvino.Core().read_model(str(source))
    except Exception as error:
        text = " ".join(str(error).split())
        raise BuildError(
            f"OpenVINO cannot read the ONNX model: {text[-400:]}",
            hint="leave the openvino recipes out with --recipes onnx, and report the operator",
        ) from error


def save(model: Any, path: Path, folder: Path) -> None:
    """Write an openvino.Model as one .ovir file, weights in full precision."""
    from tailcut.models.runtimes.openvino import load_openvino, pack

    graph = folder / f"{path.stem}.xml"
    with subnormals_kept():
        load_openvino().save_model(model, str(graph), compress_to_fp16=False)
    pack(graph, graph.with_suffix(".bin"), path)
    graph.unlink()
    graph.with_suffix(".bin").unlink()


def count(model: Any) -> dict[str, int]:
    """Count operators by kind, those that compute."""
    found: dict[str, int] = {}
    for operator in model.get_ops():
        kind = operator.get_type_name()
        if kind in {"MatMul", "Convolution", "GroupConvolution", "FakeQuantize"}:
            found[kind] = found.get(kind, 0) + 1
    return found
