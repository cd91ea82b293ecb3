"""The page on operating: what it says of the log is so."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

from tests.app_kit import INFER, deployment, running
from tests.docs.pages import ROOT

from tailcut import logs

PAGE = (ROOT / "docs" / "how-to" / "operate.md").read_text(encoding="utf-8")


def test_the_table_of_fields_is_what_a_line_has() -> None:
    rows = PAGE.partition("| field | |\n|---|---|\n")[2].partition("\n\n")[0].splitlines()
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row.split("|")[1])}
    record = logging.LogRecord("mine", logging.ERROR, "", 0, "m", (), None)
    try:
        raise ValueError("x")
    except ValueError:
        record.exc_info = sys.exc_info()
    vars(record).update(request_id="r", incident="i", code="c")
    assert set(json.loads(logs.formatter("json", "risk").format(record))) == named


def test_a_mounted_application_keeps_its_own_logging(tmp_path: Path) -> None:
    root = logging.getLogger()

    def state() -> tuple[Any, ...]:
        hooks = sys.excepthook, threading.excepthook, sys.unraisablehook, warnings.showwarning
        return root.handlers[:], root.level, logging.getLogger("tailcut").handlers[:], *hooks

    before = state()
    assert not [each for each in before[3:] if each.__module__.startswith("tailcut")]

    async def main() -> None:
        async with running(deployment(tmp_path, "", ['server.log="json"'])) as client:
            assert (await client.post(INFER, {})).status == 400
            assert state() == before

    asyncio.run(main())
    assert state() == before
