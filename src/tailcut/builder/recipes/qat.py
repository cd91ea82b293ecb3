"""Fake quantisation for fine-tuning: weights and inputs of layers rounded as 8-bit kernels will round them.

Weights are signed and symmetric, one scale per output channel; inputs are unsigned with one range per layer, a moving
average of what was seen. Gradients pass through the rounding as if it were not there, inside the range.
Source: Jacob et al. 2018, "Quantization and Training of Neural Networks for Efficient Integer-Arithmetic-Only
Inference" (arXiv 1712.05877), section 3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.nn.utils import parametrize

if TYPE_CHECKING:
    from torch.utils.hooks import RemovableHandle

LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
ACTIVATION_LEVELS = 255
_KEEP = 0.95
"""Of a range that a new batch leaves as it was."""

_LEAST_SCALE = 1e-9


class WeightRounding(nn.Module):
    """Round a weight to ``bits`` bits per output channel (dimension 0)."""

    def __init__(self, bits: int) -> None:
        super().__init__()
        self.most = 2 ** (bits - 1) - 1

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return ``weight`` rounded, same shape."""
        reach = weight.detach().reshape(weight.shape[0], -1).abs().amax(dim=1)
        scale = (reach / self.most).clamp_min(_LEAST_SCALE)
        zeros = torch.zeros(weight.shape[0], dtype=torch.int32, device=weight.device)
        return torch.fake_quantize_per_channel_affine(weight, scale, zeros, 0, -self.most, self.most)


class InputRounding(nn.Module):
    """Round a layer's input to 8 bits; in training mode the range follows what is seen."""

    low: torch.Tensor
    high: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("low", torch.tensor(0.0))
        self.register_buffer("high", torch.tensor(0.0))
        self.seen = False
        self.observing = False
        self.fixed: tuple[float, int] | None = None
        self.exporting = False

    def observe(self, values: torch.Tensor) -> None:
        """Take a batch into the range, which always holds 0."""
        low, high = values.detach().amin().clamp_max(0.0), values.detach().amax().clamp_min(0.0)
        if self.seen:
            low, high = self.low * _KEEP + low * (1 - _KEEP), self.high * _KEEP + high * (1 - _KEEP)
        self.low, self.high, self.seen = low, high, True

    def scale(self) -> tuple[float, int]:
        """Return the scale and the zero point of the range."""
        scale = max((float(self.high) - float(self.low)) / ACTIVATION_LEVELS, _LEAST_SCALE)
        return scale, min(ACTIVATION_LEVELS, max(0, round(-float(self.low) / scale)))

    def fix(self) -> None:
        """Take the range as it is, for good."""
        self.fixed = self.scale()

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """Return ``values`` rounded, same shape."""
        if self.fixed is None and (self.observing or self.training):
            self.observe(values)
        if self.observing or not (self.seen or self.fixed):
            return values
        scale, zero = self.fixed or self.scale()
        if self.exporting:
            return _as_onnx(values, scale, zero)
        return torch.fake_quantize_per_tensor_affine(values, scale, zero, 0, ACTIVATION_LEVELS)


def _as_onnx(values: torch.Tensor, scale: float, zero: int) -> torch.Tensor:
    """Put ONNX's own operators for the rounding into an export: torch 2.13 cannot trace its fake quantisation."""
    by = (torch.tensor(scale), torch.tensor(zero, dtype=torch.uint8))
    kind, shape = torch.uint8, values.shape
    integers = torch.onnx.ops.symbolic("QuantizeLinear", (values, *by), dtype=kind, shape=shape)
    return torch.onnx.ops.symbolic("DequantizeLinear", (integers, *by), dtype=torch.float32, shape=shape)


@dataclass
class QuantisedLayer:
    """One layer with fake quantisation."""

    name: str
    module: Any
    rounding: InputRounding
    hook: RemovableHandle


def insert(module: nn.Module, bits: int) -> list[QuantisedLayer]:
    """Give every linear layer and convolution a rounding of its weight and of its input.

    Layers of the same module class stay what they are to ``isinstance``; ``layer.weight`` stays its weight, rounded.
    """
    found = []
    for name, layer in list(module.named_modules()):
        if not isinstance(layer, LAYERS) or parametrize.is_parametrized(layer):
            continue
        rounding = InputRounding()
        parametrize.register_parametrization(layer, "weight", WeightRounding(bits), unsafe=True)
        layer.add_module("input_rounding", rounding)
        found.append(QuantisedLayer(name, layer, rounding, layer.register_forward_pre_hook(_rounded)))
    return found


def _rounded(layer: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    return (layer.input_rounding(arguments[0]), *arguments[1:])


def calibrate(
    module: nn.Module,
    layers: list[QuantisedLayer],
    batches: Iterable[tuple[torch.Tensor, ...]],
    call: Callable[..., Any] | None = None,
) -> list[QuantisedLayer]:
    """Start every range from what the model sees unrounded; layers that see nothing lose their rounding.

    A layer sees nothing where its weight is used without calling it (attention's output projection).

    Args:
        call: calls the module with a batch; the module itself where None.

    Returns:
        the layers that are left.
    """
    module.eval()
    for layer in layers:
        layer.rounding.observing = True
    with torch.no_grad():
        for batch in batches:
            (call or module)(*batch)
    for layer in layers:
        layer.rounding.observing = False
        if not layer.rounding.seen:
            remove_weight(layer)
            remove_input(layer)
    return [layer for layer in layers if layer.rounding.seen]


def remove_weight(layer: QuantisedLayer) -> None:
    """Put the unrounded weight back."""
    parametrize.remove_parametrizations(layer.module, "weight", leave_parametrized=False)


def remove_input(layer: QuantisedLayer) -> None:
    """Take the rounding of the input off."""
    layer.hook.remove()
    del layer.module.input_rounding
