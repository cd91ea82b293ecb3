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

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.schema.batching import Batching
from tailcut.manifest.schema.build import Build, Cost, Holdout, Quality
from tailcut.manifest.schema.cache import Cache, PredictionCache, TensorCache
from tailcut.manifest.schema.features import FeatureGroup, Features
from tailcut.manifest.schema.model import Datatype, Field, Model, Tensor
from tailcut.manifest.schema.server import Server
from tailcut.manifest.section import NAME_PATTERN, Section

__all__ = [
    "Batching",
    "Build",
    "Cache",
    "Cost",
    "Datatype",
    "Deployment",
    "Duration",
    "FeatureGroup",
    "Features",
    "Field",
    "Holdout",
    "Ladder",
    "Model",
    "Pool",
    "PredictionCache",
    "Quality",
    "Registry",
    "Rung",
    "Serve",
    "Server",
    "Share",
    "Size",
    "Slo",
    "Tensor",
    "TensorCache",
]


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
    errors: Annotated[Share, Meta(description="largest share of failed and shed requests")] = Share(0.001)
    rate: Annotated[float, Meta(description="requests per second at which the SLO must hold", gt=0)] = 100.0
    timeout_s: Annotated[Duration, Meta(description="deadline of a request that brings none of its own")] = field(
        default=Duration(1.0), name="timeout"
    )


class Pool(Section, frozen=True, kw_only=True):
    """The executors of the served variant."""

    executor: Annotated[
        Literal["auto", "inline", "thread", "process"],
        Meta(
            description="inline runs batches on the event loop (models under 1 ms only); auto takes inline where the "
            "largest batch surely stays under it, by the build and the start's measurement, else thread; process: a "
            "process of its own, for models that crash, leak or hold the GIL"
        ),
    ] = "auto"
    executors: Annotated[
        int,
        Meta(
            description="executors that are always warm, each running one batch at a time; where onnxruntime or "
            "OpenVINO compute on the CPU, as many batches at once as there are cores; 0: the variant's own setting, "
            "else 2 where cores and memory allow",
            ge=0,
        ),
    ] = 0
    max_executors: Annotated[
        int,
        Meta(
            description="executors that the pool may grow to when work waits, as far as they can run at once; 0: as "
            "many as always warm",
            ge=0,
        ),
    ] = 0
    recycle_requests: Annotated[
        int, Meta(description="requests after which an executor is replaced by a fresh one; 0: never", ge=0)
    ] = 0
    recycle_age_s: Annotated[
        Duration, Meta(description="age at which an executor is replaced by a fresh one; '0s': never")
    ] = field(default=Duration(0.0), name="recycle_age")
    recycle_growth: Annotated[
        Share,
        Meta(description="growth of a process's memory since it was warm at which it is replaced; 0: never"),
    ] = Share(0.0)
    threads: Annotated[
        int, Meta(description="threads of the runtime inside one executor; 0: the variant's own setting, else 1", ge=0)
    ] = 0

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
        Meta(description="name of a variant (see `tailcut build --list`), or 'promoted' (the registry's)"),
    ] = "promoted"
    follow_s: Annotated[
        Duration,
        Meta(description="how often to look for another promotion where 'promoted' is served; '0s': never"),
    ] = field(default=Duration(1.0), name="follow")
    fallback: Annotated[
        tuple[str, ...],
        Meta(
            description="what answers while the variant loads, where there is no room for a request or no executor is "
            "ready: the name of another passed variant, 'stale' (see cache.*.stale_for), or both, the variant first; "
            "none: 429 or 503",
            examples=[("int8-dynamic",)],
        ),
    ] = ()
    force: Annotated[
        bool,
        Meta(
            description="whether variants that variant and fallback name are served although the gate refused their "
            "answers; one that it refused for its speed only needs no force"
        ),
    ] = False


class Registry(Section, frozen=True, kw_only=True):
    """Where artifacts and their evidence are kept."""

    path: Annotated[str, Meta(description="folder, from the manifest's, or a URL that fsspec knows")] = (
        ".tailcut/registry"
    )
    keep_code: Annotated[
        bool,
        Meta(
            description="whether `tailcut build` keeps a copy of your code (hooks, feature functions, model.source, "
            "what these import, and model.files) with each version, up to 16 MiB; its hashes are kept in any case"
        ),
    ] = True


class Rung(Section, frozen=True, kw_only=True):
    """One rung of the ladder: the rung below it with more settings."""

    name: Annotated[str, Meta(description="what the rung is called in the table", examples=["+ feature cache"])]
    set: Annotated[
        tuple[str, ...],
        Meta(description="settings added on this rung, each 'path=value'", examples=[("features.cache=memory",)]),
    ] = ()
    variant: Annotated[
        str,
        Meta(
            description="variant this rung stands for; refused with the reason where it misses its budgets",
            examples=["int8-dynamic"],
        ),
    ] = ""


class Ladder(Section, frozen=True, kw_only=True):
    """The before/after ladder: the same traffic against the pilot and then one lever more per rung."""

    pilot: Annotated[
        tuple[str, ...],
        Meta(
            description="command that starts the pilot; {port} and {python} are filled in",
            examples=[("{python}", "-m", "uvicorn", "pilot:app", "--port", "{port}")],
        ),
    ] = ()
    pilot_path: Annotated[str, Meta(description="path that the traffic is posted to on the pilot")] = "/predict"
    setup: Annotated[
        str,
        Meta(
            description="'package.module:callable' context manager that starts databases and yields environment",
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
        tuple[str, ...], Meta(description="folders put on the import path for module:callable, from the manifest's")
    ] = (".",)
    slo: Annotated[Slo, Meta(description="the service level objective")] = Slo()
    model: Annotated[Model, Meta(description="the model")]
    holdout: Annotated[Holdout, Meta(description="the holdout")] = Holdout()
    quality: Annotated[Quality, Meta(description="the quality budget")] = Quality()
    build: Annotated[Build, Meta(description="the build")] = Build()
    cost: Annotated[Cost, Meta(description="prices")] = Cost()
    features: Annotated[Features, Meta(description="features")] = Features()
    cache: Annotated[Cache, Meta(description="prediction caches")] = Cache()
    batching: Annotated[Batching, Meta(description="batching")] = Batching()
    pool: Annotated[Pool, Meta(description="executors")] = Pool()
    serve: Annotated[Serve, Meta(description="the served variant")] = Serve()
    registry: Annotated[Registry, Meta(description="the registry")] = Registry()
    server: Annotated[Server, Meta(description="the HTTP server")] = Server()
    ladder: Annotated[Ladder, Meta(description="the before/after ladder")] = Ladder()

    @property
    def judged(self) -> str:
        """Name of the output that the holdout's labels belong to."""
        return self.holdout.output or self.model.outputs[0].name
