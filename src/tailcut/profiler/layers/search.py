"""Slow layers of a model, found in a process of their own: what the model breaks breaks nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from tailcut.common.tensors import NUMPY_OF
from tailcut.errors import ManifestError, MissingExtra, ProfileError, TailcutError
from tailcut.profiler.attribution.layers import ModelLayers
from tailcut.system import child_processes

_TIMEOUT_S = 120.0
_TAIL_LINES = 5
_SHAPE = re.compile(r"(?P<name>[^=]+)=(?P<dims>\d+(?:x\d+)*)(?::(?P<datatype>\w+))?")
_ERRORS: dict[str, type[TailcutError]] = {each.code: each for each in (ManifestError, MissingExtra)}


class InputShape(msgspec.Struct, frozen=True, kw_only=True):
    """One input of a model: its name, shape, and Open Inference Protocol datatype (empty: the model's own)."""

    name: str
    dims: tuple[int, ...]
    datatype: str = ""


class LayersSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Which model, and on what.

    Args:
        model: an .onnx file, or ``module:callable`` that gives a torch.nn.Module, or one and the arguments of a call;
            empty: the variant that the manifest serves.
        shapes: of inputs, where the model does not say them.
        manifest: file of a deployment; empty: none.
        overrides: "dotted.path=value" over the manifest.
        folders: on the import path.
    """

    model: str = ""
    shapes: tuple[InputShape, ...] = ()
    manifest: str = ""
    overrides: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()


class LayersOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What the child process found, or why it did not."""

    found: ModelLayers | None = None
    error: str = ""
    hint: str = ""
    code: str = ""


def parse_shape(text: str) -> InputShape:
    """Read "ids=1x128:INT64".

    Raises:
        ProfileError: it is written otherwise.
    """
    match = _SHAPE.fullmatch(text.strip())
    if match is None or not all(int(dim) for dim in match["dims"].split("x")):
        raise ProfileError(
            f"the shape is {text!r}",
            hint="write name=DIMxDIM, with a datatype where the model has none: ids=1x128:INT64",
        )
    datatype = (match["datatype"] or "").upper()
    if datatype and datatype not in NUMPY_OF:
        raise ProfileError(f"the datatype is {datatype!r} in {text!r}", hint=f"one of {', '.join(NUMPY_OF)}")
    dims = tuple(int(dim) for dim in match["dims"].split("x"))
    return InputShape(name=match["name"].strip(), dims=dims, datatype=datatype)


def find_layers(
    spec: LayersSpec, *, environment: Mapping[str, str] | None = None, timeout_s: float = _TIMEOUT_S
) -> ModelLayers:
    """Profile a model by layer and operator; takes some seconds.

    Args:
        spec: which model.
        environment: of the child process; None: this process's.
        timeout_s: it is killed after this long.

    Raises:
        ManifestError: the manifest, or a reference in it, is wrong.
        MissingExtra: a package is not installed.
        ProfileError: the model cannot be made, opened or run, it crashed, or it took too long.
    """
    what = f"the model {spec.model}" if spec.model else "the served variant"
    with tempfile.TemporaryDirectory(prefix="tailcut-layers-") as folder:
        spec_file, outcome_file, log = (Path(folder) / name for name in ("spec.json", "outcome.json", "log"))
        spec_file.write_bytes(msgspec.json.encode(spec))
        # -P: a queue.py in the working folder is not to be taken for the standard library's.
        command = [sys.executable, "-P", "-m", "tailcut.profiler.layers.child", str(spec_file), str(outcome_file)]
        code = _run(command, log, environment, timeout_s, what)
        if code != 0 or not outcome_file.exists():
            lines = child_processes.last_lines(log, _TAIL_LINES)
            raise ProfileError(
                f"profiling {what} crashed ({child_processes.describe_exit(code)})",
                hint="its last output:" + "".join(f"\n  | {line}" for line in lines),
            )
        outcome = msgspec.json.decode(outcome_file.read_bytes(), type=LayersOutcome)
    if outcome.found is None:
        raise _ERRORS.get(outcome.code, ProfileError)(outcome.error, hint=outcome.hint)
    return outcome.found


def _run(command: Sequence[str], log: Path, environment: Mapping[str, str] | None, timeout_s: float, what: str) -> int:
    """Run the child in a session of its own, so that what it starts ends with it."""
    with log.open("wb") as output:
        child = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
        try:
            return child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ProfileError(
                f"profiling {what} did not end within {timeout_s:g} s",
                hint="try a smaller input, such as --shape x=1x16",
            ) from None
        finally:
            if child.returncode is None:  # also at Ctrl-C, which does not reach the child's session
                child_processes.stop(child)
