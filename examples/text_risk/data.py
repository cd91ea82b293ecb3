"""Customers and their tickets, drawn with a seed. Whether a customer leaves depends on text and on both SQL features.

Holdout tickets are of other customers than training tickets, and say it in other sentences.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from text_risk.messages import CLOSERS, OPENERS, SUBJECTS
from text_risk.settings import SEED

CUSTOMERS = 4000
HELD_OUT_FROM = 2500
"""Customers from this number on are of the holdout."""
ORDERS_PER_CUSTOMER = 8
TODAY = 1_780_000_000
"""Seconds since the epoch at which the tables end; the tickets are of that day."""
DAY_S = 86_400
WINDOW_S = 90 * DAY_S

TABLES = """
CREATE TABLE customers (customer INTEGER PRIMARY KEY, joined INTEGER NOT NULL);
CREATE TABLE orders (customer INTEGER NOT NULL, due INTEGER NOT NULL, delivered INTEGER NOT NULL);
"""
INDEX = "CREATE INDEX orders_by_customer ON orders (customer, due);"


class Tickets(NamedTuple):
    """One ticket per customer; whether the customer left within a month.

    Attributes:
        columns: months as a customer and late orders, as the SQL of the manifest answers them.
    """

    customers: npt.NDArray[np.int64]
    texts: list[str]
    subjects: list[str]
    columns: npt.NDArray[np.float64]
    left: npt.NDArray[np.int64]


class Shop(NamedTuple):
    """The tables, and what they say of each customer.

    Attributes:
        joined: per customer, in seconds since the epoch.
        due, delivered: per customer and order.
    """

    joined: npt.NDArray[np.int64]
    due: npt.NDArray[np.int64]
    delivered: npt.NDArray[np.int64]

    def columns(self) -> npt.NDArray[np.float64]:
        """Return months and late orders of each customer."""
        late = (self.due > TODAY - WINDOW_S) & (self.due <= TODAY) & (self.delivered > self.due)
        return np.stack([(TODAY - self.joined) / (30 * DAY_S), late.sum(axis=1)], axis=1).astype(np.float64)


def shop() -> Shop:
    """Draw the tables: customers of up to six years, and orders of the last 180 days."""
    draw = np.random.default_rng(SEED)
    joined = TODAY - draw.integers(DAY_S, 72 * 30 * DAY_S, CUSTOMERS)
    shape = (CUSTOMERS, ORDERS_PER_CUSTOMER)
    due = TODAY - draw.integers(0, 2 * WINDOW_S, shape)
    # Some customers live where parcels come late.
    late = draw.random(shape) < draw.beta(1.0, 1.5, (CUSTOMERS, 1))
    delivered = due + np.where(late, draw.integers(DAY_S, 9 * DAY_S, shape), -draw.integers(0, DAY_S, shape))
    return Shop(joined, due, delivered)


def tickets(held_out: bool) -> Tickets:
    """Draw the tickets of the training, or those of the holdout."""
    first, end = (HELD_OUT_FROM, CUSTOMERS) if held_out else (0, HELD_OUT_FROM)
    customers = np.arange(first, end)
    draw = np.random.default_rng(SEED + 1 + held_out)
    subjects = [list(SUBJECTS)[at] for at in draw.integers(0, len(SUBJECTS), len(customers))]
    texts = [write(subject, draw, held_out=held_out) for subject in subjects]
    columns = shop().columns()[customers]
    months, late = columns.T
    score = np.array([SUBJECTS[subject].weight for subject in subjects]) + 1.1 * (late - 1.6) - (months - 36) / 14
    left = (score + draw.logistic(0.0, 0.5, len(score)) > 0.3).astype(np.int64)
    return Tickets(customers, texts, subjects, columns, left)


def write(subject: str, draw: np.random.Generator, *, held_out: bool) -> str:
    """Write a message about a subject."""
    sentences = SUBJECTS[subject].held_out if held_out else SUBJECTS[subject].seen
    opener, core, closer = (each[draw.integers(len(each))] for each in (OPENERS, sentences, CLOSERS))
    return " ".join(part for part in (opener, core, closer) if part)


def write_database(path: Path) -> None:
    """Write the tables as SQLite."""
    path.unlink(missing_ok=True)
    found = shop()
    customer = np.repeat(np.arange(CUSTOMERS), ORDERS_PER_CUSTOMER)
    orders = np.stack([customer, found.due.ravel(), found.delivered.ravel()], axis=1)
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.executescript(TABLES)
        connection.executemany("INSERT INTO customers VALUES (?, ?)", enumerate(found.joined.tolist()))
        connection.executemany("INSERT INTO orders VALUES (?, ?, ?)", orders.tolist())
        connection.executescript(INDEX)


def now() -> float:
    """Return the time of the tables: the shop's clock stands still, so that answers can be compared."""
    return float(TODAY)
