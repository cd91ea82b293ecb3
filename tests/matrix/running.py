"""Runs groups: build, serve every variant, ask, compare; and says of every cell what came of it."""

from __future__ import annotations

import tempfile
import traceback
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from tests.matrix import asked, builds
from tests.matrix.answers import Expected, answer, differs, expected, metrics, rows_of, ties
from tests.matrix.axes import FORMS, PROTOCOLS, Group
from tests.matrix.builds import Built
from tests.matrix.doors import Doors, Refused, serving
from tests.matrix.tables import Columns, draw, holdout

from tailcut.errors import TailcutError

EVIDENCE = "evidence"
_RANK = ("equal", "refused", "WRONG")

Outcome = Literal["equal", "refused", "WRONG"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one thing that was tried.

    Attributes:
        variant: that answered; empty where it is about the build.
        form, protocol: of the request; empty where it is about the build. ``EVIDENCE`` is a form of its own.
        why: of a refusal or a wrong answer; of a right one where it is a refusal as it must be.
    """

    outcome: Outcome
    variant: str = ""
    form: str = ""
    protocol: str = ""
    why: str = ""

    @property
    def is_refusal(self) -> bool:
        """Whether something was refused, rightly or not."""
        return self.outcome == "refused" or (self.outcome == "equal" and bool(self.why))


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one group.

    Attributes:
        group: its model, values and labels.
        findings: of its cells, a finding for each variant; and of its build.
    """

    group: tuple[str, str, str]
    findings: list[Finding]

    def cells(self) -> dict[tuple[str, str], Outcome]:
        """Return the outcome of each cell by form and protocol: wrong where a variant is, else equal where one is."""
        of_build = {each.outcome for each in self.findings if not each.form}
        found: dict[tuple[str, str], Outcome] = {}
        for cell in product(FORMS, PROTOCOLS):
            of_variant: dict[str, Outcome] = {}
            for each in self.findings:
                if (each.form, each.protocol) == cell:
                    of_variant[each.variant] = max(of_variant.get(each.variant, "equal"), each.outcome, key=_RANK.index)
            # Where nothing was served, the cell is what the build is.
            outcomes = set(of_variant.values()) or of_build
            found[cell] = "WRONG" if "WRONG" in outcomes else "equal" if "equal" in outcomes else "refused"
        return found

    @property
    def name(self) -> str:
        """Name of the group."""
        return ", ".join(self.group)

    @property
    def wrong(self) -> list[Finding]:
        """Everything that is wrong."""
        return [each for each in self.findings if each.outcome == "WRONG"]


def run(group: Group, folder: Path | None = None) -> Result:
    """Run one group.

    Args:
        folder: for its files, which stay there; None for one that is removed.
    """
    with ExitStack() as stack:
        where = folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tailcut-matrix-")))
        try:
            findings = _run(group, where)
        except Exception as error:  # a crash of what is tested is a result like others
            findings = [_crash(error)]
    return Result(group=(group.model, group.values, group.labels), findings=findings)


def _run(group: Group, folder: Path) -> list[Finding]:
    builds.write(group, folder)
    built = builds.build(folder)
    findings = [Finding(outcome="refused", variant=name, why=why) for name, why in built.refusals.items()]
    findings += [Finding(outcome="WRONG", why=f"crash: {why}") for why in built.crashes]
    if built.variants and built.confirmation:
        findings.append(_judged(group, built))
    if not group.knows_classes:
        findings.append(_undeclared(group, folder))
    for variant in built.variants:
        findings += _ask_all(group, folder, variant)
    return findings


def _judged(group: Group, built: Built) -> Finding:
    """Compare the metrics in the evidence with the object's own on the same rows."""
    table = holdout(group)
    columns = rows_of(table.columns, built.confirmation)
    own = metrics(group, columns, table.labels[built.confirmation])
    # Of two best scores that are equal within rounding either may win.
    allowed = {"accuracy": ties(group, columns) + 1e-9}
    off = {
        name: (built.judged[name], value)
        for name, value in own.items()
        if name in built.judged and abs(built.judged[name] - value) > allowed.get(name, 1e-4)
    }
    lacks = [name for name in own if name not in built.judged and name != "auc"]
    if off or lacks:
        said = ", ".join(f"{name} {found:.4f} instead of {value:.4f}" for name, (found, value) in off.items())
        return Finding(outcome="WRONG", form=EVIDENCE, why=f"{said or f'no {lacks[0]}'}")
    return Finding(outcome="equal", form=EVIDENCE)


def _undeclared(group: Group, folder: Path) -> Finding:
    """Build with labels that the model does not know, neither encoded nor named in ``holdout.classes``.

    It is refused, or the labels are taken for the right classes all the same.
    """
    inner = folder / "undeclared"
    inner.mkdir()
    builds.write(group, inner, declared=False)
    built = builds.build(inner)
    about = "with undeclared labels"
    if not built.variants:
        return Finding(outcome="refused", form=EVIDENCE, variant=about, why=built.refusals["build"])
    return msgspec.structs.replace(_judged(group, built), variant=about)


def _ask_all(group: Group, folder: Path, variant: str) -> list[Finding]:
    columns = asked.rows(group)
    try:
        with serving(group, builds.read(folder, f"serve.variant={variant}")) as doors:
            return [
                *_rows_findings(group, variant, doors, columns),
                *_empty_findings(group, variant, doors),
            ]
    except TailcutError as error:
        return [Finding(outcome="WRONG", variant=variant, why=f"built, but not served: {builds.said(error)}")]


def _rows_findings(group: Group, variant: str, doors: Doors, columns: Columns) -> list[Finding]:
    sayable = asked.finite(columns)
    found = []
    for protocol in PROTOCOLS:
        # Infinity has no form in JSON.
        given = columns if protocol in ("binary", "grpc") else rows_of(columns, sayable)
        wanted = expected(group, given)
        about = {"variant": variant, "protocol": protocol}
        many = rows_of(given, wanted.places)
        found.append(Finding(form="many rows", **about, **_compare(group, doors, many, wanted.answers, protocol)))
        found.append(Finding(form="one row", **about, **_alone(group, doors, many, protocol)))
        found += [Finding(form="one row", **about, **each) for each in _raising(doors, given, wanted, protocol)]
    return found


def _alone(group: Group, doors: Doors, columns: Columns, protocol: str) -> dict[str, Any]:
    """Ask for single rows, and return the worst that came of one."""
    found = [_compare(group, doors, row, answer(group, row), protocol) for row in asked.single_rows(columns)]
    return max(found, key=lambda each: _RANK.index(each["outcome"]))


def _firsts(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first finding of each outcome."""
    return list({each["outcome"]: each for each in reversed(found)}.values())


def _compare(group: Group, doors: Doors, columns: Columns, wanted: Any, protocol: str) -> dict[str, Any]:
    try:
        given = doors.ask(protocol, columns)
    except Refused as error:
        return {"outcome": "refused" if error.is_client else "WRONG", "why": str(error)}
    except Exception as error:
        return {"outcome": "WRONG", "why": f"{type(error).__name__}: {error}"}
    why = differs(group, given, wanted)
    return {"outcome": "WRONG", "why": f"{why}; {_inputs(columns, why)}"} if why else {"outcome": "equal"}


def _inputs(columns: Columns, why: str) -> str:
    place = int(why.partition("; row ")[2].partition(":")[0] or 0)
    return ", ".join(f"{name} = {values[place]!r}" for name, values in columns.items())


def _raising(doors: Doors, columns: Columns, wanted: Expected, protocol: str) -> list[dict[str, Any]]:
    """Ask for rows that the object itself refuses: no variant may answer them."""
    found: list[dict[str, Any]] = []
    for place, raised in wanted.raising.items():
        row = rows_of(columns, slice(place, place + 1))
        try:
            given = doors.ask(protocol, row)
        except Refused as error:
            found.append({"outcome": "equal", "why": f"the object raises, served {error}"})
            continue
        except Exception as error:
            found.append({"outcome": "WRONG", "why": f"{type(error).__name__}: {error}"})
            continue
        why = f"answers {np.asarray(given).tolist()} where the object raises {raised}; {_inputs(row, '')}"
        found.append({"outcome": "WRONG", "why": why})
    return _firsts(found)


def _empty_findings(group: Group, variant: str, doors: Doors) -> list[Finding]:
    empty = draw(group, 0, np.random.default_rng(0))
    found = []
    for protocol in PROTOCOLS:
        about = {"variant": variant, "form": "no rows", "protocol": protocol}
        try:
            given = doors.ask(protocol, empty)
        except Refused as error:
            found.append(Finding(outcome="refused" if error.is_client else "WRONG", why=str(error), **about))
        except Exception as error:
            found.append(Finding(outcome="WRONG", why=f"{type(error).__name__}: {error}", **about))
        else:
            found.append(Finding(outcome="WRONG", why=f"answered {np.asarray(given).tolist()}", **about))
    return found


def _crash(error: BaseException) -> Finding:
    where = traceback.extract_tb(error.__traceback__)[-1]
    why = f"crash: {type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
    return Finding(outcome="WRONG", why=why)
