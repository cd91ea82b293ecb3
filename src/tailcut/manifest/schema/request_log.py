"""The manifest's section on the request log: a sample of requests, with their inputs and answers, on the disk."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, field

from tailcut.common.units import Duration, Share, Size
from tailcut.manifest.section import Section


class RequestLog(Section, frozen=True, kw_only=True):
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
