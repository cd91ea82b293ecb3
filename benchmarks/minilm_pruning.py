"""What MiniLM can do without, and what INT8 costs it: cosine to fp32, by closed-form means alone, no training.

    PYTHONPATH=examples python -m benchmarks.minilm_pruning [--texts 600] [--judged 160] [--threads 2]

Neurons of a feed-forward layer are dropped one group after the other, those whose loss the others make up for best
(optimal brain surgeon: Hassibi and Stork 1993, for whole columns), and the layer's second matrix and bias are solved
anew by least squares on the activations of other texts. Errors count as the layer norm behind them sees them. Heads of
attention are dropped likewise, with the output projection solved anew. INT8 is simulated as onnxruntime computes it on
a processor without VNNI: weights of 7 bits by output channel, activations of 8 bits with one range per text.
"""

from __future__ import annotations

import argparse
import copy
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minilm.holdout import holdout
from minilm.model import load

LAYERS, HEADS, NEURONS = 6, 12, 1536
RIDGE = 1e-4
GROUP = 8
WEIGHT_LEVELS, ACTIVATION_LEVELS = 64, 255
PLANS = {
    "128 each": (128,) * LAYERS,
    "256 on average, by sensitivity": (288, 352, 400, 304, 128, 64),
    "256 each": (256,) * LAYERS,
    "384 on average, by sensitivity": (448, 512, 560, 448, 224, 112),
    "384 each": (384,) * LAYERS,
}
"""Neurons dropped in each layer. At equal marginal loss a layer gives neurons by the 1.7th power of 1 / its loss."""
SMOOTHED = {"query": 0.5, "key": 0.5, "value": 0.5, "intermediate.dense": 0.5, "output.dense": 0.75}

Batches = list[Tensor]


class Moments:
    """Second moments of a linear layer's inputs [x, 1] and their products with its outputs, weighted by token."""

    def __init__(self, inputs: int, outputs: int) -> None:
        self.own = torch.zeros(inputs + 1, inputs + 1, dtype=torch.float64)
        self.cross = torch.zeros(inputs + 1, outputs, dtype=torch.float64)

    def add(self, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Take in x [..., inputs], y [..., outputs], weight [...]."""
        root = weight.reshape(-1, 1).sqrt()
        x = torch.cat([x.reshape(-1, x.shape[-1]), torch.ones(root.shape[0], 1)], dim=1) * root
        self.own += (x.T @ x).double()
        self.cross += (x.T @ (y.reshape(-1, y.shape[-1]) * root)).double()

    def ridged(self) -> Tensor:
        """``own`` with a little added to the diagonal, the bias's apart."""
        found = self.own.clone()
        found.diagonal()[:-1].add_(RIDGE * found.diagonal()[:-1].mean())
        return found

    def solve(self, kept: Tensor) -> tuple[Tensor, Tensor]:
        """Least squares with the inputs at ``kept``: weight [outputs, kept] and bias [outputs]."""
        places = torch.cat([kept, torch.tensor([len(self.own) - 1])])
        found = torch.linalg.solve(self.ridged()[places][:, places], self.cross[places])
        return found[:-1].T.float().contiguous(), found[-1].float()


def fewest_lost(moments: Moments, dropped: int, scale: Tensor) -> Tensor:
    """Places of the inputs that are kept when ``dropped`` go, few at a time, the others making up for them.

    Args:
        scale: [outputs], by which an output's error counts.
    """
    inverse = torch.linalg.inv(moments.ridged())
    weight = inverse @ moments.cross * scale.double()
    alive = torch.arange(len(inverse))
    while dropped:
        count = min(GROUP, dropped)
        dropped -= count
        loss = (weight[:-1] ** 2).sum(dim=1) / inverse.diagonal()[:-1]
        gone = torch.topk(loss, count, largest=False).indices
        columns = inverse[:, gone]
        step = columns @ torch.linalg.inv(columns[gone])
        kept = torch.ones(len(alive), dtype=torch.bool)
        kept[gone] = False
        weight = (weight - step @ weight[gone])[kept]
        inverse = (inverse - step @ columns.T)[kept][:, kept]
        alive = alive[kept]
    return alive[:-1]


def fewest_heads(moments: Moments, dropped: int, scale: Tensor) -> list[int]:
    """Heads that are kept when ``dropped`` go, one at a time."""
    size = (len(moments.own) - 1) // HEADS
    heads = list(range(HEADS))
    for _ in range(dropped):
        places = torch.tensor([head * size + each for head in heads for each in range(size)] + [HEADS * size])
        inverse = torch.linalg.inv(moments.ridged()[places][:, places])
        weight = inverse @ moments.cross[places] * scale.double()
        parts = [slice(place * size, place * size + size) for place in range(len(heads))]
        losses = [float((weight[part] * torch.linalg.solve(inverse[part, part], weight[part])).sum()) for part in parts]
        del heads[int(np.argmin(losses))]
    return heads


def batches(rows: Any, most: int = 16) -> Batches:
    """Group texts of equal length, so that nothing is padded: int64 [texts, tokens]."""
    ids, lengths = rows.inputs["input_ids"], rows.inputs["attention_mask"].sum(axis=1)
    found = []
    for length in np.unique(lengths):
        places = np.flatnonzero(lengths == length)
        found += [torch.from_numpy(ids[places[at : at + most], :length].copy()) for at in range(0, len(places), most)]
    return found


def embed(module: nn.Module, texts: Batches) -> Tensor:
    """Embeddings of every text, [texts, 384]."""
    return torch.cat([module(ids, torch.ones_like(ids)) for ids in texts])


def layers(module: nn.Module) -> Sequence[Any]:
    found: Sequence[Any] = module.encoder.encoder.layer  # type: ignore[union-attr,assignment]
    return found


def observe(module: nn.Module, texts: Batches) -> tuple[list[Moments], list[Moments]]:
    """Moments of every layer's second feed-forward matrix and of its attention's output projection."""
    blocks = [each.output for each in layers(module)], [each.attention.output for each in layers(module)]
    found = tuple([Moments(each.dense.in_features, each.dense.out_features) for each in part] for part in blocks)
    handles = []
    for part, moments in zip(blocks, found, strict=True):
        for block, own in zip(part, moments, strict=True):
            handles.append(block.register_forward_hook(_watching(own)))
    embed(module, texts)
    for handle in handles:
        handle.remove()
    return found[0], found[1]


def _watching(moments: Moments) -> Callable[[Any, Any, Any], None]:
    def watch(block: Any, given: Any, _: Any) -> None:
        hidden, residual = given
        answer = block.dense(hidden)
        moments.add(hidden, answer, 1.0 / (answer + residual).var(dim=-1))

    return watch


def prune(layer: Any, ffn: Moments, attention: Moments, neurons: int = 0, heads: int = 0) -> None:
    """Drop ``neurons`` and ``heads`` of one layer, in place, and solve anew what they fed."""
    if neurons:
        kept = fewest_lost(ffn, neurons, layer.output.LayerNorm.weight)
        first = layer.intermediate.dense
        layer.intermediate.dense = _linear(first.weight[kept], first.bias[kept])
        layer.output.dense = _linear(*ffn.solve(kept))
    if heads:
        chosen = fewest_heads(attention, heads, layer.attention.output.LayerNorm.weight)
        size = layer.attention.self.attention_head_size
        kept = torch.tensor([head * size + each for head in chosen for each in range(size)])
        for name in ("query", "key", "value"):
            old = getattr(layer.attention.self, name)
            setattr(layer.attention.self, name, _linear(old.weight[kept], old.bias[kept]))
        layer.attention.output.dense = _linear(*attention.solve(kept))


def _linear(weight: Tensor, bias: Tensor) -> nn.Linear:
    made = nn.Linear(weight.shape[1], weight.shape[0])
    made.weight, made.bias = nn.Parameter(weight.clone()), nn.Parameter(bias.clone())
    return made


def rounded(values: Tensor) -> Tensor:
    """As DynamicQuantizeLinear rounds them: 8 bits, one range per text that holds 0; [texts, tokens, width]."""
    low, high = values.amin((1, 2), keepdim=True).clamp_max(0), values.amax((1, 2), keepdim=True).clamp_min(0)
    step = (high - low) / ACTIVATION_LEVELS
    zero = (-low / step).round()
    return ((values / step).round() + zero).clamp(0, ACTIVATION_LEVELS).sub(zero) * step


def quantize(module: nn.Module, texts: Batches, *, weights: bool = True, smooth: bool = False) -> nn.Module:
    """Simulate INT8 in a copy: activations, and weights where wanted.

    Args:
        smooth: share the range between activations and weights channel by channel (SmoothQuant, Xiao et al. 2022,
            https://arxiv.org/abs/2211.10438). Behind a layer norm whose result is also the skip connection, and behind
            GELU, it cannot be folded into the weights before it: it takes one multiplication of the activations.
    """
    made = copy.deepcopy(module)
    linear = [(name, each) for name, each in made.encoder.named_modules() if isinstance(each, nn.Linear)]  # type: ignore[union-attr]
    reach = _reach(made, [each for _, each in linear], texts) if smooth else {}
    for name, each in linear:
        power = next((power for end, power in SMOOTHED.items() if name.endswith(end)), 0.0)
        scale = torch.ones(each.in_features)
        if smooth and power and "attention.output" not in name:
            scale = reach[each].clamp_min(1e-4) ** power / each.weight.abs().amax(0).clamp_min(1e-6) ** (1 - power)
        if weights:
            scaled = each.weight * scale
            step = scaled.abs().amax(dim=1, keepdim=True) / WEIGHT_LEVELS
            each.weight = nn.Parameter((scaled / step).round() * step / scale)
        each.register_forward_pre_hook(_rounding(scale))
    return made


def _rounding(scale: Tensor) -> Callable[[Any, Any], Tensor]:
    return lambda _, given: rounded(given[0] / scale) * scale


def _reach(module: nn.Module, linear: Sequence[nn.Linear], texts: Batches) -> dict[nn.Linear, Tensor]:
    """Largest magnitude of every input channel."""
    found = {each: torch.zeros(each.in_features) for each in linear}

    def watch(layer: Any, given: Any) -> None:
        found[layer] = torch.maximum(found[layer], given[0].abs().amax((0, 1)))

    handles = [each.register_forward_pre_hook(watch) for each in linear]
    embed(module, texts)
    for handle in handles:
        handle.remove()
    return found


def study(texts: int, judged: int) -> Iterator[tuple[str, Tensor]]:
    """Yield what was done and the cosine of every judged text to fp32."""
    draw = np.random.default_rng(0)
    known, others = (
        batches(part.subset(np.sort(draw.permutation(part.rows)[:count])))
        for part, count in zip(holdout().split(0.3), (texts, judged), strict=True)
    )
    module = load()
    expected = embed(module, others)

    def cosine(changed: nn.Module) -> Tensor:
        return (embed(changed, others) * expected).sum(dim=1)

    few = known[:: max(1, len(known) // 40)]
    yield "INT8 activations, fp32 weights", cosine(quantize(module, few, weights=False))
    yield "INT8", cosine(quantize(module, few))
    yield "INT8, smoothed", cosine(quantize(module, few, smooth=True))
    ffn, attention = observe(module, known)
    for name, plan in PLANS.items():
        changed = copy.deepcopy(module)
        for place, neurons in enumerate(plan):
            prune(layers(changed)[place], ffn[place], attention[place], neurons)
        yield f"{name} of {NEURONS} neurons dropped", cosine(changed)
        yield f"{name}, INT8, smoothed", cosine(quantize(changed, few, smooth=True))
    for place in range(LAYERS):
        for neurons, heads in ((192, 0), (512, 0), (0, 1), (0, 3)):
            changed = copy.deepcopy(module)
            prune(layers(changed)[place], ffn[place], attention[place], neurons, heads)
            yield f"layer {place}: {neurons} neurons, {heads} heads dropped", cosine(changed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--texts", type=int, default=600, help="that least squares learns from")
    parser.add_argument("--judged", type=int, default=160, help="other texts, that cosines are taken on")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    began_s = time.monotonic()
    print("| | mean cosine | least |\n|---|---|---|")
    with torch.inference_mode():
        for name, cosine in study(arguments.texts, arguments.judged):
            print(f"| {name} | {cosine.mean():.5f} | {cosine.min():.4f} |", flush=True)
    print(f"\n{arguments.texts} texts, judged on {arguments.judged} others; {time.monotonic() - began_s:.0f} s")


if __name__ == "__main__":
    main()
