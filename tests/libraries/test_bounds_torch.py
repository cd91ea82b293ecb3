"""Bounds that a torch module proves: embeddings and tables that an input reaches unchanged, and positions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.derived_kit import bounds_of, lengths_of, of_module
from torch import nn
from torch.nn import functional

from tailcut.builder import Holdout, limits
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Arrays
from tailcut.manifest import Model, TensorSpec

IDS = (TensorSpec(name="ids", datatype="INT64", shape=(-1, 3)),)
IDS_ROWS: Arrays = {"ids": np.array([[1, 2, 3], [4, 5, 6], [0, 0, 1]])}
ALL = ("ids", ())

Forward = Callable[[Any, torch.Tensor], torch.Tensor]


class Tables(nn.Module):
    """Tables of 50 and 7 rows, and what a test does with them."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.shops, self.days = nn.Embedding(50, 4), nn.Embedding(7, 4)
        self.bag = nn.EmbeddingBag(50, 4)
        self.table = nn.Parameter(torch.randn(50, 4))
        self.run = forward

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.run(self, ids)


def derived(forward: Forward, inputs: tuple[TensorSpec, ...] = IDS, rows: Arrays = IDS_ROWS) -> dict[Any, Bound]:
    module = Tables(forward)
    return bounds_of(module, of_module(module, inputs), inputs, rows)


REACHED: dict[str, Forward] = {
    "embedding": lambda m, ids: m.shops(ids),
    "functional": lambda m, ids: functional.embedding(ids, m.table),
    "bag": lambda m, ids: m.bag(ids),
    "one_hot": lambda m, ids: functional.one_hot(ids, 50).float(),
    "one_hot by name": lambda m, ids: functional.one_hot(ids, num_classes=50).float(),
    "index": lambda m, ids: m.table[ids],
    "reshaped": lambda m, ids: m.shops(ids.reshape(-1).int().reshape(-1, 3, 1).squeeze(2)),
    "reordered": lambda m, ids: m.shops(torch.stack(list(ids.unbind(1)), dim=1).flip(1).t().contiguous()),
    "padded": lambda m, ids: m.shops(functional.pad(ids, (1, 0), value=3))[:, 1:],
    "parts": lambda m, ids: torch.cat([m.shops(part) for part in ids.split([1, 2], dim=1)], dim=1),
    "copied": lambda m, ids: m.shops(ids.clone().detach().to(torch.int32)),
    "constant columns": lambda m, ids: m.shops(ids[:, [2, 0, 1]]),
    "transposed and viewed": lambda m, ids: m.shops(ids.unsqueeze(2).transpose(1, 2).reshape(-1, 3)),
    "made contiguous": lambda m, ids: m.shops(ids.t().contiguous().view(-1)),
}


@pytest.mark.parametrize("name", REACHED)
def test_an_input_that_reaches_a_table_unchanged_has_the_tables_bounds(name: str) -> None:
    found = derived(REACHED[name])
    assert [(bound.input, bound.columns, bound.min, bound.max) for bound in found.values()] == [("ids", (), 0, 49)]


CHANGED: dict[str, Forward] = {
    "hashed": lambda m, ids: m.shops(ids % 50),
    "clamped": lambda m, ids: m.shops(ids.clamp(0, 49)),
    "clamped in place": lambda m, ids: m.shops(ids.clone().clamp_(0, 49)),
    "clamped view in place": lambda m, ids: (copy := ids.clone(), copy.view(-1).clamp_(0, 49), m.shops(copy))[2],
    "one code replaced in place": lambda m, ids: (
        copy := ids.clone(),
        copy.view(-1).masked_fill_(copy.view(-1) == 70, 0),
        m.shops(copy),
    )[2],
    "refused inside": lambda m, ids: m.shops(ids) if int(ids.max()) != 49 else m.nothing,
    "shifted": lambda m, ids: m.shops((ids - 1).clamp(min=0)),
    "replaced": lambda m, ids: m.shops(torch.where(ids >= 50, 0, ids)),
    "masked": lambda m, ids: m.shops(ids[ids[:, 0] >= 0]),
    "not an index": lambda m, ids: ids.float() @ m.table[:3],
    "as a flag": lambda m, ids: m.shops(ids.bool().long()),
    "caught": lambda m, ids: m.shops(ids) if int(ids.max()) < 50 else m.shops(ids * 0),
}


@pytest.mark.parametrize("name", CHANGED)
def test_an_input_that_is_changed_on_its_way_has_no_bounds(name: str) -> None:
    assert derived(CHANGED[name]) == {}


def test_columns_of_one_input_have_the_bounds_of_their_own_tables() -> None:
    found = derived(lambda m, ids: torch.cat([m.shops(ids[:, 0]), m.days(ids[:, 1:]).flatten(1)], dim=1))
    assert found == {
        ("ids", (0,)): Bound(input="ids", columns=(0,), min=0, max=49, why="embedding shops.weight has 50 rows"),
        ("ids", (1, 2)): Bound(input="ids", columns=(1, 2), min=0, max=6, why="embedding days.weight has 7 rows"),
    }


SHIFTED: dict[str, Forward] = {
    "by a buffer": lambda m, ids: m.shops(ids + torch.tensor([0, 20, 40])),
    "on the other side": lambda m, ids: m.shops(torch.tensor([0, 20, 40]) + ids),
    "before it is an integer": lambda m, ids: m.shops((ids.double() + torch.tensor([0.0, 20.0, 40.0])).long()),
    "in steps": lambda m, ids: m.shops(ids + torch.tensor([0, 10, 35]) - torch.tensor([0, -10, -5])),
    "and moved": lambda m, ids: m.shops((ids + torch.tensor([0, 20, 40])).flip(1).unsqueeze(0)).squeeze(0),
}


@pytest.mark.parametrize("name", SHIFTED)
def test_columns_that_share_a_table_each_begin_at_their_offset(name: str) -> None:
    found = derived(SHIFTED[name])
    assert [(bound.columns, bound.min, bound.max) for bound in found.values()] == [
        ((0,), 0, 49), ((1,), -20, 29), ((2,), -40, 9)
    ]  # fmt: skip
    assert found["ids", (1,)].why == "embedding shops.weight has 50 rows, from 20 on"


def test_ids_that_count_from_one() -> None:
    found = derived(lambda m, ids: m.shops(ids - 1), rows={"ids": IDS_ROWS["ids"] + 1})
    assert [(bound.columns, bound.min, bound.max) for bound in found.values()] == [((), 1, 50)]


@pytest.mark.parametrize("by", ["a part", "another column"])
def test_what_is_added_is_whole_and_no_input(by: str) -> None:
    forward: dict[str, Forward] = {
        "a part": lambda m, ids: m.shops((ids + 0.5).round().long()),
        "another column": lambda m, ids: m.shops((ids + ids[:, :1]).clamp(0, 49)),
    }
    assert derived(forward[by]) == {}


def test_offsets_that_are_written_by_the_values_are_none() -> None:
    """In all of the rows tried the first column is above 0, so that the second one begins at 10 in each."""

    def forward(m: Any, ids: torch.Tensor) -> torch.Tensor:
        offsets = torch.zeros(ids.shape, dtype=torch.int64)
        offsets[:, 1] = torch.where(ids[:, 0] > 0, 10, 0)
        return m.shops(ids + offsets)

    assert ("ids", (1,)) not in derived(forward, rows={"ids": IDS_ROWS["ids"] + 1})


def test_a_column_of_two_tables_has_the_smaller_ones_bound() -> None:
    found = derived(lambda m, ids: torch.cat([m.shops(ids), m.days(ids)], dim=2))
    assert (found[ALL].max, found[ALL].why) == (6, "embedding days.weight has 7 rows")


@pytest.mark.parametrize("how", ["index_select", "gather", "take"])
def test_other_ways_into_a_table(how: str) -> None:
    ways: dict[str, Forward] = {
        "index_select": lambda m, ids: m.table.index_select(0, ids[:, 1]),
        "gather": lambda m, ids: m.table.gather(0, ids[:, 1:2].expand(-1, 4)),
        "take": lambda m, ids: m.table[:, 0].take(ids[:, 1]),
    }
    found = derived(ways[how])
    assert [(bound.columns, bound.min, bound.max) for bound in found.values()] == [((1,), 0, 49)]


@pytest.mark.parametrize(("datatype", "dtype"), [("FP32", np.float32), ("FP64", np.float64)])
def test_an_id_in_a_matrix_of_floats_loses_its_fraction_first(datatype: Any, dtype: Any) -> None:
    """49.5 is shop 49 for the model, so no bound may refuse it; 50 and -1 are none."""
    inputs = (TensorSpec(name="ids", datatype=datatype, shape=(-1, 3)),)
    rows = {"ids": IDS_ROWS["ids"].astype(dtype)}
    found = derived(lambda m, x: torch.cat([m.shops(x[:, 2].float().long()), x], dim=1), inputs, rows)
    bound = found["ids", (2,)]
    assert bound.min is not None
    assert -1 < bound.min < -0.99
    assert bound.max is not None
    assert 49.99 < bound.max < 50


def test_negative_indices_are_refused_unless_the_holdout_has_some() -> None:
    rows = {"ids": np.array([[1, 2, 3], [-2, 5, 6], [0, 0, 1]])}
    assert derived(lambda m, ids: m.table[ids])[ALL].min == 0
    assert derived(lambda m, ids: m.table[ids], IDS, rows)[ALL].min == -50


def test_negative_indices_count_wherever_in_the_holdout_they_are() -> None:
    """A row far behind means the last one of the table; and what a row of the holdout is beyond is no limit."""
    ids = np.tile(np.array([[1, 2, 3]]), (400, 1))
    ids[333, 1] = -1
    holdout = Holdout(inputs={"ids": ids}, labels=np.zeros(400))
    module = Tables(lambda m, ids: m.table[ids])
    section = Model(source="m:load", inputs=IDS, outputs=(TensorSpec(name="y"),))
    found = limits.find(module, of_module(module, IDS), holdout, section, None)
    assert [(bound.min, bound.max) for bound in found.bounds] == [(-50, 49)]


def test_a_datatype_that_holds_nothing_beyond_has_no_bound() -> None:
    class Bytes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(256, 4)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.table(ids.int())

    inputs = (TensorSpec(name="ids", datatype="UINT8", shape=(-1, 3)),)
    module = Bytes()
    assert bounds_of(module, of_module(module, inputs), inputs, {"ids": IDS_ROWS["ids"].astype(np.uint8)}) == {}


def test_a_table_as_long_as_the_input_is_no_limit() -> None:
    """Its size is the free dimension's: longer rows may hold larger numbers."""

    class Reordered(nn.Module):
        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return torch.eye(ids.shape[1])[ids]

    inputs = (TensorSpec(name="ids", datatype="INT64", shape=(-1, -1)),)
    module = Reordered()
    assert bounds_of(module, of_module(module, inputs), inputs, {"ids": np.array([[0, 1, 2], [2, 2, 1]])}) == {}


class Encoder(nn.Module):
    """A vocabulary of 100 and 32 positions, as BERT has them."""

    def __init__(self, positions: str) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(100, 8), nn.Embedding(34, 8)
        self.register_buffer("numbers", torch.arange(32)[None])
        self.learned = nn.Parameter(torch.randn(1, 32, 8))
        self.positions = positions

    def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if self.positions == "embedding":
            places = self.places(self.numbers[:, : ids.shape[1]])
        elif self.positions == "counted":
            places = self.places(mask.cumsum(1) * mask + 1)
        elif self.positions == "counted from 0":
            places = self.places((mask.cumsum(1) - 1).clamp(0))
        else:
            places = self.learned[:, : ids.shape[1]]
        return ((self.words(ids) + places) * mask[..., None]).sum(dim=(1, 2))


TEXT = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in ("ids", "mask"))
TEXT_ROWS: Arrays = {
    "ids": np.array([[5, 6, 7, 0, 0], [9, 9, 1, 2, 3]]),
    "mask": np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]),
}


@pytest.mark.parametrize("positions", ["embedding", "sliced"])
def test_a_table_of_positions_limits_the_length(positions: str) -> None:
    module = Encoder(positions)
    call = of_module(module, TEXT)
    assert lengths_of(module, call, TEXT, TEXT_ROWS) == {"ids": 32, "mask": 32}
    assert bounds_of(module, call, TEXT, TEXT_ROWS)["ids", ()].max == 99


@pytest.mark.parametrize("positions", ["counted", "counted from 0"])
def test_positions_that_are_counted_without_padding_are_no_limit_of_the_length(positions: str) -> None:
    """A row of 40 tokens of which 8 are padding is answered."""
    module = Encoder(positions)
    call = of_module(module, TEXT)
    long = {"ids": np.full((1, 40), 5), "mask": np.repeat([[1, 0]], [32, 8], axis=1)}
    assert np.isfinite(call(long)["y"]).all()
    assert lengths_of(module, call, TEXT, TEXT_ROWS) == {}


def test_a_model_without_positions_has_no_limit_of_length() -> None:
    class Averaged(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 8)

        def forward(self, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return (self.words(ids) * mask[..., None]).sum(dim=(1, 2))

    module = Averaged()
    assert lengths_of(module, of_module(module, TEXT), TEXT, TEXT_ROWS) == {}


def test_of_two_inputs_of_one_length_only_the_one_with_positions_is_limited() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 8)
            self.places = nn.Parameter(torch.randn(16, 8))

        def forward(self, query: torch.Tensor, text: torch.Tensor) -> torch.Tensor:
            return (self.words(text) + self.places[: text.shape[1]]).sum(dim=(1, 2)) + self.words(query).sum(dim=(1, 2))

    inputs = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in ("query", "text"))
    module = Pair()
    rows = {"query": TEXT_ROWS["ids"], "text": TEXT_ROWS["ids"]}
    assert lengths_of(module, of_module(module, inputs), inputs, rows) == {"text": 16}


def test_a_module_that_fails_while_it_is_followed_has_no_bounds() -> None:
    """The build goes on: it only loses the bounds."""

    class Numpy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Embedding(100, 8)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.words(torch.from_numpy(ids.numpy() + 0))

    module = Numpy()
    assert bounds_of(module, of_module(module, IDS), IDS, IDS_ROWS) == {}
