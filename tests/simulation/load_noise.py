"""A machine that disturbs rounds of load: heavy-tailed rounds, and bursts of other work that hit what is measured."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from tailcut.manifest.schema.build import Build
from tailcut.registry.evidence import Round

ROUND_S = float(Build().round_s) + 0.5
"""With the warm-up."""


class Variant(NamedTuple):
    """A variant's own latency and CPU time, in milliseconds."""

    latency_ms: float
    cpu_ms: float


class Machine:
    """Measures variants on a clock of its own.

    Args:
        seed: of everything random.
        variants: what is measured.
        noise: standard deviation of the logarithm of a round's percentile. It is Student's t with 4 degrees of freedom:
            one round in a hundred is off by more than two and a half times that.
        off_s, on_s: mean length of quiet times and of bursts. Both are exponential, so that one burst hits several
            measurements in a row; latencies are 1.7 times as long in the median, 6 times in one of a hundred.
        seen: share of the bursts that other processes make, so that the build sees them.
    """

    def __init__(
        self,
        seed: int,
        variants: Mapping[str, Variant],
        *,
        noise: float = 0.12,
        off_s: float = 30.0,
        on_s: float = 0.0,
        seen: float = 0.5,
    ) -> None:
        self.now_s = 0.0
        self.measured: list[tuple[int, str]] = []
        self._random = np.random.default_rng(seed)
        self._variants = variants
        self._noise = noise
        self._bursts = self._drawn(off_s, on_s, seen) if on_s else []

    def _drawn(self, off_s: float, on_s: float, seen: float) -> list[tuple[float, float, float, bool]]:
        """Draw bursts: when they begin and end, the factor of a latency within, whether they are seen."""
        found, at_s = [], float(self._random.exponential(off_s))
        while at_s < 600.0:
            end_s = at_s + float(self._random.exponential(on_s))
            found.append(
                (at_s, end_s, 1.0 + float(self._random.lognormal(-0.3, 0.8)), bool(self._random.random() < seen))
            )
            at_s = end_s + float(self._random.exponential(off_s))
        return found

    def clock_s(self) -> float:
        """Seconds since the build's load began."""
        return self.now_s

    def measure(self, name: str, number: int) -> Round:
        """Measure one variant."""
        begun_s, self.now_s = self.now_s, self.now_s + ROUND_S
        self.measured.append((number, name))
        factor, others = 1.0, 0.0
        for start_s, end_s, slower, seen in self._bursts:
            share = max(0.0, min(end_s, self.now_s) - max(start_s, begun_s)) / ROUND_S
            factor *= slower**share
            others += share * seen
        variant = self._variants[name]
        wobble = math.exp(self._noise / math.sqrt(2.0) * float(self._random.standard_t(4)))
        return Round(
            number=number,
            latency_ms=variant.latency_ms * wobble * factor,
            p50_ms=variant.latency_ms * wobble / 2.0,
            errors=0.0,
            cpu_ms=variant.cpu_ms * math.exp(float(self._random.normal(0.0, 0.03))) * factor**0.1,
            others=others,
        )
