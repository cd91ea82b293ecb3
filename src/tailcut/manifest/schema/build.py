"""The part of the manifest that says how variants are made and judged. Public names are those of ``schema``."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import Section


class HoldoutSettings(Section, frozen=True, kw_only=True):
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
            description="column (in a Holdout object: slice) that groups dependent rows, such as rows of one patient "
            "or session",
            examples=["patient"],
        ),
    ] = ""
    output: Annotated[
        str,
        Meta(
            description="output to judge by the labels; empty: the first",
            examples=["probability"],
        ),
    ] = ""
    classes: Annotated[
        tuple[int | float | str | bool, ...],
        Meta(
            description="labels in the order of the judged output's columns; with two labels, a single score stands "
            "for the second; empty: the estimator's classes_, else the column numbers",
            examples=[("no", "yes")],
        ),
    ] = ()
    positive: Annotated[
        int | float | str | bool | None,
        Meta(
            description="label that a single score stands for; all other labels are the negative class",
            examples=["fraud"],
        ),
    ] = None
    request_log: Annotated[
        str,
        Meta(
            description="request log (folder or file, relative to the manifest) on whose rows each variant is compared "
            "with the source model, beside the holdout; it needs no labels. A variant that is shown to disagree on "
            "more than quality.budget.agreement allows is refused",
            examples=["requests"],
        ),
    ] = ""
    selection: Annotated[
        Share,
        Meta(description="share of rows for calibration and selection; the verdict uses the other rows"),
    ] = Share(0.3)
    keep: Annotated[
        int,
        Meta(
            description="number of input rows that each version stores for warm-up and checks. Set 0 if rows are "
            "personal data: then an invented row warms up the model, unless the model refuses it, and drift of text "
            "inputs is not watched",
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
            description="maximum loss per metric (auc, accuracy: absolute drop; log_loss, mae: absolute rise)",
            examples=[{"auc": 0.004}],
        ),
    ] = field(default_factory=dict)
    metrics: Annotated[
        dict[str, str],
        Meta(
            description="custom metrics by name: 'package.module:callable', (labels, scores) -> one value per row",
            examples=[{"profit": "my_model:profit"}],
        ),
    ] = field(default_factory=dict)
    confidence: Annotated[float, Meta(description="one-sided confidence of a quality verdict", gt=0.5, lt=1)] = 0.95
    slice_budget: Annotated[
        float, Meta(description="maximum loss in a single slice, as a multiple of the budget", ge=1)
    ] = 2.5
    other_agreement: Annotated[
        Share,
        Meta(
            description="minimum share of rows on which an output that is not judged gives the source model's class, "
            "if it is a classification"
        ),
    ] = Share(0.99)
    other_error: Annotated[
        float,
        Meta(
            description="maximum relative error of a numeric output that is not judged: mean absolute difference, "
            "divided by the mean absolute value of the source model's output",
            ge=0,
        ),
    ] = 0.01


class Build(Section, frozen=True, kw_only=True):
    """What ``tailcut build`` makes, and how much each step may use."""

    quantize: Annotated[bool, Meta(description="try the INT8 recipes")] = False
    recipes: Annotated[
        tuple[str, ...],
        Meta(description="recipes to try; empty: all that apply on this machine", examples=[("onnx", "openvino")]),
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
            description="maximum number of load rounds for the verdict on speed, with each variant in turn. Rounds end "
            "earlier when all verdicts are reached; at least 6 are needed for a verdict. 0: no load, speed is not "
            "judged, and the source variant is promoted",
            ge=0,
            le=200,
        ),
    ] = 48
    round_s: Annotated[Duration, Meta(description="duration of the load on each variant per round")] = field(
        default=Duration(2.0), name="round"
    )
    load_limit_s: Annotated[
        Duration,
        Meta(description="maximum total time of the load rounds; a verdict still open then counts as not proven"),
    ] = field(default=Duration(300.0), name="load_limit")
    step_timeout_s: Annotated[Duration, Meta(description="maximum time of one step")] = field(
        default=Duration(900.0), name="step_timeout"
    )
    step_memory_bytes: Annotated[
        Size, Meta(description="maximum memory that a step's process takes beyond the libraries that it starts with")
    ] = field(default=Size(12 * 1024 * 1024 * 1024), name="step_memory")


class CostSettings(Section, frozen=True, kw_only=True):
    """What the hardware costs, for the cost of a million requests."""

    core_hour: Annotated[float, Meta(description="price of one CPU core for an hour", ge=0)] = 0.0
    gpu_hour: Annotated[float, Meta(description="price of one GPU for an hour", ge=0)] = 0.0
    currency: Annotated[str, Meta(description="name of the currency", examples=["USD"])] = "USD"
