"""The process that finds slow layers: ``python -m tailcut.profiler.layers.child SPEC OUTCOME``."""

from __future__ import annotations

import ctypes
import importlib
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from tailcut.common.tensors import NUMPY_OF, Array, Arrays
from tailcut.common.user_frames import innermost, place
from tailcut.errors import MissingExtra, ProfileError, TailcutError
from tailcut.manifest import Manifest, TensorSpec, load
from tailcut.models.runtimes.base import Openable
from tailcut.models.runtimes.checks import first_line
from tailcut.models.runtimes.telemetry import keep_off
from tailcut.profiler.attribution.layers import ModelLayers
from tailcut.profiler.layers.onnx import of_onnx
from tailcut.profiler.layers.search import InputShape, LayersOutcome, LayersSpec
from tailcut.profiler.layers.torch import of_torch

_PR_SET_PDEATHSIG = 1
FREE_DIMENSION = 128
"""Default size of a free dimension that is not the batch's, such as a sentence's length."""


def main(arguments: list[str]) -> int:
    """Find the layers; the exit code is 0 where an outcome was written, good or bad."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # no orphan where the command is killed
    keep_off()
    warnings.simplefilter("ignore")
    spec = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=LayersSpec)
    sys.path[:0] = spec.folders
    Path(arguments[1]).write_bytes(msgspec.json.encode(outcome_of(spec)))
    return 0


def outcome_of(spec: LayersSpec) -> LayersOutcome:
    """Find the layers; any exception becomes an error for the user."""
    try:
        return LayersOutcome(found=_find(spec))
    except TailcutError as error:
        return LayersOutcome(error=error.explained, hint=error.hint, code=error.code)
    except Exception as error:
        where = place(error)
        if isinstance(error, ModuleNotFoundError) and not where:
            missing = f"profiling {spec.model or 'the served variant'} needs {error.name}, which is not installed"
            return LayersOutcome(error=missing, hint="install the package that has it", code=MissingExtra.code)
        traceback.print_exc()
        raised = f"raised {type(error).__name__}: {first_line(error)} ({where or innermost(error)})"
        return LayersOutcome(
            error=f"the model {spec.model or 'of the manifest'} {raised}",
            hint="mend that line, or give the model's inputs with --shape",
        )


def _find(spec: LayersSpec) -> ModelLayers:
    manifest = load(Path(spec.manifest), overrides=spec.overrides) if spec.manifest else None
    if not spec.model:
        assert manifest is not None
        return _served(manifest, spec.shapes)
    path = Path(spec.model)
    if path.suffix == ".onnx" or path.is_file():
        if not path.is_file():
            raise ProfileError(f"there is no file {path}", hint="name an .onnx file, or 'module:callable'")
        return of_onnx(path, _fed(path, spec.shapes), path.name)
    module, given = _made(spec.model)
    tensors = manifest.deployment.model.inputs if manifest is not None else ()
    arguments = given if given is not None else _tensors(_arrays(tensors, spec.shapes), spec.model, module)
    return of_torch(module, arguments, {}, spec.model)


def _served(manifest: Manifest, shapes: Sequence[InputShape]) -> ModelLayers:
    """Profile the variant that the deployment serves, with its own settings and threads."""
    from tailcut.models.runtimes.live import source_of
    from tailcut.serving.deployment_loader import find_variant

    variant = find_variant(manifest)
    arrays = _arrays(variant.inputs, shapes)
    name = f"{manifest.deployment.name} {variant.name}"
    threads = manifest.deployment.pool.threads_of(variant.settings)
    if variant.runtime == "onnxruntime" and variant.settings.get("provider", "cpu") == "cpu":
        return of_onnx(variant.artifact, arrays, name, threads=threads, settings=variant.settings)
    if variant.runtime == "torch":
        source = source_of(manifest, "torch")
        assert source is not None
        return _served_torch(variant, source, arrays, name, threads)
    raise ProfileError(
        f"the served variant {variant.name!r} runs on {variant.runtime}: layers are known for torch and for ONNX"
        " Runtime on the CPU",
        hint="profile the layers of its source instead: --layers module:callable, or an .onnx file",
    )


def _served_torch(variant: Openable, source: Callable[[], Any], arrays: Arrays, name: str, threads: int) -> ModelLayers:
    """Profile a variant's module, where and in the precision that it is served in, but call by call."""
    import torch

    from tailcut.models.runtimes.compiled import check_device, placed, placement_of, put
    from tailcut.models.runtimes.torch import load_module

    torch.set_num_threads(threads)
    module, notes = load_module(variant, source), tuple[str, ...]()
    if placed(variant.settings):
        placement = placement_of(variant.settings, variant.name)
        check_device(torch, placement, variant.name)
        module = put(torch, module, placement)
        if placement.buckets:
            notes = ("served, it is compiled or replayed as a CUDA graph, without the launch gaps seen here",)
    found = of_torch(module, _tensors(arrays, name, module), {}, name)
    return msgspec.structs.replace(found, notes=(*found.notes, *notes))


def _made(reference: str) -> tuple[Any, tuple[Any, ...] | None]:
    """Call what gives the module; (the module, the arguments of a call or None)."""
    import torch

    name, colon, attribute = reference.partition(":")
    if not colon or not name or not attribute:
        raise ProfileError(f"the model is {reference!r}", hint="name an .onnx file, or 'module:callable'")
    try:
        found: Any = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name == error.name or name.startswith(f"{error.name}.")):
            raise
        raise ProfileError(
            f"{reference}: there is no module {error.name}", hint="name its folder with --app-dir"
        ) from None
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ProfileError(f"{reference}: {name} has no {part}", hint="correct the reference")
        found = getattr(found, part)
    if not isinstance(found, torch.nn.Module) and callable(found):
        found = found()
    module, given = found if isinstance(found, tuple) and len(found) == 2 else (found, None)
    if not isinstance(module, torch.nn.Module):
        raise ProfileError(
            f"{reference} gave a {type(module).__name__}, expected a torch.nn.Module",
            hint="return the module, or (module, arguments)",
        )
    if given is not None and not isinstance(given, tuple):
        given = (given,)
    return module.eval(), given


def _fed(path: Path, shapes: Sequence[InputShape]) -> Arrays:
    """Make inputs for an ONNX file from the types and shapes that it declares."""
    import onnxruntime

    from tailcut.models.runtimes.onnxruntime import described

    try:
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own classes share no public base
        raise ProfileError(
            f"onnxruntime cannot open {path}: {first_line(error)}", hint="is it an ONNX model?"
        ) from error
    nodes = described(session.get_inputs())
    tensors = [
        TensorSpec(name=name, datatype=datatype, shape=shape or (-1,))  # type: ignore[arg-type]
        for name, (datatype, shape) in nodes.items()
    ]
    return _arrays(tensors, shapes)


def _arrays(tensors: Sequence[TensorSpec], shapes: Sequence[InputShape]) -> Arrays:
    """Make one row of input: noise in floats, ones in whole numbers (valid as an index, a token and a mask)."""
    asked = {shape.name: shape for shape in shapes}
    unknown = set(asked) - {tensor.name for tensor in tensors} if tensors else set()
    if unknown:
        raise ProfileError(
            f"the model has no input {', '.join(sorted(unknown))}",
            hint=f"its inputs: {', '.join(tensor.name for tensor in tensors)}",
        )
    wanted = [asked.get(tensor.name, _typical(tensor)) for tensor in tensors] if tensors else list(shapes)
    datatypes = {tensor.name: tensor.datatype for tensor in tensors}
    rng = np.random.default_rng(0)
    return {one.name: _filled(rng, one.dims, one.datatype or datatypes.get(one.name, "FP32")) for one in wanted}


def _typical(tensor: TensorSpec) -> InputShape:
    dims = tuple((1 if place == 0 else FREE_DIMENSION) if dim < 0 else dim for place, dim in enumerate(tensor.shape))
    return InputShape(name=tensor.name, dims=dims)


def _filled(rng: np.random.Generator, dims: tuple[int, ...], datatype: str) -> Array:
    if datatype == "BYTES":
        return np.full(dims, "text", object)
    dtype = NUMPY_OF[datatype]
    return rng.standard_normal(dims).astype(dtype) if dtype.kind == "f" else np.ones(dims, dtype)


def _tensors(arrays: Arrays, what: str, module: Any) -> tuple[Any, ...]:
    """Make tensors of a module's arguments, on its device, and in half precision where its weights are."""
    import torch

    if not arrays:
        raise ProfileError(
            f"nobody says what {what} takes",
            hint="give --shape name=DIMxDIM for each input in order, or let the callable return (module, arguments)",
        )
    like = next((each for each in module.parameters() if each.is_floating_point()), torch.zeros(()))
    half = like.dtype if like.dtype in (torch.bfloat16, torch.float16) else None
    made = (torch.from_numpy(array) for array in arrays.values())
    return tuple(one.to(like.device, half if one.is_floating_point() else None) for one in made)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
