"""Training, and the hook that trains a quantised module a little further."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from digits.data import Digits, copies, split
from digits.settings import SEED

if TYPE_CHECKING:
    import torch

    from digits.model import Cnn

EPOCHS = 20
COPIES = 4
"""Copies of each image per epoch, new ones every time."""
BATCH_ROWS = 128
PEAK_RATE = 4e-3
FINE_TUNE_RATE = 2e-4
LEAST_PROBABILITY = 1e-6


def train(digits: Digits) -> Cnn:
    """Train on copies of the images; seeded."""
    import torch

    from digits.model import Cnn

    torch.manual_seed(SEED)
    torch.set_num_threads(min(2, os.cpu_count() or 1))
    model = Cnn()
    steps = EPOCHS * -(-len(digits.labels) * COPIES // BATCH_ROWS)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_RATE, total_steps=steps)
    for epoch in range(EPOCHS):
        _epoch(model, copies(digits, COPIES, SEED + epoch), optimizer, schedule)
    return model.eval()


def fine_tune(module: torch.nn.Module) -> None:
    """Train ``module`` in place for one short epoch: the hook of recipe int8-qat.

    The module takes and gives what ``Cnn`` does, whatever has been put into it; only the images for training are seen.
    """
    import torch

    torch.manual_seed(SEED)
    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=FINE_TUNE_RATE, weight_decay=0.0)
    _epoch(module, copies(split()[0], COPIES, SEED + EPOCHS), optimizer, None)
    module.eval()


def _epoch(
    module: torch.nn.Module,
    digits: Digits,
    optimizer: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler | None,
) -> None:
    """Go through the rows once, in random order."""
    import torch
    from torch.nn.functional import nll_loss

    images, labels = torch.from_numpy(digits.images), torch.from_numpy(digits.labels)
    module.train()
    for batch in torch.split(torch.randperm(len(labels)), BATCH_ROWS):
        loss = nll_loss(module(images[batch]).clamp_min(LEAST_PROBABILITY).log(), labels[batch])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        if schedule is not None:
            schedule.step()
