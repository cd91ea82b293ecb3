"""The result of ``tailcut parity`` as a file. Every table and page is made from it alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tailcut.errors import LoadTestError
from tailcut.system.atomic_files import write_file

SCHEMA = 1
"""Number of the file's form; a reader refuses another one."""


class FieldParity(msgspec.Struct, frozen=True, kw_only=True):
    """One output over all requests that both sides answered.

    Args:
        output: as the deployment names it.
        pilot: path in the pilot's reply.
        matched: how the two were paired.
        tolerance: within which numbers count as equal.
        rows, differing_rows: compared, and those that differ.
        differing_requests: with a row that differs.
        max_difference, mean_difference: absolute, over all rows; None where the values are no numbers.
        relation: the pilot's value, where the deployment's is x; empty where no explanation covers the rows.
    """

    output: str
    pilot: str
    matched: str
    tolerance: str
    rows: int
    differing_rows: int
    differing_requests: int
    max_difference: float | None
    mean_difference: float | None
    relation: str = ""


class ValueDifference(msgspec.Struct, frozen=True, kw_only=True):
    """One value that differs; ``request`` counts from 1, ``row`` from 0."""

    request: int
    row: int
    output: str
    pilot: Any
    deployment: Any
    difference: float | None
    body: Any


class StatusDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A request that one side answered and the other did not; status 0: no reply."""

    request: int
    pilot_status: int
    pilot_text: str
    deployment_status: int
    deployment_text: str
    body: Any


class ColumnParity(msgspec.Struct, frozen=True, kw_only=True):
    """A column of the model's inputs that differs.

    Args:
        column: as the deployment has it.
        features: that fill it, where they could be found out.
        change: the pilot's value, where the deployment's is x; empty where no explanation covers the rows.
        first: the first values: request, pilot, deployment.
    """

    column: str
    features: tuple[str, ...] = ()
    rows: int
    differing_rows: int
    max_difference: float | None
    change: str = ""
    first: tuple[tuple[int, Any, Any], ...] = ()


class InputsParity(msgspec.Struct, frozen=True, kw_only=True):
    """The model's inputs on both sides.

    Args:
        model: the pilot's call.
        rows, columns: that were compared.
        differing: columns that differ, most often first.
        left_out: requests that were looked at, but whose inputs could not be compared.
        left_out_differing: those of them whose answers differ.
        problem: why the last of them could not; empty where there is none.
    """

    model: str = ""
    rows: int = 0
    columns: int = 0
    differing: tuple[ColumnParity, ...] = ()
    left_out: int = 0
    left_out_differing: int = 0
    problem: str = ""

    @property
    def equal(self) -> bool:
        """Whether the inputs of all requests that differ were compared, and no column differs."""
        return bool(self.rows) and not (self.differing or self.left_out_differing)


class VariantParity(msgspec.Struct, frozen=True, kw_only=True):
    """One variant beside the pilot.

    Args:
        variant: its name.
        version: of the registry; empty where it is not known.
        exact: whether it was made to give the source's values.
        judged: whether differences of values count.
        requests: that were sent.
        both_answered, both_refused: of these.
        uncompared: of these, with a row that has none of the compared fields on either side; not in both_answered.
        differing_requests: answered by both, with a value that differs.
        statuses: answered by one side only, or failed by the deployment: how many, and the first of them.
        unsteady: of the requests that differ and were asked again, those that the pilot then answered otherwise.
        fields, differences: all fields, and the first values that differ.
        inputs: of the model on both sides; None where they were not looked at.
        failed: why the variant was not asked; empty where it was.
        notes: what else a reader must know.
    """

    variant: str
    version: str = ""
    exact: bool = True
    judged: bool = True
    requests: int = 0
    both_answered: int = 0
    both_refused: int = 0
    uncompared: int = 0
    differing_requests: int = 0
    status_differences: int = 0
    statuses: tuple[StatusDifference, ...] = ()
    unsteady: int = 0
    fields: tuple[FieldParity, ...] = ()
    differences: tuple[ValueDifference, ...] = ()
    inputs: InputsParity | None = None
    failed: str = ""
    notes: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether nothing counts against it."""
        if self.failed or self.status_differences or self.uncompared:
            return False
        return not self.differing_requests or not self.judged


class ParityRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison.

    Args:
        created: UTC, ISO 8601.
        deployment, pilot, payloads, command: what was compared, and by which command line.
        form: how the deployment's request was made from the pilot's.
        caches: those that were on.
        variants: in the order in which they were asked.
        unmatched_pilot, unmatched_outputs: fields that were not compared.
    """

    schema: int = SCHEMA
    created: str
    deployment: str
    pilot: str
    payloads: str
    command: str
    form: str
    caches: str
    variants: tuple[VariantParity, ...]
    unmatched_pilot: tuple[str, ...] = ()
    unmatched_outputs: tuple[str, ...] = ()

    @property
    def equal(self) -> bool:
        """Whether every variant gives the pilot's answers."""
        return all(one.equal for one in self.variants)


def save_parity(record: ParityRecord, path: Path) -> None:
    """Write a comparison as JSON.

    Raises:
        LoadTestError: the file cannot be written.
    """
    write_file(path, msgspec.json.format(msgspec.json.encode(record, enc_hook=str), indent=1) + b"\n")


def load_parity(path: Path) -> ParityRecord:
    """Read a comparison.

    Raises:
        LoadTestError: the file is missing, holds something else, or was written by another schema.
    """
    try:
        record = msgspec.json.decode(path.read_bytes(), type=ParityRecord)
    except (OSError, msgspec.DecodeError) as error:
        raise LoadTestError(
            f"cannot read a comparison from {path}: {error}", hint="give a file written by `tailcut parity --json`"
        ) from error
    if record.schema != SCHEMA:
        raise LoadTestError(
            f"{path} has schema {record.schema}, but this tailcut reads {SCHEMA}", hint="run `tailcut parity` again"
        )
    return record
