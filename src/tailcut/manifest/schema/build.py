"""The part of the manifest that says how variants are made and judged. Public names are those of ``schema``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import Section


class Holdout(Section, frozen=True, kw_only=True):
    """Labelled rows that no training step saw; the judge of every variant."""

    source: Annotated[
        str,
        Meta(
            description="'package.module:callable' -> tailcut.build.Holdout, or a path to a .parquet, .csv or .npz",
            examples=["my_model:holdout"],
        ),
    ] = ""
    labels: Annotated[
        str, Meta(description="column (or .npz array) of a holdout file that holds the labels", examples=["label"])
    ] = ""
    slices: Annotated[
        tuple[str, ...],
        Meta(description="columns of a holdout file whose values define slices", examples=[("country",)]),
    ] = ()
    group: Annotated[
        str,
        Meta(
            description="column (of a Holdout: slice) whose rows hang together, such as a patient's or a session's",
            examples=["patient"],
        ),
    ] = ""
    output: Annotated[
        str,
        Meta(
            description="output that the labels belong to and that is judged; empty: the first",
            examples=["probability"],
        ),
    ] = ""
    classes: Annotated[
        tuple[int | float | str | bool, ...],
        Meta(
            description="labels in the order of the judged output's columns (of two, a single score is the second's); "
            "empty: the estimator's classes_, else the columns' numbers",
            examples=[("no", "yes")],
        ),
    ] = ()
    positive: Annotated[
        int | float | str | bool | None,
        Meta(
            description="label that a single score stands for; every other label is the negative class",
            examples=["fraud"],
        ),
    ] = None
    selection: Annotated[
        Share,
        Meta(description="share of rows that calibrate and choose; the verdict comes from the others"),
    ] = Share(0.3)
    keep: Annotated[
        int,
        Meta(
            description="rows of inputs that each version keeps, to warm up and to check with; 0 where rows are "
            "personal: then an invented row warms up, where the model takes it",
            ge=0,
            le=64,
        ),
    ] = 8

    @property
    def is_file(self) -> bool:
        """Whether ``source`` is a path of a file with rows (else it is a callable)."""
        return self.source.lower().endswith((".parquet", ".csv", ".npz"))


class Quality(Section, frozen=True, kw_only=True):
    """How much worse than the source model a variant may be."""

    budget: Annotated[
        dict[str, float],
        Meta(
            description="largest drop allowed per metric (auc, accuracy: absolute fall; log_loss, mae: rise)",
            examples=[{"auc": 0.004}],
        ),
    ] = field(default_factory=dict)
    metrics: Annotated[
        dict[str, str],
        Meta(
            description="own metrics by name: 'package.module:callable', (labels, scores) -> one value per row",
            examples=[{"profit": "my_model:profit"}],
        ),
    ] = field(default_factory=dict)
    confidence: Annotated[float, Meta(description="one-sided confidence of a quality verdict", gt=0.5, lt=1)] = 0.95
    slice_budget: Annotated[float, Meta(description="how many times the budget a single slice may drop", ge=1)] = 2.5
    other_agreement: Annotated[
        Share,
        Meta(
            description="share of rows on which an output that is not judged must name the source's class, where it "
            "stands for classes"
        ),
    ] = Share(0.99)
    other_error: Annotated[
        float,
        Meta(
            description="largest relative error of an output that is not judged, where it gives numbers: mean absolute "
            "difference by mean absolute value of the source's",
            ge=0,
        ),
    ] = 0.01


class Build(Section, frozen=True, kw_only=True):
    """What ``tailcut build`` makes, and how much each step may use."""

    quantize: Annotated[bool, Meta(description="whether the INT8 recipes are tried")] = False
    recipes: Annotated[
        tuple[str, ...],
        Meta(description="recipes to try; empty: every one that applies here", examples=[("onnx", "openvino")]),
    ] = ()
    train: Annotated[
        str,
        Meta(
            description="'package.module:callable', (module) -> None, fine-tunes a torch module in place (int8-qat)",
            examples=["my_model:fine_tune"],
        ),
    ] = ""
    rounds: Annotated[
        int,
        Meta(
            description="most rounds of load, each variant in turn, before a verdict on speed is given up; fewer where "
            "all are decided, but 6 at least: from fewer nothing can be told",
            ge=1,
            le=200,
        ),
    ] = 48
    round_s: Annotated[Duration, Meta(description="how long each round sends load to a variant")] = field(
        default=Duration(2.0), name="round"
    )
    load_limit_s: Annotated[
        Duration, Meta(description="how long rounds of load may take in all; what is open then is not proven")
    ] = field(default=Duration(300.0), name="load_limit")
    step_timeout_s: Annotated[Duration, Meta(description="longest that one step may take")] = field(
        default=Duration(900.0), name="step_timeout"
    )
    step_memory_bytes: Annotated[Size, Meta(description="most memory of one step's process")] = field(
        default=Size(12 * 1024 * 1024 * 1024), name="step_memory"
    )


class Cost(Section, frozen=True, kw_only=True):
    """What the hardware costs, for the cost of a million requests."""

    core_hour: Annotated[float, Meta(description="price of one CPU core for an hour", ge=0)] = 0.0
    gpu_hour: Annotated[float, Meta(description="price of one GPU for an hour", ge=0)] = 0.0
    currency: Annotated[str, Meta(description="name of the currency", examples=["USD"])] = "USD"
