"""tailcut.toml -> one frozen, fully typed ``Deployment``: the only definition of configuration.

Precedence: flag > environment > file > default. Every leaf below is at once a key of the file, an environment
variable (``TAILCUT_`` + the upper-case path with ``__`` between parts, e.g. ``TAILCUT_SERVER__PORT``), a
``--set path=value`` flag, a line of ``tailcut init``'s file, and a row of docs/reference/manifest.md.
In TOML durations are strings with a unit ("15ms", "30s", "5m"), sizes are strings ("64MiB") or byte counts,
shares are strings with a percent sign ("0.1%") or fractions. In Python the attribute's name carries the unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, field

from tailcut.common.slo import LatencyObjective, Objectives
from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.schema.build import Build, CostSettings, HoldoutSettings, Quality
from tailcut.manifest.schema.features import FeatureGroup, Features
from tailcut.manifest.schema.model import Datatype, Field, Model, TensorSpec
from tailcut.manifest.schema.observe import Alerts, HistorySettings, Observe
from tailcut.manifest.schema.server import ServerSettings
from tailcut.manifest.section import NAME_PATTERN, Section

__all__ = [
    "Alerts",
    "Batching",
    "Build",
    "Cache",
    "CostSettings",
    "Datatype",
    "Deployment",
    "Drift",
    "Duration",
    "FeatureGroup",
    "Features",
    "Field",
    "HistorySettings",
    "HoldoutSettings",
    "Ladder",
    "Model",
    "Observe",
    "PoolSettings",
    "PredictionCache",
    "Quality",
    "RegistrySettings",
    "RequestLogSettings",
    "Rung",
    "Serve",
    "ServerSettings",
    "Share",
    "Size",
    "Slo",
    "TensorCache",
    "TensorSpec",
]


class RequestLogSettings(Section, frozen=True, kw_only=True):
    """A sample of requests with inputs, answers and timings, as files that load, profile, simulate and build read."""

    path: Annotated[
        str,
        Meta(
            description="folder of the log's files, relative to the manifest; empty: requests are not logged",
            examples=["requests"],
        ),
    ] = ""
    share: Annotated[
        Share, Meta(description="share of requests that are logged, drawn at their arrival, before any is shed")
    ] = Share(0.01)
    format: Annotated[
        Literal["jsonl", "jsonl.gz", "parquet"],
        Meta(
            description="jsonl: one JSON object per line; jsonl.gz: the same, compressed; parquet: a file is converted "
            "when it is complete (needs pip install 'tailcut[parquet]')"
        ),
    ] = "jsonl"
    rotate_size_bytes: Annotated[Size, Meta(description="a file of this size is complete")] = field(
        default=Size(64 * 1024 * 1024), name="rotate_size"
    )
    rotate_age_s: Annotated[Duration, Meta(description="a file of this age is complete")] = field(
        default=Duration(3600.0), name="rotate_age"
    )
    keep_bytes: Annotated[
        Size, Meta(description="size of all files of the model; beyond it the oldest are deleted")
    ] = field(default=Size(1024 * 1024 * 1024), name="keep")
    hash: Annotated[
        tuple[str, ...],
        Meta(
            description="fields whose values are replaced by a keyed hash (HMAC-SHA-256): fields of rows and entities, "
            "inputs and their columns, outputs, 'tenant'; nested ones as 'user.email'. Equal values have equal hashes",
            examples=[("user.email",)],
        ),
    ] = ()
    drop: Annotated[
        tuple[str, ...],
        Meta(
            description="fields that are not logged, named as in hash; 'inputs', 'rows', 'entities', 'outputs' and "
            "'predictions' stand for all of their fields",
            examples=[("free_text",)],
        ),
    ] = ()
    hash_key: Annotated[
        str,
        Meta(
            description="key of the hashes: a file, relative to the manifest, or 'env:NAME' for an environment "
            "variable; at least 16 bytes",
            examples=["env:REQUEST_LOG_KEY"],
        ),
    ] = ""


class Drift(Section, frozen=True, kw_only=True):
    """Drift of the model's inputs and outputs against the holdout that it was judged on."""

    mode: Annotated[
        Literal["auto", "off"],
        Meta(
            description="auto: `tailcut build` keeps sketches of the holdout, and the server watches versions "
            "that have them; off: neither"
        ),
    ] = "auto"
    false_alarms_per_month: Annotated[
        float,
        Meta(
            description="false alarms to accept in 30 days, of all columns of this model together; less needs more "
            "evidence",
            gt=0,
            le=1000,
        ),
    ] = 1.0
    min_effect: Annotated[
        Share,
        Meta(description="a change that touches at most this share of the rows is no drift (total variation distance)"),
    ] = Share(0.03)
    psi: Annotated[
        float,
        Meta(
            description="population stability index that a column must exceed, over the whole window, for an alarm",
            gt=0,
            le=10,
        ),
    ] = 0.1
    window_s: Annotated[
        Duration,
        Meta(
            description="time that the current distribution is of, and in which an entity counts once; at least the "
            "period of your traffic's rhythm, such as '1d' or '7d', or every morning is a change"
        ),
    ] = field(default=Duration(86_400.0), name="window")
    ignore: Annotated[
        tuple[str, ...],
        Meta(
            description="columns that are not watched: names in model.inputs[].columns, or 'features[3]' for the "
            "fourth column of the tensor 'features'",
            examples=[("hour",)],
        ),
    ] = ()


class PredictionCache(Section, frozen=True, kw_only=True):
    """One of the two prediction caches."""

    enabled: Annotated[bool, Meta(description="use this cache")] = False
    auto: Annotated[
        bool,
        Meta(
            description="measure saved and added time: switch the cache off while it does not pay, and on when repeats "
            "return; false: always on, with advice in the log"
        ),
    ] = True
    ttl_s: Annotated[Duration, Meta(description="maximum age of an entry")] = field(default=Duration(5.0), name="ttl")
    ttl_jitter: Annotated[
        Share,
        Meta(description="random shortening of the TTL, by up to this share, so that entries do not expire together"),
    ] = Share(0.1)
    stale_for_s: Annotated[
        Duration,
        Meta(
            description="time after expiry during which serve.fallback may use an answer, marked x-tailcut-cache: "
            "stale; auto then has no effect"
        ),
    ] = field(default=Duration(0.0), name="stale_for")
    max_bytes: Annotated[Size, Meta(description="maximum memory for entries")] = Size(32 * 1024 * 1024)
    shared: Annotated[
        bool, Meta(description="share answers between servers through features.redis, behind this server's memory")
    ] = False


class TensorCache(PredictionCache, frozen=True, kw_only=True):
    """The cache keyed by the model's inputs."""

    normalise: Annotated[
        Literal["exact", "zeros"],
        Meta(
            description="exact: inputs with different bits have different keys; zeros: -0.0 equals 0.0, and all NaN "
            "are equal"
        ),
    ] = "exact"
    round_digits: Annotated[
        dict[str, int],
        Meta(
            description="float input -> decimals kept in the cache key; requests with equal rounded inputs get the "
            "answer of the first, so answers may differ",
            examples=[{"features": 4}],
        ),
    ] = field(default_factory=dict)


class Cache(Section, frozen=True, kw_only=True):
    """Prediction caches: by entity (before features) and by the model's inputs (after preprocessing)."""

    entity: Annotated[
        PredictionCache, Meta(description="keyed by entity; an entry expires with the features it was computed from")
    ] = PredictionCache()
    tensor: Annotated[TensorCache, Meta(description="keyed by the model's input tensors")] = TensorCache()


class Batching(Section, frozen=True, kw_only=True):
    """How requests are put together. An idle executor waits for company only where that is a gain, or mode is fixed."""

    mode: Annotated[
        Literal["auto", "fixed", "off"],
        Meta(
            description="auto: wait for more rows only where that lowers predicted latency; fixed: wait by "
            "preferred_rows and max_queue_delay, as in Triton's dynamic batcher; off: one request per batch"
        ),
    ] = "auto"
    max_rows: Annotated[int, Meta(description="maximum number of rows in a batch", ge=1)] = 32
    order: Annotated[
        Literal["slo", "deadline"],
        Meta(
            description="slo: requests that can still meet slo.p95 or slo.p99 go first; during sustained overload, "
            "requests that would miss it are shed (429); deadline: the earliest deadline goes first, and only requests "
            "that would miss their deadline are shed"
        ),
    ] = "slo"
    preferred_rows: Annotated[
        tuple[int, ...], Meta(description="with mode fixed: batch sizes that start without waiting", examples=[(8, 16)])
    ] = ()
    max_queue_delay_s: Annotated[
        Duration, Meta(description="with mode fixed: maximum wait for a preferred or full batch", examples=["500us"])
    ] = field(default=Duration(0.0), name="max_queue_delay")
    max_queue_rows: Annotated[
        int, Meta(description="maximum number of queued rows; further requests are shed (429)", ge=1)
    ] = 1024
    max_queue_bytes: Annotated[
        Size, Meta(description="maximum size of queued tensors; further requests are shed (429)")
    ] = Size(256 * 1024 * 1024)
    tenant_share: Annotated[
        Share, Meta(description="maximum share of the queue for one tenant (see server.tenant_header)")
    ] = Share(1.0)
    tenant_rate: Annotated[
        float, Meta(description="maximum rows per second of one tenant; 0: no limit", ge=0, examples=[100.0])
    ] = 0.0


class Slo(Section, frozen=True, kw_only=True):
    """The service level objective: the input from which windows, batch sizes and variants follow."""

    p50_s: Annotated[Duration | None, Meta(description="median latency", examples=["10ms"])] = field(
        default=None, name="p50"
    )
    p95_s: Annotated[Duration | None, Meta(description="95th percentile latency", examples=["25ms"])] = field(
        default=None, name="p95"
    )
    p99_s: Annotated[Duration | None, Meta(description="99th percentile latency", examples=["50ms"])] = field(
        default=None, name="p99"
    )
    errors: Annotated[Share, Meta(description="maximum share of failed and shed requests")] = Share(0.001)
    rate: Annotated[float, Meta(description="requests per second at which the SLO must be met", gt=0)] = 100.0
    timeout_s: Annotated[Duration, Meta(description="default deadline of a request")] = field(
        default=Duration(1.0), name="timeout"
    )

    @property
    def latency(self) -> tuple[LatencyObjective, ...]:
        """The latency limits as objectives."""
        limits = ((0.5, self.p50_s), (0.95, self.p95_s), (0.99, self.p99_s))
        return tuple(
            LatencyObjective(share=share, limit_s=float(limit)) for share, limit in limits if limit is not None
        )

    @property
    def objectives(self) -> Objectives:
        """What a run must meet."""
        return Objectives(latency=self.latency, errors=float(self.errors))


class PoolSettings(Section, frozen=True, kw_only=True):
    """The executors of the served variant."""

    executor: Annotated[
        Literal["auto", "inline", "thread", "process"],
        Meta(
            description="where batches run. inline: on the event loop, only for models under 1 ms; thread: in a "
            "thread; process: in a separate process, for models that crash, leak or hold the GIL; auto: inline if the "
            "build and the start measured that the largest batch stays under 1 ms, else thread"
        ),
    ] = "auto"
    executors: Annotated[
        int,
        Meta(
            description="number of warm executors, each running one batch at a time. With onnxruntime or OpenVINO on "
            "the CPU, at most one batch per core runs at once; 0: the variant's own setting, else 2 if cores and "
            "memory allow",
            ge=0,
        ),
    ] = 0
    max_executors: Annotated[
        int,
        Meta(
            description="maximum number of executors when work waits, as far as they can run at once; 0: no growth",
            ge=0,
        ),
    ] = 0
    recycle_requests: Annotated[
        int, Meta(description="replace an executor after this many requests; 0: never", ge=0)
    ] = 0
    recycle_age_s: Annotated[Duration, Meta(description="replace an executor at this age; '0s': never")] = field(
        default=Duration(0.0), name="recycle_age"
    )
    recycle_growth: Annotated[
        Share,
        Meta(description="replace an executor process when its memory has grown by this share since warm-up; 0: never"),
    ] = Share(0.0)
    threads: Annotated[
        int, Meta(description="runtime threads per executor; 0: the variant's own setting, else 1", ge=0)
    ] = 0
    hooks: Annotated[
        Literal["auto", "thread"],
        Meta(
            description="where preprocess and postprocess run. auto: on the event loop while their calls stay under "
            "1 ms, else in threads; thread: always in threads, for hooks that may wait or that are slow at times"
        ),
    ] = "auto"
    share: Annotated[
        float,
        Meta(
            description="weight of this model where several models of one server wait for the same cores: with shares "
            "of 2 and 1, two thirds of the core time are the first one's while both have requests waiting",
            gt=0,
        ),
    ] = 1.0

    def threads_of(self, settings: Mapping[str, Any]) -> int:
        """Threads for a variant with these runtime settings; at least 1."""
        return self.threads or _setting(settings, "threads")

    def executors_of(self, settings: Mapping[str, Any]) -> int:
        """Executors for a variant with these runtime settings; 0 where neither it nor the manifest says."""
        return self.executors or _setting(settings, "executors", 0)


def _setting(settings: Mapping[str, Any], name: str, default: int = 1) -> int:
    found = settings.get(name)
    return found if isinstance(found, int) and found >= 1 else default


class Serve(Section, frozen=True, kw_only=True):
    """Which variant is served."""

    variant: Annotated[
        str,
        Meta(
            description="variant to serve, by name (see `tailcut build --list`); 'promoted': the one promoted in the "
            "registry"
        ),
    ] = "promoted"
    follow_s: Annotated[
        Duration,
        Meta(description="with variant 'promoted': interval of checks for a new promotion; '0s': no checks"),
    ] = field(default=Duration(1.0), name="follow")
    fallback: Annotated[
        tuple[str, ...],
        Meta(
            description="fallback while the variant loads, the queue is full or no executor is ready: the name of "
            "another passed variant, 'stale' (see cache.*.stale_for), or both, variant first; empty: such requests get "
            "429 or 503",
            examples=[("int8-dynamic",)],
        ),
    ] = ()
    force: Annotated[
        bool,
        Meta(
            description="serve the variants named by variant and fallback even if the gate refused their quality; a "
            "variant refused only for its speed needs no force"
        ),
    ] = False
    strict: Annotated[
        bool,
        Meta(
            description="refuse to load the model if its features come from another model's version than it was judged "
            "with; false: it is served, with a warning"
        ),
    ] = False


class RegistrySettings(Section, frozen=True, kw_only=True):
    """Where artifacts and their evidence are kept."""

    path: Annotated[str, Meta(description="folder, relative to the manifest, or a URL that fsspec can open")] = (
        ".tailcut/registry"
    )
    keep_code: Annotated[
        bool,
        Meta(
            description="store a copy of your code with each version, up to 16 MiB: the Python files below python_path "
            "or loaded from elsewhere, and model.files. Hashes of the code are always stored"
        ),
    ] = True


class Rung(Section, frozen=True, kw_only=True):
    """One rung of the ladder: the rung below it with more settings."""

    name: Annotated[str, Meta(description="name of the rung in the table", examples=["+ feature cache"])]
    set: Annotated[
        tuple[str, ...],
        Meta(description="settings added on this rung, each 'path=value'", examples=[("features.cache=memory",)]),
    ] = ()
    variant: Annotated[
        str,
        Meta(
            description="variant of this rung; if the gate refused it, the rung is refused with the reason",
            examples=["int8-dynamic"],
        ),
    ] = ""


class Ladder(Section, frozen=True, kw_only=True):
    """The before/after ladder: the same traffic against the pilot and then one lever more per rung."""

    pilot: Annotated[
        tuple[str, ...],
        Meta(
            description="command that starts the pilot; {port} and {python} are replaced",
            examples=[("{python}", "-m", "uvicorn", "pilot:app", "--port", "{port}")],
        ),
    ] = ()
    pilot_path: Annotated[str, Meta(description="path of the pilot that receives the traffic (POST)")] = "/predict"
    setup: Annotated[
        str,
        Meta(
            description="'package.module:callable', a context manager that starts databases and yields environment "
            "variables",
            examples=["my_model:databases"],
        ),
    ] = ""
    traffic: Annotated[
        str,
        Meta(
            description="'package.module:callable' (seed) -> iterator of JSON bodies, the same for every rung",
            examples=["my_model:traffic"],
        ),
    ] = ""
    rungs: Annotated[tuple[Rung, ...], Meta(description="the rungs above the pilot, in order")] = ()


class Deployment(Section, frozen=True, kw_only=True):
    """One served model with everything around it."""

    name: Annotated[str, Meta(description="name of the model on the wire", pattern=NAME_PATTERN, examples=["my-model"])]
    python_path: Annotated[
        tuple[str, ...],
        Meta(
            description="folders added to the import path for module:callable, relative to the manifest; every Python "
            "file below them counts as code of the deployment"
        ),
    ] = (".",)
    slo: Annotated[Slo, Meta(description="the service level objective")] = Slo()
    model: Annotated[Model, Meta(description="the model")]
    holdout: Annotated[HoldoutSettings, Meta(description="the holdout")] = HoldoutSettings()
    quality: Annotated[Quality, Meta(description="the quality budget")] = Quality()
    build: Annotated[Build, Meta(description="the build")] = Build()
    cost: Annotated[CostSettings, Meta(description="prices")] = CostSettings()
    features: Annotated[Features, Meta(description="features")] = Features()
    cache: Annotated[Cache, Meta(description="prediction caches")] = Cache()
    batching: Annotated[Batching, Meta(description="batching")] = Batching()
    pool: Annotated[PoolSettings, Meta(description="executors")] = PoolSettings()
    serve: Annotated[Serve, Meta(description="the served variant")] = Serve()
    registry: Annotated[RegistrySettings, Meta(description="the registry")] = RegistrySettings()
    drift: Annotated[Drift, Meta(description="drift")] = Drift()
    server: Annotated[ServerSettings, Meta(description="the HTTP server")] = ServerSettings()
    observe: Annotated[Observe, Meta(description="what is seen of the running server")] = Observe()
    request_log: Annotated[RequestLogSettings, Meta(description="the request log")] = RequestLogSettings()
    ladder: Annotated[Ladder, Meta(description="the before/after ladder")] = Ladder()

    @property
    def judged(self) -> str:
        """Name of the output that the holdout's labels belong to."""
        return self.holdout.output or self.model.outputs[0].name
