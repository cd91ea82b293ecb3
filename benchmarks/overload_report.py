"""The page of ``benchmarks.overload``."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.overhead import spread

_SCENARIOS = {
    "poisson": "Poisson at 80 % of capacity",
    "bursts": "Bursts: 0.25 s at twice the mean, 0.25 s of nothing; 80 % of capacity in the mean",
    "overload": "Poisson at three times the capacity",
}


def render(result: dict[str, Any]) -> str:
    """Return the result as a page of Markdown."""
    load, taken = result["load_average"], result["bare_ms"]
    rounds = max((len(each["rounds"]) for each in result["servers"].values()), default=0)
    sizes = ", ".join(f"{size}: {float(took):.1f}" for size, took in taken.items())
    lines = [
        "# A compute-bound model under load, and beyond it",
        "",
        f"`{result['command']}` at commit {result['commit']}, {result['date']}, on {result['cpu']}, Python "
        f"{result['python']}, onnxruntime {result['onnxruntime']}; load average {load['before']:.1f} before, "
        f"{load['after']:.1f} after; {rounds} rounds; median (least to most).",
        "",
        f"{result['model']}, one thread. The bare runtime on core 0 takes, in ms by batch size, {sizes}.",
        f"Largest batch: {result['rows']}. SLO: 25 ms and one such batch, {result['limit_ms']:.0f} ms. Deadline: "
        f"{result['deadline_ms']} ms. Capacity, that of the bare runtime in batches of "
        f"{result.get('best_rows', result['rows'])}, measured before every run: "
        f"{_capacities(result)} rows/s.",
        "Load is open loop and its latency counts from the intended time; server on core 0, load on core 1.",
    ]
    for scenario, title in _SCENARIOS.items():
        lines += ["", f"## {title}", "", *_table(result, scenario)]
    lines += ["", "## Against the bars", "", "| bar | seen | met |", "|---|---|---|", *_bars(result)]
    lines += ["", "## Notes", ""]
    lines += [f"- {name} is not in the tables: {each['failure']}" for name, each in _failed(result)]
    lines += _NOTES
    lines += _of_batches(result)
    return "\n".join([*lines, ""])


_NOTES = (
    "- Refused: 429 and 503, however long that took; missed: accepted, but not answered within the deadline. A refusal",
    "  is worth more the sooner it comes: the column says when the last percent came.",
    "- A client gives a request up after 2 s. p50 and p99 are of answers, late ones included, refusals not.",
    "- Ideal: the same arrivals at a server that does nothing but the model, one row after the other at capacity:",
    "  one that answers all, first come, first served, and one that turns away at the door who would be late. More",
    "  than the second is possible only where the model does better than its capacity.",
    "- Good: answers within the deadline per second, as a share of capacity.",
)


def _of_batches(result: dict[str, Any]) -> list[str]:
    """Notes on what the largest batch decides."""
    rows, limit_ms = result["rows"], result["limit_ms"]
    behind_ms = 250 * (2 * 0.8 - 1)
    wide_ms = result.get("wide_ms", result["deadline_ms"])
    refused = max(
        (run["closed_errors"] for run in result["servers"].get("tailcut", {"rounds": []})["rounds"]), default=0
    )
    lines = [
        f"- Throughput is that of a server whose SLO and deadline are {wide_ms} ms, with {2 * rows} connections,",
        f"  a batch that runs and one that waits, after {result.get('closed_warm_s', 0)} s of the same, the median of "
        f"{result.get('closed_pieces', 1)}",
        "  such runs, each between two of the bare runtime. Under the SLO",
        f"  there are {rows * 3 // 2}; tailcut cuts batches for its sake, and of those clients it refused {refused:,}",
        "  times, and wrk comes back at once, whatever it is told.",
        f"- Who answers all of a burst ends {behind_ms:.0f} ms behind in the mean: 0.25 s at 1.6 times the capacity.",
    ]
    if limit_ms < behind_ms:
        lines.append(f"  Within {limit_ms:.0f} ms that is out of every server's reach: see the ideal.")
    return lines


def _capacities(result: dict[str, Any]) -> str:
    runs = [run for each in result["servers"].values() for run in each["rounds"]]
    found: list[float | None] = [run[scenario]["capacity_rps"] for run in runs for scenario in _SCENARIOS]
    return _cell(found, "{:.0f}".format)


def _failed(result: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(name, each) for name, each in result["servers"].items() if each["failure"]]


def _table(result: dict[str, Any], scenario: str) -> list[str]:
    head = "| server | within the SLO | good | missed | refused | p99 of refusals, ms | p50, ms | p99, ms |"
    lines = [head, "|---|---|---|---|---|---|---|---|"]
    for name, server in result["servers"].items():
        runs = [run[scenario] for run in server["rounds"]]
        if not runs:
            lines.append(f"| {name} | not measured: see the notes | | | | | | |")
            continue
        cells = [
            _cell([run["within_limit"] for run in runs], "{:.2%}".format),
            _cell([run["good_rps"] / run["capacity_rps"] for run in runs], "{:.0%}".format),
            _cell([run["missed"] for run in runs], "{:.2%}".format),
            _cell([run["refused"] for run in runs], "{:.1%}".format),
            *(_cell([run[key] for run in runs], "{:.0f}".format) for key in ("refused_p99_ms", "p50_ms", "p99_ms")),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    for key, name in (("ideal_within", "ideal, all answered"), ("best_within", "ideal, the late turned away")):
        ideal = [run[scenario].get(key) for each in result["servers"].values() for run in each["rounds"]]
        lines.append(f"| *{name}: see the notes* | {_cell(ideal, '{:.2%}'.format)} | | | | | | |")
    return lines


def _cell(values: list[float | None], form: Callable[[float], str]) -> str:
    known = [value for value in values if value is not None]
    return spread(known, form) if known else "none"


def _bars(result: dict[str, Any]) -> list[str]:
    rows = []
    tailcut = result["servers"].get("tailcut", {"rounds": []})["rounds"]
    if tailcut:
        for key, form in (("wide", "JSON"), ("wide_binary", "binary tensors")):
            share: list[float | None] = [
                run[f"{key}_rps"] / run[f"{key}_bare_rps"] for run in tailcut if f"{key}_rps" in run
            ]
            if share:
                what = f"closed-loop throughput of the bare runtime's, {form}, at least 95 %"
                rows.append(_bar(what, share, "{:.1%}", 0.95))
        closed: list[float | None] = [run["closed_rps"] / run["bare_rps"] for run in tailcut]
        what = "closed-loop throughput under the tight SLO, which has batches cut"
        rows.append(f"| {what} | {_cell(closed, '{:.1%}'.format)} | |")
        for scenario in ("poisson", "bursts"):
            within: list[float | None] = [run[scenario]["within_limit"] for run in tailcut]
            rows.append(_bar(f"{scenario}: within the SLO, at least 99 %", within, "{:.2%}", 0.99))
        good: list[float | None] = [run["overload"]["good_rps"] / run["overload"]["capacity_rps"] for run in tailcut]
        rows.append(_bar("three times: good answers, at least 90 % of capacity", good, "{:.0%}", 0.9))
        own = [found / share for found, share in zip(good, closed, strict=True) if found and share]
        rows.append(f"| the same, of what tailcut does in that closed loop | {_cell([*own], '{:.0%}'.format)} | |")
        missed: list[float | None] = [run["overload"]["missed"] for run in tailcut]
        rows.append(_bar("three times: accepted that missed the deadline, at most 0.1 %", missed, "{:.3%}", most=0.001))
        rows += _against_peers(result, tailcut)
    idle = result["idle"]
    if idle:
        low, high = idle["interval_us"]
        seen = f"{idle['difference_us']:.0f} us, mean within {low:.0f} to {high:.0f} us (95 %)"
        met = _said(low <= 0 <= high or high < 20)
        what = f"idle p50, batching auto less off, {len(idle['rounds'])} rounds: holds 0, or below 20 us"
        rows.append(f"| {what} | {seen} | {met} |")
    return rows


def _against_peers(result: dict[str, Any], tailcut: list[dict[str, Any]]) -> list[str]:
    """Compare p99 at the same rate with the best peer that answers nearly all."""
    others = {}
    for name, server in result["servers"].items():
        runs = [run["poisson"] for run in server["rounds"]]
        if name != "tailcut" and runs and median(run["refused"] + run["failed"] for run in runs) < 0.01:
            others[name] = median(run["p99_ms"] or float("inf") for run in runs)
    if not others:
        return []
    best = min(others, key=lambda name: others[name])
    own = median(run["poisson"]["p99_ms"] or float("inf") for run in tailcut)
    text = f"p99 at 80 %, no worse than the best peer's ({best})"
    return [f"| {text} | {own:.0f} ms to {others[best]:.0f} ms | {_said(own <= others[best])} |"]


def _bar(what: str, values: list[float | None], form: str, least: float = 0.0, most: float = float("inf")) -> str:
    middle = median(value for value in values if value is not None)
    return f"| {what} | {_cell(values, form.format)} | {_said(least <= middle <= most)} |"


def _said(met: bool) -> str:
    return "yes" if met else "**no**"
