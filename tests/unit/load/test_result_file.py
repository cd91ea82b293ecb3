"""The JSON file of a run."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tailcut.load import save_result, summarise_run
from tailcut.load.plan import LoadPlan
from tailcut.load.samples import Samples
from tailcut.load.summary import RunFacts


def test_the_file_of_a_run_holds_no_secrets(tmp_path: Path) -> None:
    plan = LoadPlan(url="http://me:pw1@host/p?key=pw2", rate=1.0, headers=(("authorization", "pw3"),))
    none = np.zeros(0, dtype=np.int64)
    status, cache = none.astype(np.int16), none.astype(np.int8)
    samples = Samples(
        intended_ns=none,
        sent_ns=none,
        done_ns=none,
        status=status,
        cache=cache,
        cache_names=("",),
        stages_ms={},
        measured_from_ns=0,
    )
    save_result(summarise_run(plan, samples, RunFacts(window_s=1.0)), tmp_path / "out.json")
    written = (tmp_path / "out.json").read_text()
    assert "pw" not in written
    assert [name for name, _ in json.loads(written)["plan"]["headers"]] == ["authorization"]
