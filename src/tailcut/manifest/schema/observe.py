"""The manifest's section on what is seen of a running server: figures, and what is done with them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from tailcut.common.units import Duration
from tailcut.manifest.section import Section


class Observe(Section, frozen=True, kw_only=True):
    """What is seen of all models of the server."""

    window_s: Annotated[
        Duration,
        Meta(
            description="time that the percentiles on /metrics and /ui are of: the last window and the running one; at "
            "least twice your scrape interval"
        ),
    ] = field(default=Duration(60.0), name="window")
