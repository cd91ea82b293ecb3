"""The desk's traffic: a board polls the open tickets, because their customers' columns change. Their texts do not."""

from __future__ import annotations

import json
from collections.abc import Iterator

import numpy as np

from text_risk.data import tickets, write
from text_risk.messages import SUBJECTS

OPEN = 100
"""Tickets on the board."""
SKEW = 1.0
"""The ticket of rank r is polled in proportion to r ** -SKEW."""
NEW_SHARE = 0.02
"""Share of requests that are about a ticket that has just come: a text that has not been asked for before."""
_DRAWN_AT_ONCE = 4096


def board(seed: int) -> Iterator[bytes]:
    """Yield request bodies forever; the same seed gives the same ones."""
    return polls(seed, NEW_SHARE)


def polls(seed: int, new_share: float) -> Iterator[bytes]:
    """Yield request bodies, of which a share are about tickets that have just come."""
    draw = np.random.default_rng(seed)
    held_out = tickets(held_out=True)
    chosen = draw.choice(len(held_out.texts), OPEN, replace=False)
    open_now = [_body(f"{held_out.texts[at]} {_about(draw)}", int(held_out.customers[at])) for at in chosen]
    popularity = np.arange(1, OPEN + 1, dtype=np.float64) ** -SKEW
    popularity /= popularity.sum()
    names = list(SUBJECTS)
    while True:
        polled = draw.choice(OPEN, _DRAWN_AT_ONCE, p=popularity).tolist()
        new = (draw.random(_DRAWN_AT_ONCE) < new_share).tolist()
        for place, is_new in zip(polled, new, strict=True):
            if is_new:
                text = write(names[draw.integers(len(names))], draw, held_out=True)
                yield _body(f"{text} {_about(draw)}", int(draw.choice(held_out.customers)))
            else:
                yield open_now[place]


def _about(draw: np.random.Generator) -> str:
    """Return a sentence that makes a text one of its own."""
    return f"It is about order {draw.integers(10**6, 10**9)}."


def _body(text: str, customer: int) -> bytes:
    return json.dumps({"entities": [{"text": text, "customer": customer}]}, separators=(",", ":")).encode()
