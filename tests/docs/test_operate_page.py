"""The page on operating: its alert rules name metrics, labels and values that a server has before its first request."""

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

import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.app_kit import FEATURES, INFER, deployment, running
from tests.docs.pages import ROOT

from tailcut import logs
from tailcut.observe.outcomes import CODES, OUTCOMES

PAGE = (ROOT / "docs" / "how-to" / "operate.md").read_text(encoding="utf-8")
_SELECTOR = re.compile(r"(tailcut_\w+)(?:\{([^}]*)\})?")
_VALUES = {"outcome": {*OUTCOMES}, "code": {"ok", *CODES}}


def rules() -> list[dict[str, Any]]:
    (text,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def series(directory: Path) -> dict[str, list[dict[str, str]]]:
    """Labels of every sample of a server that has had no request, by name."""
    found: dict[str, list[dict[str, str]]] = {}

    async def main() -> None:
        async with running(deployment(directory, FEATURES)) as client:
            text = (await client.get("/metrics")).body.decode()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                found.setdefault(sample.name, []).append(sample.labels)

    asyncio.run(main())
    return found


def test_the_alert_rules_find_their_series_before_the_first_request(tmp_path: Path) -> None:
    (tmp_path / "app_hooks.py").write_text("")
    there = series(tmp_path)
    seen = set()
    for rule in rules():
        assert set(rule) == {"alert", "expr", "for"}
        for name, selector in _SELECTOR.findall(rule["expr"]):
            seen.add(name)
            assert name in there, rule["alert"]
            for label, how, value in re.findall(r'(\w+)(=~|=)"([^"]*)"', selector):
                wanted = set(value.split("|")) if how == "=~" else {value}
                assert wanted <= _VALUES[label]
                assert wanted <= {labels[label] for labels in there[name]}, (rule["alert"], label)
    assert len(seen) >= 4


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
