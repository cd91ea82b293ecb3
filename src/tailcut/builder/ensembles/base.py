"""One form for every library's trees, with thresholds that compare as the library's own do.

Thresholds are the library's float64 values. The graph compares in double, or in float32 where every value of the
matrix is one. For every float32 x, ``x <= t`` is ``x <= down(t)``, where down(t) is the greatest float32 that is not
above t; rounding to the nearest (as converters do: half of LightGBM's thresholds go up) sends a row on the threshold
the other way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tailcut.common.tensors import Bools, Doubles

Ints = npt.NDArray[np.int64]

Link = Literal["identity", "sigmoid", "softmax", "exp"]

LEAF = -1
"""In ``Tree.left``: the node is a leaf."""


@dataclass(frozen=True)
class Tree:
    """One tree; node 0 is the root.

    Attributes:
        feature: (nodes,) column that a split looks at.
        threshold: (nodes,) float64, as the library compares.
        left: (nodes,) node taken where the comparison holds; LEAF in leaves.
        right: (nodes,) node taken where it does not.
        missing_left: (nodes,) whether NaN goes left.
        value: (nodes, targets) what a leaf adds to each of ``targets``.
        targets: outputs that the leaves add to.
        categories: node -> values that go left, for splits on a category; all other values go right.
    """

    feature: Ints
    threshold: Doubles
    left: Ints
    right: Ints
    missing_left: Bools
    value: Doubles
    targets: tuple[int, ...]
    categories: Mapping[int, tuple[int, ...]] = field(default_factory=dict)

    @property
    def splits(self) -> Ints:
        """Nodes that are no leaves."""
        return np.flatnonzero(self.left != LEAF)


@dataclass(frozen=True)
class Ensemble:
    """Trees whose leaves are added up.

    Attributes:
        trees: all of them.
        features: columns of the input.
        targets: outputs before the link; 1 gives an output of shape (rows,).
        base: (targets,) added to the sum.
        less: whether a split holds for ``x < threshold`` (XGBoost) or ``x <= threshold``.
        link: from the sum to the answer; "sigmoid" and "softmax" give probabilities.
        scale: factor on the sum, before the link.
        rounds: whether the library rounds its input to float32 before it compares (scikit-learn's trees, XGBoost).
    """

    trees: tuple[Tree, ...]
    features: int
    targets: int
    base: Doubles
    less: Literal["<", "<="]
    link: Link
    scale: float = 1.0
    rounds: bool = False

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return sum(len(tree.left) for tree in self.trees)


def down(thresholds: Any) -> npt.NDArray[np.float32]:
    """Return the greatest float32 that is not above each float64 threshold."""
    wide = np.asarray(thresholds, dtype=np.float64)
    with np.errstate(over="ignore"):
        near = wide.astype(np.float32)
        below = np.nextafter(near, np.float32(-np.inf))
    return np.where(near.astype(np.float64) > wide, below, near).astype(np.float32)
