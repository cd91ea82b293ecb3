"""Trials at and beyond the edges: a variant that answers where its source raises is found."""

from __future__ import annotations

import math
import os
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from tests.derived_kit import of_module, slow
from torch import nn

from tailcut.builder.bounds import Edges, Finding, of_source
from tailcut.builder.bounds.categories import UNKNOWN
from tailcut.builder.limits import refusal
from tailcut.common.bounds import Bound
from tailcut.common.tensors import Arrays
from tailcut.manifest import TensorSpec
from tailcut.registry.evidence import EdgeFinding

SHOP = TensorSpec(name="shop", datatype="INT64")
PRICE = TensorSpec(name="price", datatype="FP64", shape=(-1, 2))
OUTPUTS = (TensorSpec(name="y", datatype="FP64"),)
ROWS: Arrays = {"shop": np.array([3, 4, 5]), "price": np.ones((3, 2))}


def table(arrays: Arrays) -> Arrays:
    """50 shops; raises beyond them."""
    if (arrays["shop"] < 0).any() or (arrays["shop"] >= 50).any():
        raise IndexError("no such shop")
    return {"y": arrays["shop"] + 0.5}


def wrapping(arrays: Arrays) -> Arrays:
    """As an exported Gather: counts negative shops from the end."""
    if (arrays["shop"] < -50).any() or (arrays["shop"] >= 50).any():
        raise RuntimeError("out of data bounds")
    return {"y": arrays["shop"] % 50 + 0.5}


def found(
    source: Any, variant: Any, inputs: Any = (SHOP,), bounds: Any = (), sizes: Any = (50,), **options: Any
) -> list[Finding]:
    rows = {tensor.name: ROWS[tensor.name] for tensor in inputs}
    return Edges(source, inputs, OUTPUTS, rows, bounds, sizes).compare(variant, **options)


def test_a_variant_that_answers_where_the_source_raises_is_found() -> None:
    assert [finding.text for finding in found(table, wrapping)] == [
        "the source refuses input 'shop' column 0 = -1 (IndexError: no such shop), this variant answers"
    ]
    answers_all = found(table, lambda arrays: {"y": arrays["shop"].clip(0, 49) + 0.5})
    assert {finding.value for finding in answers_all} >= {-1, 50, 51, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)}
    assert {finding.kind for finding in answers_all} == {"answers"}


@pytest.mark.parametrize("declared", [False, True])
def test_values_that_enforced_bounds_refuse_are_not_tried(declared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = [Bound(input="shop", min=0, max=49)]
    if not declared:
        assert found(table, wrapping, bounds=bounds) == []
        return

    limited = TensorSpec(name="shop", datatype="INT64", min=0, max=49)
    assert found(table, wrapping, inputs=(limited,)) == []
    assert len(found(table, wrapping, inputs=(msgspec.structs.replace(limited, min=-1),))) == 1


def test_the_limits_themselves_are_tried() -> None:
    """A bound that is one too wide does not hide what lies between it and the source's."""
    wide = found(
        table, lambda arrays: {"y": arrays["shop"] + 0.5}, bounds=[Bound(input="shop", min=0, max=60)], sizes=()
    )
    assert [finding.value for finding in wide] == [60]


def test_values_are_tried_though_the_row_around_them_is_beyond_a_limit() -> None:
    ids = TensorSpec(name="ids", datatype="INT64", shape=(-1, -1), max_length=2)
    names = TensorSpec(name="names", datatype="BYTES", shape=(-1, 2), max_length=len(UNKNOWN))
    rows: Arrays = {"ids": np.ones((3, 4), np.int64), "names": np.array([["a" * 40, "b"]] * 3, object)}

    def source(arrays: Arrays) -> Arrays:
        if (arrays["ids"] < 0).any() or (arrays["names"] == UNKNOWN).any():
            raise IndexError
        return {"y": arrays["ids"].sum(axis=1) + 0.5}

    edges = Edges(source, (ids, names), OUTPUTS, rows, ())
    answers_all = edges.compare(lambda arrays: {"y": arrays["ids"].clip(0).sum(axis=1) + 0.5})
    assert {finding.input for finding in answers_all} == {"ids", "names"}


def test_a_finding_names_its_column_and_so_the_first() -> None:
    def cheap(arrays: Arrays) -> Arrays:
        if (arrays["price"] > 50).any():
            raise ValueError("too dear")
        return {"y": arrays["price"][:, 0]}

    findings = found(cheap, lambda arrays: {"y": arrays["price"][:, 0]}, (PRICE,), [Bound(input="price", max=60.5)], ())
    assert [finding.text for finding in findings] == [
        f"the source refuses input 'price' column {column} = 60.5 (ValueError: too dear), this variant answers"
        for column in (0, 1)
    ]


def test_the_limits_of_floats_are_tried_too() -> None:
    def cheap(arrays: Arrays) -> Arrays:
        if (arrays["price"] > 50).any():
            raise ValueError("too dear")
        return {"y": arrays["price"][:, 0]}

    wide = found(cheap, lambda arrays: {"y": arrays["price"][:, 0]}, (PRICE,), [Bound(input="price", max=60.5)], ())
    assert {finding.value for finding in wide} == {60.5}


def test_numbers_that_differ_are_found_unless_the_gate_judges_them() -> None:
    def off(arrays: Arrays) -> Arrays:
        return {"y": np.float64(np.float32(arrays["price"][:, 0]))}

    def exact(arrays: Arrays) -> Arrays:
        return {"y": arrays["price"][:, 0]}

    bounds = [Bound(input="price", min=-1e6, max=3.4e38)]
    assert found(exact, off, (PRICE,), bounds) == []
    bound = [Bound(input="price", min=-1e300, max=1e300)]
    assert {finding.kind for finding in found(exact, off, (PRICE,), bound)} == {"raises"}

    def capped(arrays: Arrays) -> Arrays:
        return {"y": np.minimum(arrays["price"][:, 0], 1e38)}

    differing = found(exact, capped, (PRICE,), bound)
    assert {(finding.kind, finding.value) for finding in differing} == {("differs", 3.4028235e38), ("differs", 1e300)}
    assert "output 'y' is [1e+38] instead of" in differing[0].text
    assert found(exact, capped, (PRICE,), bound, numbers=False) == []


def test_rows_that_only_differ_in_company_are_no_finding() -> None:
    """Of a batch with one scale, for instance: rows of such variants run alone."""

    def scaled(arrays: Arrays) -> Arrays:
        scale = np.abs(arrays["price"]).max() / 127
        return {"y": np.round(arrays["price"][:, 0] / scale) * scale}

    def plain(arrays: Arrays) -> Arrays:
        return {"y": arrays["price"][:, 0]}

    bounds = [Bound(input="price", columns=(1,), values=(1.0,)), Bound(input="price", min=-1.0, max=1e9)]
    assert found(plain, scaled, (PRICE,), bounds) == []


def test_nan_and_infinity_are_tried_where_they_may_come() -> None:
    def refuses(arrays: Arrays) -> Arrays:
        if not np.isfinite(arrays["price"]).all():
            raise ValueError("Input X contains NaN.")
        return {"y": np.ones(len(arrays["price"]))}

    def takes(arrays: Arrays) -> Arrays:
        return {"y": np.ones(len(arrays["price"]))}

    assert found(refuses, takes, (PRICE,)) == []
    price = TensorSpec(name="price", datatype="FP64", shape=(-1, 2), allow_nan=True)
    values = [finding.value for finding in found(refuses, takes, (price,)) if finding.column == 0]
    assert values[:2] == [math.inf, -math.inf]
    assert len(values) == 3
    assert isinstance(values[2], float)
    assert math.isnan(values[2])
    bounds = [Bound(input="price", min=-1e308, max=1e308)]
    assert len(found(refuses, takes, (price,), bounds)) == 2


def test_an_answer_that_serving_refuses_is_none() -> None:
    """NaN in an output is an error of the server, so that no client gets a wrong number."""

    def nan(arrays: Arrays) -> Arrays:
        return {"y": np.where(arrays["shop"] >= 50, np.nan, arrays["shop"] + 0.5)}

    assert {finding.value for finding in found(table, nan)} == {-1, -(2**63)}


def test_unknown_and_empty_text_are_tried() -> None:
    city = TensorSpec(name="city", datatype="BYTES")

    def knows(arrays: Arrays) -> Arrays:
        known = {"a": 0.0, "b": 1.0}
        return {"y": np.array([known[text] for text in arrays["city"]])}

    def ignores(arrays: Arrays) -> Arrays:
        return {"y": np.zeros(len(arrays["city"]))}

    rows: Arrays = {"city": np.array(["a", "a"])}
    edges = Edges(knows, (city,), OUTPUTS, rows, ())
    assert [finding.value for finding in edges.compare(ignores)] == [UNKNOWN, ""]
    assert Edges(knows, (city,), OUTPUTS, rows, [Bound(input="city", values=("a", "b"))]).compare(ignores) == []


def test_an_embedding_and_its_bounds_leave_nothing_to_find() -> None:
    """From the module to the trial: what is derived is what a wrapping export gets wrong."""

    class Shops(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.shops = nn.Embedding(50, 1)

        def forward(self, shop: torch.Tensor) -> torch.Tensor:
            return self.shops(shop).squeeze(1)

    module = Shops()
    call, rows = of_module(module, (SHOP,)), {"shop": ROWS["shop"]}
    outputs = (TensorSpec(name="y"),)
    weights = module.shops.weight.detach().numpy()[:, 0]
    seen = of_source(module, call, (SHOP,), rows, strict=True)
    assert seen.sizes == [50]

    def exported(arrays: Arrays) -> Arrays:
        return {"y": weights[arrays["shop"]]}

    assert [finding.value for finding in Edges(call, (SHOP,), outputs, rows, (), seen.sizes).compare(exported)] == [-1]
    assert Edges(call, (SHOP,), outputs, rows, seen.bounds, seen.sizes).compare(exported) == []


def test_longer_rows_than_the_source_takes_are_found() -> None:
    text = TensorSpec(name="ids", datatype="INT64", shape=(-1, -1))

    def limited(arrays: Arrays) -> Arrays:
        if arrays["ids"].shape[1] > 16:
            raise RuntimeError("16 positions")
        return {"y": arrays["ids"].sum(axis=1) + 0.5}

    def unlimited(arrays: Arrays) -> Arrays:
        return {"y": arrays["ids"].sum(axis=1) + 0.5}

    rows: Arrays = {"ids": np.ones((2, 5), np.int64)}
    edges = Edges(limited, (text,), OUTPUTS, rows, [Bound(input="ids", min=0, max=1)], [16])
    assert [(finding.column, finding.value) for finding in edges.compare(unlimited)] == [(None, 17)]
    assert edges.compare(unlimited)[0].text.startswith("the source refuses input 'ids' of length 17 (RuntimeError")
    bounds = [Bound(input="ids", min=0, max=1, max_length=16)]
    assert Edges(limited, (text,), OUTPUTS, rows, bounds, [16]).compare(unlimited) == []


def test_a_model_that_allocates_by_a_value_raises_and_is_not_killed() -> None:
    def counts(arrays: Arrays) -> Arrays:
        return {"y": np.array([np.zeros(max(0, int(shop))).size * 1.0 for shop in arrays["shop"]])}

    def clipped(arrays: Arrays) -> Arrays:
        return {"y": np.array([max(0.0, min(float(shop), 1e7)) for shop in arrays["shop"]])}

    findings = found(counts, clipped, sizes=())
    assert {finding.value for finding in findings if finding.kind == "answers"} >= {2**31, 2**53 + 1}


def test_a_slow_model_leaves_values_untried_and_the_findings_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def answers_all(arrays: Arrays) -> Arrays:
        return {"y": arrays["shop"] + 0.5}

    whole = len(found(table, answers_all))
    source, of_source_made = slow(monkeypatch, table, 3)
    variant, of_variant_made = slow(monkeypatch, answers_all, 3)
    *tried, untried = found(source, variant)
    assert (len(of_source_made), len(of_variant_made) <= 3) == (3, True)
    assert (untried.kind, untried.input, untried.column, {each.kind for each in tried} <= {"answers"}) == (
        "untried",
        "shop",
        0,
        True,
    )
    assert len(tried) + untried.more >= whole
    assert untried.text == (
        f"input 'shop' column 0 = {untried.value} and {untried.more} other values not tried: the trials exceeded 60 s"
    )
    assert refusal([EdgeFinding(kind="untried", text=untried.text)]) == ""


def test_what_native_code_logs_of_a_trial_is_dropped(capfd: pytest.CaptureFixture[str]) -> None:
    def logs(arrays: Arrays) -> Arrays:
        os.write(2, b"[E:onnxruntime] out of data bounds")
        return table(arrays)

    assert found(logs, table) == []
    os.write(2, b"after")
    assert capfd.readouterr().err == "after"
