"""The table of a run, and the issue's bars against it."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.overhead import spread

_TAILCUT, _NOOP = "tailcut", "no-op"
_OURS = (_NOOP, "no-op, own HTTP", _TAILCUT, "no-op, binary", "tailcut, binary")
Server = dict[str, Any]


def render(result: dict[str, Any]) -> str:
    """Return the result as a page of Markdown."""
    servers = {each["name"]: each for each in result["servers"]}
    rounds = max((len(each["rounds"]) for each in servers.values()), default=0)
    load = result["load_average"]
    lines = [
        "# tailcut beside other model servers",
        "",
        f"`{result['command']}` at commit {result['commit']}, {result['date']}, on {result['cpu']}, Python "
        f"{result['python']}, onnxruntime {result['onnxruntime']}; load average {load['before']:.1f} before, "
        f"{load['after']:.1f} after; {rounds} interleaved rounds of {result['seconds']} s; median (least to most).",
        "",
        "MLP 64-256-256-1 in onnxruntime with one thread, one row of 64 floats per request. Server on core 0, wrk on",
        "core 1, all other servers frozen meanwhile. Shares are within a round.",
    ]
    for connections in ("32", "1"):
        lines += _table(servers, connections)
    lines += ["", "## Against the bars", "", "| bar | seen | met |", "|---|---|---|", *_bars(servers, result["bare"])]
    lines += ["", "## Settings", "", "| server | version | setting |", "|---|---|---|"]
    lines += [f"| {each['name']} | {each['version']} | {each['setting']} |" for each in servers.values()]
    failed = [f"- {each['name']} is not in the tables: {each['failure']}" for each in servers.values()]
    failed = [line for line, each in zip(failed, servers.values(), strict=True) if each["failure"]]
    return "\n".join([*lines, "", "## Notes", "", *failed, *_NOTES, ""])


_NOTES = (
    "- wrk is closed-loop: its p99 at 32 connections is that of a saturated server, and its req/s the throughput.",
    '- Peers read {"x": [...]}, the least that a body can be; tailcut, MLServer and the no-op read the Open Inference',
    "  Protocol's. The first answer of every server is compared with the model's own.",
    "- The no-op that shares and bars refer to is Granian's, whichever HTTP server tailcut has; the one on tailcut's",
    "  own says what of it is HTTP.",
    "- benchmarks/peers/served/ says for each peer which page of its documentation its set-up follows.",
)


def figures(server: Server, connections: str, figure: str) -> list[float]:
    """Return one figure of every round that did not fail."""
    return [run[connections][figure] for run in server["rounds"] if connections in run]


def shares(server: Server, base: Server | None, connections: str, figure: str = "rps") -> list[float]:
    """Return the ratios of a figure to another server's, round by round."""
    if base is None:
        return []
    pairs = zip(server["rounds"], base["rounds"], strict=False)  # one that is not up has no rounds
    return [a[connections][figure] / b[connections][figure] for a, b in pairs if connections in a and connections in b]


def _table(servers: dict[str, Server], connections: str) -> list[str]:
    head = f"## {connections} connection{'s' * (connections != '1')}"
    lines = ["", head, "", "| server | req/s | p50, ms | p99, ms | errors | of the no-op | of tailcut |"]
    lines.append("|---|---|---|---|---|---|---|")
    for name, server in servers.items():
        if server["failure"] or not figures(server, connections, "rps"):
            lines.append(f"| {name} | not measured: see the notes | | | | | |")
            continue
        binary = name.endswith(", binary")
        base = servers.get("no-op, binary" if binary else _NOOP)
        cells = [
            _cell(figures(server, connections, "rps"), "{:.0f}".format),
            _cell(figures(server, connections, "p50_us"), _ms),
            _cell(figures(server, connections, "p99_us"), _ms),
            f"{sum(figures(server, connections, 'errors')):.0f}",
            _cell(shares(server, base, connections), "{:.2f}".format),
            _cell(shares(server, servers.get(_TAILCUT), connections), "{:.2f}".format),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def _cell(values: list[float], form: Callable[[float], str]) -> str:
    return spread(values, form) if values else ""


def _ms(value_us: float) -> str:
    return f"{value_us / 1000:.2f}"


def _bars(servers: dict[str, Server], bares: list[dict[str, float]]) -> list[str]:
    tailcut, noop = servers.get(_TAILCUT), servers.get(_NOOP)
    if tailcut is None or noop is None or not shares(tailcut, noop, "32"):
        return ["| tailcut and the no-op | not in this run | |"]
    peers = [each for name, each in servers.items() if name not in _OURS and figures(each, "32", "rps")]
    rows = [_least("share of the no-op's req/s at 32, JSON, at least 0.5", shares(tailcut, noop, "32"), 0.5)]
    binary, binary_noop = servers.get("tailcut, binary"), servers.get("no-op, binary")
    if binary is not None and binary_noop is not None:
        rows.append(_least("the same, binary, at least 0.6", shares(binary, binary_noop, "32"), 0.6))
    mosec = [each for each in peers if each["package"] == "mosec"]
    if mosec:
        best = max(mosec, key=lambda each: median(figures(each, "32", "rps")))
        rows.append(
            _least(f"req/s at 32 of the best Mosec's ({best['name']}), above 1", shares(tailcut, best, "32"), 1.0)
        )
    added = [
        own["1"]["p50_us"] - floor["1"]["p50_us"] - bare["decode_us"] - bare["run_us"]
        for own, floor, bare in zip(tailcut["rounds"], noop["rounds"], bares, strict=True)
        if "1" in own and "1" in floor
    ]
    what = "p50 at 1 above no-op + bare decode + bare run, at most 120 us"
    rows.append(f"| {what} | {_cell(added, '{:.0f} us'.format)} | {_said(median(added) <= 120)} |")
    if peers:
        for what, connections, figure in (("p50 at 1", "1", "p50_us"), ("p99 at 32", "32", "p99_us")):
            best = min(peers, key=lambda each: median(figures(each, connections, figure)))
            ratio = shares(tailcut, best, connections, figure)
            text = f"{what} of the best peer's ({best['name']}), at most 1"
            rows.append(f"| {text} | {_cell(ratio, '{:.2f}'.format)} | {_said(median(ratio) <= 1)} |")
    return rows


def _least(what: str, values: list[float], least: float) -> str:
    return f"| {what} | {_cell(values, '{:.2f}'.format)} | {_said(bool(values) and median(values) >= least)} |"


def _said(met: bool) -> str:
    return "yes" if met else "**no**"
