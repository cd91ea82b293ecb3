"""A population of rows whose true drop is known, and repeated holdouts drawn from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

POPULATION = 100_000


@dataclass(frozen=True)
class Population:
    """Labels and two models' probabilities; what holds of it is the truth for holdouts drawn from it."""

    labels: np.ndarray
    source: np.ndarray
    variant: np.ndarray

    def drop(self, measure: Callable[[np.ndarray, np.ndarray], float]) -> float:
        return measure(self.labels, self.source) - measure(self.labels, self.variant)

    def holdouts(self, rows: int, trials: int, seed: int) -> Iterator[Population]:
        rng = np.random.default_rng(seed)
        for _ in range(trials):
            picked = rng.integers(0, POPULATION, rows)
            yield Population(self.labels[picked], self.source[picked], self.variant[picked])


def population(*, noise: float, bias: float = 0.0, base: float = 0.0, seed: int = 0) -> Population:
    """Binary outcomes of logistic scores; the variant's logits are the source's with noise."""
    rng = np.random.default_rng(seed)
    truth = 1.6 * rng.normal(size=POPULATION) + base
    labels = (rng.random(POPULATION) < sigmoid(truth)).astype(np.int64)
    logits = truth + 0.3 * rng.normal(size=POPULATION)
    return Population(labels, sigmoid(logits), sigmoid(logits + noise * rng.normal(size=POPULATION) + bias))


def sigmoid(values: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-values))


def most(trials: int, share: float = 0.05) -> float:
    """The most passes that a level of ``share`` explains: three standard errors above it."""
    return trials * share + 3.0 * np.sqrt(trials * share * (1.0 - share))
