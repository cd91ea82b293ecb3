"""The table of a run: how many cells are equal, refused and wrong, and why, alike reasons together."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

from tests.matrix.axes import FORMS, MODELS, PROTOCOLS
from tests.matrix.running import Finding, Result

_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_NUMBER = re.compile(r"-?\b\d[\w.+-]*|\bnan\b|\binf\b")
_LIST = re.compile(r"\[[^\]]*\]")
_LONGEST = 170
_EXAMPLES = 3


def table(results: Sequence[Result]) -> str:
    """Write all of it as plain text."""
    cells = Counter(outcome for result in results for outcome in result.cells().values())
    wrong = [(result, each) for result in results for each in result.wrong]
    lines = [
        f"{len(results)} groups, {sum(cells.values())} cells: {cells['equal']} equal, {cells['refused']} refused, "
        f"{cells['WRONG']} WRONG; {len(wrong)} findings are wrong, those of builds included",
        "",
        *_counts(results),
        "",
        "refused, by reason (cells and variants that it holds for, first group):",
        *_grouped((result, each) for result in results for each in result.findings if each.is_refusal),
    ]
    if wrong:
        lines += ["", "WRONG, by kind (findings, first groups):", *_grouped(wrong, examples=_EXAMPLES)]
    return "\n".join(lines)


def _counts(results: Sequence[Result]) -> list[str]:
    """Count outcomes by model, by form and by protocol."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for result in results:
        for (form, protocol), outcome in result.cells().items():
            for level in (result.group[0], form, protocol):
                counts[level][outcome] += 1
    head = f"{'':14}{'equal':>8}{'refused':>8}{'WRONG':>8}"
    lines = [head]
    for level in (*MODELS, *FORMS, *PROTOCOLS):
        if level in counts:
            lines.append(f"{level:14}" + "".join(f"{counts[level][each]:8}" for each in ("equal", "refused", "WRONG")))
    return lines


def _grouped(found: Iterable[tuple[Result, Finding]], examples: int = 1) -> list[str]:
    """Put findings with alike reasons together, the most frequent first."""
    groups: dict[str, list[tuple[Result, Finding]]] = defaultdict(list)
    for result, each in found:
        groups[_alike(each.why)].append((result, each))
    lines: list[str] = []
    for alike, members in sorted(groups.items(), key=lambda item: -len(item[1])):
        lines.append(f"{len(members):6}  {alike}")
        firsts = {(result.name, each.variant): (result, each) for result, each in reversed(members)}
        lines += [_example(result, each, examples > 1) for result, each in list(firsts.values())[::-1][:examples]]
    return lines


def _example(result: Result, each: Finding, whole: bool) -> str:
    about = " / ".join(part for part in (each.variant, each.form, each.protocol) if part)
    return f"          {result.name}: {about}{f': {each.why}' if whole else ''}"


def _alike(why: str) -> str:
    """Return a reason without the values that it names."""
    plain = _NUMBER.sub("N", _LIST.sub("[...]", _QUOTED.sub("'...'", why)))
    return plain if len(plain) <= _LONGEST else f"{plain[:_LONGEST]}..."
