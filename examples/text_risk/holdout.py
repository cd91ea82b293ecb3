"""The judge of every variant: tickets of other customers, in sentences that no training ticket has."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from text_risk.model import joined
from text_risk.settings import home

if TYPE_CHECKING:
    from tailcut.build import Holdout

FILE = "holdout.npz"


def holdout() -> Holdout:
    """Return the classifier's input, whether each customer left, and slices by subject.

    Raises:
        FileNotFoundError: nothing is prepared.
    """
    from tailcut.build import Holdout

    path = home() / FILE
    if not path.is_file():
        raise FileNotFoundError(f"no {FILE} at {path}\n\nhint: python -m text_risk.prepare (in examples/)")
    with np.load(path) as file:
        inputs = joined(file["embeddings"], file["columns"]).astype(np.float32)
        return Holdout(inputs={"x": inputs}, labels=file["left"], slices={"subject": file["subjects"]})
