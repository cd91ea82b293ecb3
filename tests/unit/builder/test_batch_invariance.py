"""build: other rows in a batch that change a row's answer are found, whatever the cause; what does not is let be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tailcut.builder import Holdout
from tailcut.builder.quality import batch_invariance
from tailcut.common.tensors import Arrays
from tailcut.errors import BuildError, InferenceError
from tailcut.manifest import Model, TensorSpec
from tailcut.registry.evidence import RowCoupling
from tailcut.testing.runtimes import StubRuntime

ROWS = 300
DRAW = np.random.default_rng(0)
WEIGHTS = DRAW.normal(size=(4, 3))
FLOATS = Holdout(inputs={"x": DRAW.normal(size=(ROWS, 4)).astype(np.float32)})
X = TensorSpec(name="x", shape=(-1, 4))
Floats = npt.NDArray[np.float64]


def model(*inputs: TensorSpec, outputs: tuple[str, ...] = ("y",)) -> Model:
    return Model(source="m:m", inputs=inputs or (X,), outputs=tuple(TensorSpec(name=name) for name in outputs))


def measured(answer: Callable[[Arrays], Arrays], holdout: Holdout = FLOATS, of: Model | None = None) -> RowCoupling:
    return batch_invariance.measure(StubRuntime(answer), holdout, of or model())


def scores(x: Floats) -> Floats:
    return np.tanh(x @ WEIGHTS) @ np.array([1.0, -2.0, 0.5])


def of_x(change: Callable[[Floats], Floats]) -> Callable[[Arrays], Arrays]:
    """A model of 4 floats that sees what ``change`` makes of the whole batch."""
    return lambda inputs: {"y": scores(change(inputs["x"].astype(np.float64))).astype(np.float32)}


def dynamic(x: Floats) -> Floats:
    """Take one scale of 8 bits for the whole batch."""
    with np.errstate(all="ignore"):
        scale = np.maximum(np.abs(x).max(), 1e-9) / 127
        return np.round(x / scale) * scale


def batch_norm(x: Floats) -> Floats:
    return (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1.0)


def softmax_over_rows(x: Floats) -> Floats:
    powers = np.exp(x - x.max(axis=0))
    return x + powers / powers.sum(axis=0)


def running_sum(x: Floats) -> Floats:
    """See the rows before it only, as a recurrent layer that takes the batch for the time does."""
    return np.cumsum(x, axis=0)


def rank(x: Floats) -> Floats:
    return x + np.argsort(np.argsort(x, axis=0), axis=0)


def crowded(x: Floats) -> Floats:
    """Lose rows beyond the tenth, as experts of limited capacity do."""
    return np.where(np.arange(len(x))[:, None] < 10, x, 0.0)


def clipped_by_the_extreme(x: Floats) -> Floats:
    """Behave well but beside rows that are larger than any of the holdout."""
    return x * (0.5 if np.abs(x).max() > 1e5 else 1.0)


def only_beside_zeros(x: Floats) -> Floats:
    return x * (1.0 if (np.abs(x).max(axis=1) > 0).all() else 0.0)


def least_value(x: Floats) -> Floats:
    """Be shifted by the least value of the batch where that is far below zero: sees one sign only."""
    return x + min(float(x.min()) + 1e4, 0.0)


COUPLED = [
    dynamic, batch_norm, softmax_over_rows, running_sum, rank, crowded, clipped_by_the_extreme, only_beside_zeros,
    least_value, lambda x: x - x.mean(axis=0),
]  # fmt: skip


@pytest.mark.parametrize("change", COUPLED)
def test_a_row_that_its_company_changes_has_to_run_alone(change: Callable[[Floats], Floats]) -> None:
    with np.errstate(all="ignore"):
        assert measured(of_x(change)).rows_alone


APART = [
    lambda x: x,
    lambda x: np.clip(x, -3, 3),
    lambda x: np.where(np.abs(x) > 1e6, np.nan, x),  # of the row itself
    lambda x: x + 1e-9 * len(x),  # as kernels of other sizes round
]


@pytest.mark.parametrize("change", APART)
def test_a_row_that_only_itself_changes_may_share_batches(change: Callable[[Floats], Floats]) -> None:
    with np.errstate(all="ignore"):
        found = measured(of_x(change))
    assert not found.rows_alone
    assert found.rows == batch_invariance.ROWS
    kinds = found.outputs["y"].max_abs
    assert {"batch of 2", "batch of 8", "batch of 32", "random", "zeros", "1e7", "-1e7", "largest"} < set(kinds)
    assert "NaN and infinity" not in kinds


def test_every_output_is_looked_at() -> None:
    def answer(inputs: Arrays) -> Arrays:
        x = inputs["x"].astype(np.float64)
        return {"first": scores(x), "second": scores(x - x.mean(axis=0))[:, None]}

    found = measured(answer, of=model(outputs=("first", "second")))
    assert found.rows_alone
    first, second = (found.outputs[name] for name in ("first", "second"))
    assert max(first.max_abs.values()) < 1e-12
    assert second.max_abs["batch of 2"] > second.limit
    first = measured(lambda inputs: {"first": scores(inputs["x"].astype("f8"))}, of=model(outputs=("first",)))
    assert not first.rows_alone


def test_text_and_classes_are_compared_as_they_are() -> None:
    def labels(inputs: Arrays) -> Arrays:
        high = inputs["x"][:, 0] > inputs["x"][:, 0].astype(np.float64).mean()
        return {"y": np.where(high, "yes", "no").astype(object)}

    assert measured(labels).rows_alone
    assert not measured(lambda inputs: {"y": np.where(inputs["x"][:, 0] > 0, "yes", "no").astype(object)}).rows_alone
    assert measured(lambda inputs: {"y": inputs["x"][:, 0] >= inputs["x"][:, 0].max()}).rows_alone


def test_nan_is_company_where_the_input_takes_it_and_only_there() -> None:
    def answer(inputs: Arrays) -> Arrays:
        x = inputs["x"].astype(np.float64)
        good = np.isfinite(x).all()
        return {"y": scores(np.nan_to_num(x, posinf=0.0, neginf=0.0)) * (1.0 if good else 2.0)}

    assert not measured(answer).rows_alone
    found = measured(answer, of=model(TensorSpec(name="x", shape=(-1, 4), allow_nan=True)))
    assert found.rows_alone
    assert found.outputs["y"].max_abs["NaN and infinity"] > 0.1


def test_company_that_the_model_refuses_is_none() -> None:
    def answer(inputs: Arrays) -> Arrays:
        if np.abs(inputs["x"]).max() > 100:
            raise InferenceError("out of range")
        return {"y": scores(inputs["x"].astype(np.float64))}

    found = measured(answer)
    assert not found.rows_alone
    assert "1e7" not in found.outputs["y"].max_abs
    assert "zeros" in found.outputs["y"].max_abs


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda inputs: {"y": np.squeeze(inputs["x"].sum(axis=1))}, r"shape \[\] for a single row"),
        (lambda inputs: {"y": np.zeros(3)}, r"shape \[3\] for a single row"),
    ],
)
def test_a_model_that_gives_a_single_row_no_answer_of_its_own_ends_the_build(
    answer: Callable[[Arrays], Arrays], says: str
) -> None:
    with pytest.raises(BuildError, match=says):
        measured(answer)


def test_a_model_that_refuses_a_single_row_ends_the_build() -> None:
    """As batch normalisation in training mode does."""

    def answer(inputs: Arrays) -> Arrays:
        if len(inputs["x"]) == 1:
            raise InferenceError("Expected more than 1 value per channel when training")
        return {"y": inputs["x"][:, 0]}

    with pytest.raises(BuildError, match=r"row 0 of the holdout is refused|every row of the holdout is refused"):
        measured(answer)


# -- Integers, padding, cost -----------------------------------------------------------------------------------------

TABLES = Holdout(inputs={"ids": np.stack([DRAW.integers(2, 9, ROWS), DRAW.integers(100, 200, ROWS)], axis=1)})
IDS = TensorSpec(name="ids", datatype="INT64", shape=(-1, 2))


def test_integers_stay_within_what_the_holdout_has_in_their_place() -> None:
    seen: list[Arrays] = []

    def answer(inputs: Arrays) -> Arrays:
        seen.append(inputs)
        return {"y": inputs["ids"].sum(axis=1) / 1000}

    assert not measured(answer, TABLES, model(IDS)).rows_alone
    ids = np.concatenate([inputs["ids"] for inputs in seen])
    whole = TABLES.inputs["ids"]
    np.testing.assert_array_equal(ids.min(axis=0), whole.min(axis=0))
    np.testing.assert_array_equal(ids.max(axis=0), whole.max(axis=0))
    least = [inputs["ids"][0].tolist() for inputs in seen if len(inputs["ids"]) > 1]
    assert whole.min(axis=0).tolist() in least
    assert whole.max(axis=0).tolist() in least


def test_integers_that_couple_rows_are_found() -> None:
    def answer(inputs: Arrays) -> Arrays:
        return {"y": inputs["ids"][:, 0] / inputs["ids"][:, 1].max()}

    assert measured(answer, TABLES, model(IDS)).rows_alone


def ragged(rows: int = 100, width: int = 64) -> Holdout:
    lengths = np.random.default_rng(0).permutation(np.linspace(1, width, rows).astype(np.int64))
    mask = (np.arange(width) < lengths[:, None]).astype(np.int64)
    ids = np.random.default_rng(1).integers(1, 50, size=(rows, width)) * mask
    return Holdout(inputs={"ids": ids, "mask": mask}, padding="mask")


TOKENS = (
    TensorSpec(name="ids", datatype="INT64", shape=(-1, -1)),
    TensorSpec(name="mask", datatype="INT64", shape=(-1, -1)),
)


def attention(masked: bool) -> Callable[[Arrays], Arrays]:
    """One head over the tokens, with or without the mask; also an output that follows the tokens."""
    table = np.random.default_rng(2).normal(size=(50, 4))

    def answer(inputs: Arrays) -> Arrays:
        values = table[inputs["ids"]]
        weights = np.exp(values @ np.array([0.3, -0.2, 0.5, 0.1]))
        weights = weights * inputs["mask"] if masked else weights
        total = weights.sum(axis=1, keepdims=True)
        mean = np.einsum("bt,btd->bd", weights / np.where(total > 0, total, 1.0), values)
        return {"y": mean[:, 0], "each": values[:, :, 0] * mean[:, :1]}

    return answer


def test_padding_that_a_longer_neighbour_adds_is_found() -> None:
    of = model(*TOKENS, outputs=("y", "each"))
    assert not measured(attention(masked=True), ragged(), of).rows_alone
    found = measured(attention(masked=False), ragged(), of)
    assert found.rows_alone
    for each in found.outputs.values():
        assert each.max_abs["longest"] > each.limit


@pytest.mark.parametrize(
    ("seconds", "rows"), [(0.0, batch_invariance.ROWS), (0.1, 13), (5.0, batch_invariance.LEAST_ROWS)]
)
def test_a_slow_model_is_measured_on_fewer_rows(seconds: float, rows: int) -> None:
    clock = count()
    stub = StubRuntime(lambda inputs: {"y": inputs["x"][:, 0]})
    found = batch_invariance.measure(stub, FLOATS, model(), clock_s=lambda: next(clock) * seconds)
    assert abs(found.rows - rows) <= 1
    assert sum(stub.rows) <= 20 * found.rows + 100


def test_a_holdout_of_fewer_rows_will_do() -> None:
    few = FLOATS.subset(np.arange(3))
    assert measured(of_x(dynamic), few).rows_alone
    assert measured(of_x(lambda x: x), few).rows == 3


# -- Limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "limit"),
    [
        (np.linspace(0, 1, 64, dtype=np.float32), 0.001),
        (np.linspace(0, 0.002, 64, dtype=np.float32), 0.01 * np.linspace(0, 0.002, 64).std()),
        (np.linspace(-5, 5, 64, dtype=np.float32), 0.001 * np.linspace(-5, 5, 64).std()),
        (np.full(64, 3e6, np.float32), 8 * 2.0**-23 * 3e6),
        (np.arange(64), 0.001 * np.arange(64).std()),
        (np.array([np.nan] * 64, np.float32), 0.0),
    ],
)
def test_a_limit_is_what_no_decision_sees(values: npt.NDArray[Any], limit: float) -> None:
    assert batch_invariance.limit_of(list(values[:, None])) == pytest.approx(limit, rel=1e-4)


def pairs() -> Iterator[tuple[Any, Any, float]]:
    yield [[1.0, 2.0]], [[1.0, 2.5]], 0.5
    yield [[1.0, 2.0]], [[1.0]], 0.0  # of an output that follows the tokens, what both have
    yield [[np.nan]], [[np.nan]], 0.0
    yield [[np.inf]], [[np.inf]], 0.0
    yield [[np.nan]], [[1.0]], np.finfo(np.float64).max
    yield [[1.0]], [[-np.inf]], np.finfo(np.float64).max
    yield [[1.0]], [1.0], np.finfo(np.float64).max
    yield [[1.0]], np.zeros((0, 1)), np.finfo(np.float64).max
    yield [["a"]], [["b"]], 1.0


@pytest.mark.parametrize(("alone", "together", "change"), list(pairs()))
def test_a_change_is_the_largest_difference(alone: Any, together: Any, change: float) -> None:
    assert batch_invariance.change_of(np.asarray(alone), np.asarray(together)) == change


@given(st.integers(1, 70), st.integers(0, 3))
def test_every_row_has_each_kind_of_company_where_it_is_said_to_be(rows: int, kinds: int) -> None:
    holdout = FLOATS.subset(np.arange(70))
    seen: dict[str, list[int]] = {}
    for company in batch_invariance.companies(holdout, (X,), rows):
        x = company.inputs["x"]
        np.testing.assert_array_equal(x[company.places], holdout.inputs["x"][list(company.rows)])
        assert len(x) > len(company.rows) or len(x) > 1
        assert np.isfinite(x).all()
        seen.setdefault(company.kind, []).extend(company.rows)
    for kind, found in seen.items():
        assert sorted(set(found)) == sorted(found)
        whole = rows if kind.startswith("batch") or kind == "random" else -(-rows // 2)
        assert found == list(range(whole)), kind
