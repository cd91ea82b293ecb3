"""scikit-learn's 1,797 handwritten digits: the split, and copies that are shifted, turned and noisy.

Source: UCI's "Optical Recognition of Handwritten Digits", 8 x 8 pixels of 0 to 16, as scikit-learn ships it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from digits.settings import SEED

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]

SIDE = 8
LARGEST = 16.0
TRAIN_SHARE = 0.5
"""Of each class. Half is held out: training needs few of these, judging needs many."""
SHIFT = 0.7
"""A copy is shifted by up to this many pixels, along and across."""
TURN_DEGREES = 12.0
NOISE = 0.6
"""Standard deviation of the noise on a pixel of 0 to 16."""


@dataclass(frozen=True)
class Digits:
    """Images float32 [rows, 1, 8, 8] of 0 to 16, and the digit on each."""

    images: Floats
    labels: Ints

    def take(self, rows: Ints) -> Digits:
        """Return the rows at these places."""
        return Digits(self.images[rows], self.labels[rows])


def split() -> tuple[Digits, Digits]:
    """Return the images for training and those that are held out, each class in the same shares."""
    from sklearn.datasets import load_digits

    found = load_digits()
    everything = Digits(found.images.astype(np.float32)[:, None], found.target.astype(np.int64))
    draw = np.random.default_rng(SEED)
    train: list[Ints] = []
    held_out: list[Ints] = []
    for digit in range(10):
        places = draw.permutation(np.flatnonzero(everything.labels == digit))
        many = round(TRAIN_SHARE * len(places))
        train.append(places[:many])
        held_out.append(places[many:])
    return tuple(everything.take(draw.permutation(np.concatenate(part))) for part in (train, held_out))  # type: ignore[return-value]


def copies(digits: Digits, times: int, seed: int) -> Digits:
    """Return ``times`` copies of every image, each shifted, turned and noisy in a way of its own.

    The first len(digits) rows are the first copy of each image, in order.
    """
    draw = np.random.default_rng(seed)
    images = np.tile(digits.images[:, 0], (times, 1, 1))
    rows = len(images)
    shift = draw.uniform(-SHIFT, SHIFT, (rows, 2))
    angle = np.radians(draw.uniform(-TURN_DEGREES, TURN_DEGREES, rows))
    moved = _moved(images, shift, angle) + draw.normal(0, NOISE, images.shape)
    return Digits(
        np.clip(moved, 0, LARGEST).astype(np.float32)[:, None],
        np.tile(digits.labels, times),
    )


def _moved(images: Floats, shift: npt.NDArray[np.float64], angle: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Turn each image about its middle and shift it; pixels between others are interpolated, beyond the edge is 0."""
    middle = (SIDE - 1) / 2
    down, across = np.meshgrid(np.arange(SIDE) - middle, np.arange(SIDE) - middle, indexing="ij")
    cos, sin = np.cos(angle)[:, None, None], np.sin(angle)[:, None, None]
    # Where each pixel of the copy comes from, in the image with a frame of two empty pixels.
    y = cos * down - sin * across + middle + 2 - shift[:, 0, None, None]
    x = sin * down + cos * across + middle + 2 - shift[:, 1, None, None]
    framed = np.pad(images, ((0, 0), (2, 2), (2, 2)))
    last = framed.shape[1] - 2
    top, left = np.clip(np.floor(y).astype(int), 0, last), np.clip(np.floor(x).astype(int), 0, last)
    below, right = np.clip(y - top, 0, 1), np.clip(x - left, 0, 1)
    row = np.arange(len(images))[:, None, None]
    upper = framed[row, top, left] * (1 - right) + framed[row, top, left + 1] * right
    lower = framed[row, top + 1, left] * (1 - right) + framed[row, top + 1, left + 1] * right
    mixed: npt.NDArray[np.float64] = upper * (1 - below) + lower * below
    return mixed
