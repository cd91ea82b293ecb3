"""The torch runtime: a module in eager mode with the weights of a checked state dict. No pickled code is loaded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tailcut.common.tensors import Array, Arrays
from tailcut.errors import ArtifactError, OutputsError
from tailcut.models.runtimes.base import Openable
from tailcut.models.runtimes.checks import AGAIN, batch_failed, first_line, load_library, named_line, refuse_text
from tailcut.models.runtimes.torch_call import in_order


class TorchRuntime:
    """An opened torch module. Use ``open_runtime``.

    ``threads`` is torch's process-wide setting: the last runtime opened decides for all of them.
    """

    def __init__(self, variant: Openable, *, threads: int, source: Callable[[], Any]) -> None:
        torch = load_torch()
        self._name = variant.name
        self._inputs = tuple(tensor.name for tensor in variant.inputs)
        self._outputs = tuple(tensor.name for tensor in variant.outputs)
        refuse_text(variant, "torch")
        self._call: Any = in_order(load_module(variant, source), self._inputs)
        self._changes: bool | None = None
        """Whether forward changed an input in place, and so gets copies; None before the first batch."""
        torch.set_num_threads(threads)
        self._torch = torch

    def run(self, inputs: Arrays, outputs: Sequence[str]) -> Arrays:
        """Run one batch; see ``Runtime.run``. How inputs reach forward: see ``in_order``.

        Raises:
            InferenceError: the module raised.
            OutputsError: it gave a dict, or another number of outputs than the manifest names.
        """
        torch = self._torch
        try:
            # Made outside of the inference mode: tensors made in it do not count their changes.
            tensors = [_tensor(torch, inputs[name], self._changes is not False) for name in self._inputs]
            with torch.inference_mode():
                given = self._call(*tensors)
            self._changes = bool(self._changes) or any([tensor._version for tensor in tensors])
            named = self._named(given)
            return {name: named[name].numpy() for name in outputs}
        except OutputsError:
            raise
        except Exception as error:
            raise batch_failed(self._name, inputs, named_line(error)) from error

    def _named(self, given: Any) -> dict[str, Any]:
        found = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        if len(found) == len(self._outputs) and all(isinstance(each, self._torch.Tensor) for each in found):
            return dict(zip(self._outputs, found, strict=True))
        raise OutputsError(
            f"variant {self._name!r}: forward returned {described(given)}, "
            f"model.outputs names {len(self._outputs)} ({', '.join(self._outputs)})",
            hint=RETURN_TENSORS,
        )

    def close(self) -> None:
        """Drop the module and its weights."""
        self._call = None


def load_torch() -> Any:
    """Import torch.

    Raises:
        MissingExtra: it is not installed.
    """
    return load_library("torch", "the torch runtime needs the torch package")


RETURN_TENSORS = "return a tensor, or a tuple with a tensor for each of model.outputs in their order"


def described(given: Any) -> str:
    """Say what a module's forward returned."""
    if isinstance(given, Mapping):
        return f"a {type(given).__name__} of {len(given)} ({', '.join(map(str, given))})"
    if isinstance(given, (tuple, list)):
        return f"{len(given)} outputs ({', '.join(type(each).__name__ for each in given)})"
    return f"a {type(given).__name__}"


def _tensor(torch: Any, array: Array, copies: bool) -> Any:
    # torch warns of arrays that it could write to by mistake.
    return torch.from_numpy(array.copy() if copies or not array.flags.writeable else array)


def load_module(variant: Openable, source: Callable[[], Any]) -> Any:
    """Make the module with ``source`` and put the artifact's weights into it, all of them and no others.

    Returns:
        the module in eval mode.

    Raises:
        ArtifactError: not a module, not a state dict of plain tensors, or weights of another module.
    """
    torch = load_torch()
    module = source()
    if not isinstance(module, torch.nn.Module):
        raise ArtifactError(
            f"model.source returned a {type(module).__name__}, expected a torch.nn.Module",
            hint="return the module itself",
        )
    what = f"{variant.artifact} (variant {variant.name!r})"
    try:
        state = torch.load(variant.artifact, map_location="cpu", weights_only=True)
    except Exception as error:
        raise ArtifactError(f"cannot read the state dict {what}: {first_line(error)}", hint=AGAIN) from error
    try:
        module.load_state_dict(state, strict=True)
    except (RuntimeError, TypeError) as error:
        raise ArtifactError(
            f"the state dict {what} does not fit the module that model.source returns: {' '.join(str(error).split())}",
            hint="the module's code has changed since the build: run `tailcut build` again",
        ) from error
    return module.eval()
