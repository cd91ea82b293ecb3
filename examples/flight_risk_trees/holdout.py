"""The judge of every variant: flight_risk's holdout with the trees' one input."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from flight_risk_trees.features import features_of

if TYPE_CHECKING:
    from tailcut.build import Holdout


def holdout() -> Holdout:
    """Return ``features``, whether each flight was late, and slices by carrier, origin and hour.

    Raises:
        FileNotFoundError: flight_risk's data have not been prepared.
    """
    from flight_risk.holdout import holdout as flights

    found = flights()
    return replace(found, inputs={"features": features_of(found.inputs)})
