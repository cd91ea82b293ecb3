"""The model: two blocks of two convolutions with batch normalisation, and a head. Scaling and softmax are inside."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from digits.data import LARGEST
from digits.settings import home

WIDTHS = (32, 64)
HIDDEN = 128
CLASSES = 10


def _block(given: int, width: int) -> list[nn.Module]:
    return [
        nn.Conv2d(given, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.MaxPool2d(2),
    ]


class Cnn(nn.Module):
    """``image`` float32 [rows, 1, 8, 8] of 0 to 16 -> ``probabilities`` float32 [rows, 10]."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(*_block(1, WIDTHS[0]), *_block(*WIDTHS))
        self.head = nn.Sequential(
            nn.Flatten(), nn.Linear(WIDTHS[1] * 4, HIDDEN), nn.ReLU(), nn.Dropout(0.3), nn.Linear(HIDDEN, CLASSES)
        )

    def forward(self, image: Tensor) -> Tensor:
        return torch.softmax(self.head(self.features(image / LARGEST)), dim=1)


def save(model: Cnn) -> None:
    """Write the weights."""
    path = home() / "model.pt"
    partial = path.with_suffix(".partial")
    torch.save(model.state_dict(), partial)
    partial.replace(path)


def load() -> nn.Module:
    """Build the trained module, ready for inference.

    Raises:
        FileNotFoundError: the model has not been trained.
    """
    path = home() / "model.pt"
    if not path.is_file():
        raise FileNotFoundError(f"no trained model at {path}\n\nhint: python -m digits.prepare (in examples/)")
    model = Cnn()
    model.load_state_dict(torch.load(path, map_location="cpu", weights_only=True))
    return model.eval()
