"""What a start pays for knowing the user's code: CPU time of reading, analysing and hashing it, in fresh processes.

    python -m benchmarks.start_code [--rounds 7] [--out benchmarks/results/start_code.md]

Deployments: the repository's examples (the hooks that serving imports, and model.source where its packages are
installed), one whose hooks import pandas, scikit-learn and torch, and generated ones of many modules. Each process
imports the code as a start does; the import itself is shown beside what is added to it.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks.overhead import commit, cpu

_EXAMPLES = ("flight_risk", "flight_pipeline", "flight_risk_trees", "digits", "minilm")
_LIMIT_MS = 100.0

_CHILD = """
import json, sys, time
from pathlib import Path
from tailcut.code.loaded import Loading
from tailcut.code.roots import serving_references
from tailcut.manifest import load, resolve
manifest = load(Path(sys.argv[1]), keep_unset=True, environment={})
began = time.process_time()
loading = Loading(manifest)
found = {reference: resolve(reference, manifest) for reference in serving_references(manifest)}
imported = time.process_time()
loaded = loading.end(found)
loaded.snapshot(live=False)
for group in manifest.deployment.features.groups:
    loaded.digest_of([group.function] if group.function else [])
hashed = time.process_time()
code = loaded.listing(live=False)
print(json.dumps({"import_ms": (imported - began) * 1e3, "code_ms": (hashed - imported) * 1e3,
                  "modules": len(code.modules), "distributions": len(code.distributions), "data": len(code.data)}))
"""

_MANIFEST = """
name = "m"
[model]
source = "model.onnx"
preprocess = "hooks:preprocess"
[[model.inputs]]
name = "x"
[[model.outputs]]
name = "y"
"""


def _deployments(folder: Path) -> Iterator[tuple[str, Path]]:
    examples = Path(__file__).parent.parent / "examples"
    for name in _EXAMPLES:
        if (examples / name / "tailcut.toml").is_file():
            yield f"examples/{name}", examples / name
    heavy = "import numpy\nimport pandas\nimport sklearn.ensemble\nimport torch\nimport yaml\nfrom PIL import Image\n"
    yield "pandas, sklearn, torch", _project(folder / "heavy", {"hooks": f"{heavy}\ndef preprocess(rows): ...\n"})
    for modules, lines in ((30, 100), (100, 100), (300, 100)):
        yield f"{modules} modules of {lines} lines", _project(folder / f"many{modules}", _many(modules, lines))


def _many(modules: int, lines: int) -> dict[str, str]:
    body = "".join(
        f"\ndef f{at}(rows, scale=1.0):\n    total = sum(row['a'] * scale for row in rows if row.get('b'))\n"
        f"    if total > {at}:\n        return {{'x': [total, {at}]}}\n    return {{}}\n"
        for at in range(lines // 6)
    )
    found = {f"part{at}": f"import math\nimport numpy as np\n{body}" for at in range(modules)}
    every = "".join(f"import {name}\n" for name in found)
    return {**found, "hooks": f"{every}\ndef preprocess(rows): ...\n"}


def _project(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir()
    (folder / "tailcut.toml").write_text(_MANIFEST)
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    return folder


def _measure(directory: Path) -> dict[str, float] | str:
    """Return a start's figures, or the name of the package that is not installed here."""
    child = subprocess.run([sys.executable, "-c", _CHILD, str(directory)], capture_output=True, text=True, check=False)
    if child.returncode:
        error = child.stderr.strip().splitlines()[-1]
        if "No module named" not in error:
            raise RuntimeError(f"{directory}: {error}")
        return error
    found: dict[str, float] = json.loads(child.stdout.splitlines()[-1])
    return found


def main() -> int:
    """Print the table; the exit code is 1 where a median is above 100 ms."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    lines = [
        f"# Code at start\n\n{cpu()}, commit {commit()}, {options.rounds} fresh processes each, CPU time in ms.\n",
        "| deployment | modules | distributions | import | code, median | code, most |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    late = False
    with tempfile.TemporaryDirectory() as folder:
        for name, directory in _deployments(Path(folder)):
            runs = [_measure(directory) for _ in range(options.rounds)]
            good = [run for run in runs if isinstance(run, dict)]
            if not good:
                lines.append(f"| {name} | | | | {runs[0]} | |")
                continue
            code = [run["code_ms"] for run in good]
            late = late or statistics.median(code) > _LIMIT_MS
            imported = statistics.median(run["import_ms"] for run in good)
            counts = f"{good[0]['modules']:.0f} | {good[0]['distributions']:.0f}"
            lines.append(f"| {name} | {counts} | {imported:.0f} | {statistics.median(code):.1f} | {max(code):.1f} |")
    text = "\n".join(lines) + "\n"
    print(text)
    if options.out:
        options.out.write_text(text)
    return int(late)


if __name__ == "__main__":
    raise SystemExit(main())
