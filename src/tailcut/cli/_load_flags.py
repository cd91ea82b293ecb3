"""Flags of commands that send load: durations, objectives and headers."""

from __future__ import annotations

import msgspec

from tailcut.cli.console import note, usage
from tailcut.common.slo import Objectives, parse_duration_s, parse_objectives
from tailcut.errors import LoadTestError


def seconds(flag: str, text: str) -> float:
    """Read a duration; an error names the flag."""
    with usage(flag):
        return parse_duration_s(text)


def objectives(text: str) -> Objectives:
    """Read --slo. Failures are always judged: by what a manifest allows where the text does not say."""
    if not text:
        return Objectives()
    from tailcut.manifest import Slo

    with usage("--slo"):
        found = parse_objectives(text)
    if found.errors is None:
        found = msgspec.structs.replace(found, errors=float(Slo().errors))
        note(f"SLO: {found} (default for errors; set another share with errors=... in --slo)")
    return found


def read_header(text: str) -> tuple[str, str]:
    """Read "Name: value".

    Raises:
        LoadTestError: it has no colon or no name.
    """
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise LoadTestError(f"the header is {text!r}", hint="write it as --header 'Name: value'")
    return name.strip(), value.strip()
