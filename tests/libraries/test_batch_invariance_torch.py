"""torch modules whose rows influence each other are found by the build, and others are not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from tests.models import coupled_torch  # noqa: E402

from tailcut.builder import Holdout  # noqa: E402
from tailcut.builder.quality import batch_invariance  # noqa: E402
from tailcut.manifest import Model, TensorSpec  # noqa: E402
from tailcut.models.runtimes import open_runtime  # noqa: E402
from tailcut.models.runtimes.base import OpenSpec  # noqa: E402
from tailcut.registry.evidence import RowCoupling  # noqa: E402

pytestmark = pytest.mark.torch

X = (TensorSpec(name="x", shape=(-1, 8)),)
TOKENS = tuple(TensorSpec(name=name, datatype="INT64", shape=(-1, -1)) for name in ("ids", "mask"))
FLOATS = Holdout(inputs={"x": np.random.default_rng(0).normal(size=(120, 8)).astype(np.float32)})


def texts() -> Holdout:
    draw = np.random.default_rng(0)
    mask = (np.arange(64) < draw.integers(1, 65, size=120)[:, None]).astype(np.int64)
    return Holdout(inputs={"ids": draw.integers(1, 50, size=mask.shape) * mask, "mask": mask}, padding="mask")


def measured(
    folder: Path, make: Callable[[], Any], inputs: tuple[TensorSpec, ...], holdout: Holdout, outputs: int = 1
) -> RowCoupling:
    torch.save(make().state_dict(), folder / "source.pt")
    model = Model(
        source="m:m", inputs=inputs, outputs=tuple(TensorSpec(name=f"y{number}") for number in range(outputs))
    )
    opening = OpenSpec("torch", "torch", folder / "source.pt", model.inputs, model.outputs, {})
    return batch_invariance.measure(open_runtime(opening, threads=1, source=make), holdout, model, [opening.artifact])


@pytest.mark.parametrize(
    ("make", "alone"),
    [
        (coupled_torch.Plain, False),
        (coupled_torch.LessMean, True),
        (coupled_torch.SoftmaxOverRows, True),
        (coupled_torch.StillTraining, True),
        (coupled_torch.TimeForBatch, True),
    ],
)
def test_modules_that_look_at_the_whole_batch(tmp_path: Path, make: Callable[[], Any], alone: bool) -> None:
    found = measured(tmp_path, make, X, FLOATS)
    assert found.rows_alone is alone
    assert found.operators == []


def test_a_second_output_that_is_coupled(tmp_path: Path) -> None:
    found = measured(tmp_path, coupled_torch.SecondHead, X, FLOATS, outputs=2)
    assert found.rows_alone
    first, second = found.outputs.values()
    assert max(first.max_abs.values()) <= first.limit
    assert max(second.max_abs.values()) > second.limit


@pytest.mark.parametrize("masked", [True, False])
def test_attention_without_a_mask_sees_the_padding_of_longer_neighbours(tmp_path: Path, masked: bool) -> None:
    found = measured(tmp_path, lambda: coupled_torch.Encoder(masked), TOKENS, texts())
    assert found.rows_alone is not masked
