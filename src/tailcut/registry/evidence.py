"""What a build measures, of a version as a whole and of each of its variants: written once, read by attribute.

Of a variant that failed early, and of a version that was not built by ``tailcut build``, most of it is empty.
"""

from __future__ import annotations

from math import log
from statistics import median
from typing import Any, Literal, TypeAlias

import msgspec

from tailcut.code.digest import Code
from tailcut.common.bounds import Bound
from tailcut.common.fingerprint import Machine
from tailcut.common.scalars import Scalar
from tailcut.gate.verdict import Agreement, QualityVerdict

_P95_SIGMAS = 1.645
"""A normal distribution's 95th percentile, in standard deviations from its middle."""

_MOST_SPREAD = 1.0
"""Beyond it a slow moment of the machine was timed, or lengths, and no noise."""

Settings: TypeAlias = dict[str, Any]
"""Of a runtime: each has its own, those of other packages too."""

SpeedOutcome = Literal["faster", "cheaper", "no", "open"]
"""Of a variant beside its reference: "cheaper" includes that it is not slower by more than a margin."""

PASSED: tuple[SpeedOutcome, ...] = ("faster", "cheaper")

Three = tuple[float, float, float]
"""A middle with the ends of its 95 % interval."""


class _Part(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A part of the evidence: what has its default value is not written, and what is not known is refused."""


# -- How a variant was made --------------------------------------------------------------------------------------------


class LabelCoding(_Part, frozen=True, kw_only=True, rename={"origin": "from"}):
    """Which label of the holdout stands for which class.

    Attributes:
        origin: who says so.
        classes: labels in the order of the judged output's columns; of two, a single score is the second's.
        positive: where there are no classes, the label that a single score stands for.
        rows: number of rows of each label, as text.
    """

    origin: str
    classes: list[Scalar] = []
    positive: Scalar | None = None
    rows: dict[str, int] = {}


class RecipeEvidence(_Part, frozen=True, kw_only=True):
    """How the source variant, or a recipe's variant, was made.

    Attributes:
        exact: whether all its outputs were compared with what it was exported from, and are the same but for rounding.
        classes: of an estimator, in the order of its columns.
        labels: of the source: how labels of the holdout are read.
        warnings: of the source model, for people.
        not_stored: why the source model itself is not in the registry; empty where it is.
        details: what else the recipe tells people. Each recipe has its own, other packages' too, and no code reads it.
    """

    exact: bool = False
    classes: list[Scalar] | None = None
    labels: LabelCoding | None = None
    warnings: list[str] = []
    not_stored: str = ""
    details: dict[str, Any] = {}


# -- What it answers ---------------------------------------------------------------------------------------------------


class OutputChange(_Part, frozen=True, kw_only=True):
    """By how much other rows in its batch change a row's output, by kind of company, and how much they may."""

    max_abs: dict[str, float]
    limit: float


class RowCoupling(_Part, frozen=True, kw_only=True):
    """Whether rows of a batch change each other's answers.

    Attributes:
        rows: that were compared, alone and in company.
        outputs: by name.
        operators: of the model's files that take one scale for all rows of a batch.
    """

    rows: int
    outputs: dict[str, OutputChange]
    operators: list[str] = []

    @property
    def rows_alone(self) -> bool:
        """Whether each row must run alone."""
        changed = any(change > each.limit for each in self.outputs.values() for change in each.max_abs.values())
        return changed or bool(self.operators)


class OutputComparison(_Part, frozen=True, kw_only=True):
    """One output of a variant beside the source model's; None: it has no such figure.

    Attributes:
        rows: that were compared.
        equal: up to rounding.
        kind: what it holds: classes, numbers, or what may stand for both.
        shapes: the source's and the variant's, where they differ.
        max_abs, mean_abs: difference of finite values.
        relative_error: mean absolute difference by mean absolute value of the source's.
        not_finite: values that are NaN or infinite in one of both only.
        agree: share of rows of the same class.
        flipped: rows of another class.
    """

    rows: int
    equal: bool
    kind: Literal["classes", "numbers", "both"]
    shapes: tuple[list[int], list[int]] | None = None
    max_abs: float | None = None
    mean_abs: float | None = None
    relative_error: float | None = None
    not_finite: int = 0
    agree: float | None = None
    flipped: int | None = None


class EdgeFinding(_Part, frozen=True, kw_only=True):
    """A value at the edge of an input at which a variant does something else than the source, as a sentence.

    Attributes:
        kind: answers: the source raises and the variant answers; differs: both answer, another number; raises: the
            source answers, the variant raises or gives NaN or infinity; untried: there was no time for this value.
    """

    kind: Literal["answers", "differs", "raises", "untried"]
    text: str


class LoggedAgreement(_Part, frozen=True, kw_only=True):
    """Agreement with the source model on logged rows.

    Attributes:
        agreement: None where it was not compared, and ``failed`` says why.
        distinct: rows that differ from each other.
        disagree_lower: one-sided lower limit of the share of other decisions; None where outputs are no decisions.
        limit: the budget's, of that share.
        warning: for people.
    """

    agreement: Agreement | None = None
    distinct: int = 0
    disagree_lower: float | None = None
    limit: float | None = None
    warning: str = ""
    failed: str = ""


class Scores(_Part, frozen=True, kw_only=True):
    """What the answers of a variant on the holdout show.

    Attributes:
        metrics: of the judged output.
        constant: of the source: metrics of the best constant answers.
        warnings: of the source, for people.
        agreement: how close the judged output is to the source's.
        outputs: every output beside the source's.
        neighbour: what other rows in a batch change.
        rows_alone: whether each row must run alone for that reason.
        edges: values at which it does something else than the source.
        logged: agreement on logged rows.
    """

    metrics: dict[str, float] = {}
    constant: dict[str, float] = {}
    warnings: list[str] = []
    agreement: dict[str, float] = {}
    outputs: dict[str, OutputComparison] = {}
    neighbour: RowCoupling | None = None
    rows_alone: bool = False
    edges: list[EdgeFinding] = []
    logged: LoggedAgreement | None = None


# -- How fast it is ----------------------------------------------------------------------------------------------------


class Setting(_Part, frozen=True, kw_only=True):
    """One way to run a variant.

    Attributes:
        threads: of the runtime inside one executor.
        executors: each of which runs one batch at a time.
        more: settings of the runtime.
    """

    threads: int
    executors: int = 1
    more: Settings = {}

    @property
    def plain(self) -> Settings:
        """As they stand in a variant's settings."""
        return {"threads": self.threads, "executors": self.executors, **self.more}

    @property
    def cores(self) -> int:
        """That it keeps busy at most."""
        return self.threads * self.executors


class Timing(_Part, frozen=True, kw_only=True):
    """What was measured of one setting.

    Attributes:
        ms: of a lone row, nothing else running, with a pause before each as between requests.
        cpu_ms: processor time of the same, all threads, spinning included.
        rows_per_s: with every executor busy with batches.
    """

    setting: Setting
    ms: float
    cpu_ms: float
    rows_per_s: float


class BatchCost(_Part, frozen=True, kw_only=True):
    """What a warmed-up batch of so many rows takes, every executor busy with one."""

    rows: int
    mean_ms: float
    p50_ms: float
    p95_ms: float
    calls: int


class Tuning(_Part, frozen=True, kw_only=True):
    """How the settings of a variant were chosen.

    Attributes:
        settings: what was chosen, as it stands in the variant's settings; empty where there was nothing to choose.
        table: a timing per threads and executors.
        variations: of the runtime's own settings, the plain ones first.
        rate: requests/s that the choice is for.
        batch_rows: of the batches in both tables.
        costs: what batches of each size take.
        costs_failed: why there are none.
        why: why nothing was chosen.
        failed: why nothing was measured.
    """

    settings: Settings = {}
    table: list[Timing] = []
    variations: list[Timing] = []
    rate: float = 0.0
    batch_rows: int = 0
    costs: list[BatchCost] = []
    costs_failed: str = ""
    why: str = ""
    failed: str = ""

    @property
    def points(self) -> dict[int, float]:
        """Mean duration of a batch, rows -> nanoseconds; empty where none was timed.

        Where the sizes could not be timed, what chose the settings is known of a lone row and of one size.
        """
        chosen = self.settings.get("threads"), self.settings.get("executors", 1)
        for each in self.table if not self.costs else ():
            if (each.setting.threads, each.setting.executors) == chosen:
                batch_ns = self.batch_rows * each.setting.executors / each.rows_per_s * 1e9
                return {1: each.ms * 1e6, self.batch_rows: max(batch_ns, each.ms * 1e6)}
        return {cost.rows: cost.mean_ms * 1e6 for cost in self.costs}

    def median_ns(self, rows: int) -> float | None:
        """Return what half of the batches of so many rows took at most; None where the build timed none."""
        return next((cost.p50_ms * 1e6 for cost in self.costs if cost.rows == rows), None)

    @property
    def spread(self) -> float | None:
        """Standard deviation of the logarithm of what batches of one size take; None where it is not known.

        It is what a lognormal distribution has with the p95 and the median that were measured, the median over the
        sizes.
        """
        found = [log(max(each.p95_ms / each.p50_ms, 1.0)) / _P95_SIGMAS for each in self.costs if each.p50_ms > 0.0]
        return min(median(found), _MOST_SPREAD) if found else None


class Round(_Part, frozen=True, kw_only=True):
    """One variant in one round of load.

    Attributes:
        number: of the round; variants with the same number were measured one after the other.
        latency_ms: at the SLO's percentile; a request without an answer counts as long as its deadline.
        p50_ms: median of the same.
        errors: share of requests without an answer.
        cpu_ms: of the server, per request.
        gpu_ms: that the variant's executors held the GPU, per request; None where it runs on none.
        others: cores that other processes and the hypervisor took meanwhile.
        excess: largest ratio to its limit of the SLO's other percentiles; 0 where it names no other.
    """

    number: int
    latency_ms: float
    p50_ms: float
    errors: float
    cpu_ms: float
    gpu_ms: float | None = None
    others: float = 0.0
    excess: float = 0.0


class LoadTrial(_Part, frozen=True, kw_only=True):
    """One variant under load; ``failed`` says why it has no verdict."""

    rounds: list[Round] = []
    failed: str = ""


class SpeedVerdict(_Part, frozen=True, kw_only=True):
    """One variant against the one that it was made from, under load.

    Attributes:
        reference: name of that variant.
        percentile: at which they were compared, such as "p95".
        latency_ms: middle over the rounds.
        ratio: of the latencies, variant over reference, middle of the rounds' ratios.
        cpu_ratio: the same of CPU time per request; None where it is no evidence, because a GPU does the work.
        outcome: "faster": the ratio is below 1; "cheaper": the CPU time is clearly below the reference's, and the ratio
            within a margin; "no": neither can be; "open": the rounds showed none of these.
        meets_slo: whether the upper end of ``latency_ms`` and the share of errors are within the SLO.
        errors: share of requests without an answer.
        fails: whether that is more than the SLO allows, and more than the reference's.
        rounds: that the comparison rests on.
        left_out: rounds that do not count, because other processes took more of the processor than usual.
        stopped: why it was measured no longer, where the outcome is open.
    """

    reference: str
    percentile: str
    latency_ms: Three
    ratio: Three
    cpu_ratio: Three | None = None
    outcome: SpeedOutcome
    meets_slo: bool
    errors: float
    fails: bool = False
    rounds: int = 0
    left_out: int = 0
    stopped: str = ""

    @property
    def passed(self) -> bool:
        """Whether it may be promoted in place of its reference."""
        return self.outcome in PASSED and not self.fails


class Cost(_Part, frozen=True, kw_only=True):
    """Of a million requests at the SLO's rate: CPU seconds (mean, lowest and highest round), GPU seconds and money.

    ``gpu_s`` is None where the variant runs on no GPU.
    """

    cpu_s: Three
    gpu_s: float | None = None
    money: float = 0.0
    currency: str = ""


class VariantEvidence(Scores, frozen=True, kw_only=True):
    """Everything that a build measured of one variant.

    Attributes:
        recipe: how it was made.
        tuning: how its settings were chosen; None where it was not built.
        quality: the gate's verdict; None of the source, and of what was not judged.
        quality_refusal: why its answers refuse it; empty where they do not, whatever its speed does.
        bare_ms: of the bare runtime: batch rows -> median milliseconds of each round.
        bare_ratio: of these to the reference's, by batch rows.
        load: its rounds of load; None where there were none.
        speed: the verdict on them.
        cost: of a million requests.
    """

    recipe: RecipeEvidence = RecipeEvidence()
    tuning: Tuning | None = None
    quality: QualityVerdict | None = None
    quality_refusal: str = ""
    bare_ms: dict[int, list[float]] = {}
    bare_ratio: dict[int, float] = {}
    load: LoadTrial | None = None
    speed: SpeedVerdict | None = None
    cost: Cost | None = None


# -- Of the build as a whole -------------------------------------------------------------------------------------------


class Split(_Part, frozen=True, kw_only=True):
    """A part of the holdout."""

    rows: int
    sha256: str


class LoggedRows(_Part, frozen=True, kw_only=True):
    """Rows of logged requests, without labels; ``notes`` say what was left out."""

    rows: int
    distinct: int
    sha256: str
    notes: list[str]


class HoldoutEvidence(_Part, frozen=True, kw_only=True):
    """The rows that a build judged on.

    Attributes:
        slices: names of the columns of slices.
        label_mean: None where labels are no numbers.
        logged: None where no logged requests were compared.
    """

    rows: int
    sha256: str
    selection: Split
    confirmation: Split
    slices: list[str] = []
    labelled: bool = False
    label_mean: float | None = None
    logged: LoggedRows | None = None


class Race(_Part, frozen=True, kw_only=True):
    """How the bare runtimes were timed, interleaved; ``threads`` by variant, ``failed`` says why they were not."""

    threads: dict[str, int] = {}
    rounds: int = 0
    seed: int = 0
    failed: str = ""


class LoadSummary(_Part, frozen=True, kw_only=True):
    """The rounds of load: how many, how long they took, and the cores that other processes had in the median."""

    rounds: int
    took_s: float
    others: float


class Choice(_Part, frozen=True, kw_only=True):
    """What is promoted and why."""

    variant: str
    why: str
    meets_slo: bool


class VersionEvidence(_Part, frozen=True, kw_only=True):
    """Everything that a build measured of all its variants together.

    Attributes:
        machine: that built and judged them.
        versions: of Python, and of the packages that made or ran a variant.
        holdout: the rows that it judged on.
        bounds: limits of the inputs that the source model proves: serving holds the requests to them.
        table_sizes: of tables in the source model; another machine's build tries values around them.
        race: how the bare runtimes were timed.
        load: the rounds of load; None where speed was not judged.
        choice: what is promoted.
        rate: requests/s that the SLO names.
        durations_s: of the build's steps.
        code_left_out: what of the user's code is not in the stored copy.
        feature_models: version of each model that computes features, as it was then.
        code: the user's code that it was built with; None where it was not listed.
    """

    machine: Machine | None = None
    versions: dict[str, str] = {}
    holdout: HoldoutEvidence | None = None
    bounds: tuple[Bound, ...] = ()
    table_sizes: list[int] = []
    race: Race = Race()
    load: LoadSummary | None = None
    choice: Choice | None = None
    rate: float | None = None
    durations_s: dict[str, float] = {}
    code_left_out: str = ""
    feature_models: dict[str, str] = {}
    code: Code | None = None
