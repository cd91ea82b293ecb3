"""Models in Python that refuse rows of which they have not seen the like."""

from __future__ import annotations

import functools
import os
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, RegressorMixin

from tailcut.build import Holdout

KNOWN = {("old", "town"): 1.0, ("new", "york"): 2.0, ("new", "town"): 3.0}


class Pairs(RegressorMixin, BaseEstimator):
    """Knows some pairs of words; another one is a KeyError."""

    def fit(self, x: Any, y: Any) -> Pairs:
        """Learn nothing."""
        self.n_features_in_ = 2
        return self

    def predict(self, x: Any) -> Any:
        """Look each pair up."""
        return np.array([KNOWN[first, second] for first, second in np.asarray(x).tolist()])


class Fatal(Pairs):
    """Ends its process on an empty word, as native code may."""

    def predict(self, x: Any) -> Any:
        """Look each pair up."""
        if (np.asarray(x) == "").any():
            os._exit(9)
        return super().predict(x)


@functools.cache
def pairs() -> Pairs:
    """Return the model."""
    return Pairs().fit(None, None)


def pairs_holdout() -> Holdout:
    """Return labelled rows."""
    places = np.random.default_rng(0).integers(0, len(KNOWN), 60)
    words = np.array(list(KNOWN), object)[places]
    return Holdout(inputs={"word": words}, labels=np.array(list(KNOWN.values()))[places])


@functools.cache
def fatal() -> Fatal:
    """Return the model."""
    return Fatal().fit(None, None)


def pooled() -> Any:
    """Return a torch module that takes the mean of the tokens that are there, and raises where there are none."""
    import torch

    class Pooled(torch.nn.Module):
        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            count = mask.sum(dim=1)
            if not torch.compiler.is_compiling() and (count == 0).any():
                raise ValueError("a row without tokens has no mean")
            return (ids * mask).sum(dim=1) / count

    return Pooled().eval()
