"""The part of the manifest that says what change of a model's data is drift. Public names are those of ``schema``."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tailcut.common.units import Duration, Share
from tailcut.manifest.section import Section


class Drift(Section, frozen=True, kw_only=True):
    """Drift of the model's inputs and outputs against the holdout that it was judged on."""

    mode: Annotated[
        Literal["auto", "off"],
        Meta(
            description="auto: `tailcut build` keeps sketches of the holdout, and the server watches versions "
            "that have them; off: neither"
        ),
    ] = "auto"
    false_alarms_per_month: Annotated[
        float,
        Meta(
            description="false alarms to accept in 30 days, of all columns of this model together; less needs more "
            "evidence",
            gt=0,
            le=1000,
        ),
    ] = 1.0
    min_effect: Annotated[
        Share,
        Meta(description="a change that touches at most this share of the rows is no drift (total variation distance)"),
    ] = Share(0.03)
    psi: Annotated[
        float,
        Meta(
            description="population stability index that a column must exceed, over the whole window, for an alarm",
            gt=0,
            le=10,
        ),
    ] = 0.1
    window_s: Annotated[
        Duration,
        Meta(
            description="time that the current distribution is of, and in which an entity counts once; at least the "
            "period of your traffic's rhythm, such as '1d' or '7d', or every morning is a change"
        ),
    ] = field(default=Duration(86_400.0), name="window")
    ignore: Annotated[
        tuple[str, ...],
        Meta(
            description="columns that are not watched: names in model.inputs[].columns, or 'features[3]' for the "
            "fourth column of the tensor 'features'",
            examples=[("hour",)],
        ),
    ] = ()
