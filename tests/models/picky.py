"""Models that refuse the row that serving would invent, for reasons that no limit of a single value tells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

from tailcut.build import Holdout
from tailcut.common.tensors import Arrays

TOKENS = 40


class Picky(NamedTuple):
    """One model, as an ONNX file.

    Attributes:
        inputs: of the manifest, as TOML.
        graph: in ONNX's text form, without its opset.
        rows: makes so many rows that the model answers.
        answer: what it answers, (rows,).
        padding: the holdout's.
    """

    inputs: str
    graph: str
    rows: Callable[[int], Arrays]
    answer: Callable[[Arrays], np.ndarray]
    padding: str = ""

    def save(self, path: Path) -> Path:
        """Write the model."""
        onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]>\n{self.graph}'), str(path))
        return path


def _years(rows: int) -> Arrays:
    return {"year": np.random.default_rng(0).integers(1950, 1954, rows)}


def _tokens(rows: int) -> Arrays:
    draw = np.random.default_rng(0)
    ends = draw.integers(1, TOKENS + 1, rows)
    mask = (np.arange(TOKENS)[None] < ends[:, None]).astype(np.int64)
    return {"ids": draw.integers(1, 50, (rows, TOKENS)) * mask, "mask": mask}


def _spread(rows: int) -> Arrays:
    return {"x": np.random.default_rng(0).normal(size=(rows, 6)).astype(np.float32)}


def _signals(rows: int) -> Arrays:
    return {"signal": np.random.default_rng(0).normal(size=(rows, 24)).astype(np.float32)}


PICKY = {
    "an index before the first": Picky(
        inputs='[{ name = "year", datatype = "INT64" }]',
        graph="""years (int64[n] year) => (float[n] y) <int64 first = {1950}, float[4] table = {1, 2, 3, 4}> {
            place = Sub (year, first)
            y = Gather (table, place)
        }""",
        rows=_years,
        answer=lambda inputs: inputs["year"] - 1949.0,
    ),
    "padding only": Picky(
        inputs='[{ name = "ids", datatype = "INT64", shape = [-1, -1] }, '
        '{ name = "mask", datatype = "INT64", shape = [-1, -1] }]',
        # The mean of the tokens that are there; of none at all the first cannot be found.
        graph="""mean (int64[n, t] ids, int64[n, t] mask) => (float[n] y)
        <int64[1] second = {1}, int64[1] zero = {0}, float none = {0}> {
            there = Cast <to = 1> (mask)
            value = Cast <to = 1> (ids)
            counts = ReduceSum <keepdims = 0> (there, second)
            held = NonZero (counts)
            first = Gather <axis = 1> (held, zero)
            number = Cast <to = 1> (first)
            nothing = Mul (number, none)
            flat = ReduceSum <keepdims = 0> (nothing)
            given = Mul (there, value)
            total = ReduceSum <keepdims = 0> (given, second)
            mean = Div (total, counts)
            y = Add (mean, flat)
        }""",
        rows=_tokens,
        answer=lambda inputs: inputs["ids"].sum(axis=1) / inputs["mask"].sum(axis=1),
        padding="mask",
    ),
    "a constant row": Picky(
        inputs='[{ name = "x", shape = [-1, 6] }]',
        graph="""scaled (float[n, 6] x) => (float[n] y) <float[1] zeros = {0}, float none = {0}> {
            most = ReduceMax <axes = [1], keepdims = 0> (x)
            least = ReduceMin <axes = [1], keepdims = 0> (x)
            spread = Sub (most, least)
            flat = Equal (spread, none)
            place = Cast <to = 7> (flat)
            nothing = Gather (zeros, place)
            y = Add (spread, nothing)
        }""",
        rows=_spread,
        answer=lambda inputs: np.ptp(inputs["x"], axis=1),
    ),
    "too short a row": Picky(
        inputs='[{ name = "signal", shape = [-1, -1] }]',
        # The twelfth value of rows of any length: those of eight have none.
        graph="""twelfth (float[n, t] signal) => (float[n] y) <int64 place = {11}> {
            y = Gather <axis = 1> (signal, place)
        }""",
        rows=_signals,
        answer=lambda inputs: inputs["signal"][:, 11],
    ),
}


def _holdout(name: str) -> Holdout:
    model = PICKY[name]
    inputs = model.rows(200)
    return Holdout(inputs=inputs, labels=np.asarray(model.answer(inputs), np.float64), padding=model.padding)


def years_holdout() -> Holdout:
    """Return labelled rows for "an index before the first"."""
    return _holdout("an index before the first")


def tokens_holdout() -> Holdout:
    """Return labelled rows for "padding only"."""
    return _holdout("padding only")


def spread_holdout() -> Holdout:
    """Return labelled rows for "a constant row"."""
    return _holdout("a constant row")


def signals_holdout() -> Holdout:
    """Return labelled rows for "too short a row"."""
    return _holdout("too short a row")
