"""Colours of charts, and the style sheet of pages."""

from __future__ import annotations

INK, SOFT, LINE = "#1c2833", "#5d6d7e", "#e3e8ec"
"""Of text and lines in charts; a page replaces them by its own, which follow the reader's light or dark scheme."""

PERCENTILE_COLOURS = {"p50": "#7fb3d5", "p95": "#1f618d", "p99": "#d35400"}
STAGE_COLOURS = (
    "#4e79a7", "#a0cbe8", "#f28e2b", "#ffbe7d", "#59a14f", "#8cd17d", "#b6992d", "#499894", "#e15759", "#b07aa1",
    "#79706e", "#d7b5a6",
)  # fmt: skip
BAR, FASTER, SLOWER, UNCLEAR, LIMIT = "#2e75b6", "#2e8b57", "#c0392b", "#b8c0c8", "#9b59b6"

_STAGE_RULES = "".join(f".s{index}{{fill:{colour}}}" for index, colour in enumerate(STAGE_COLOURS))
_PERCENTILE_RULES = "".join(f".{name}{{fill:{colour};stroke:{colour}}}" for name, colour in PERCENTILE_COLOURS.items())

CSS = f"""
:root {{ --ink:{INK}; --soft:{SOFT}; --line:{LINE}; --page:#f6f8fa; --card:#fff; }}
@media (prefers-color-scheme: dark) {{
  :root {{ --ink:#e8edf2; --soft:#9aa7b4; --line:#2e3842; --page:#14191f; --card:#1c232b; }}
}}
* {{ box-sizing:border-box }}
body {{ margin:0; background:var(--page); color:var(--ink);
  font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif }}
main {{ max-width:1180px; margin:0 auto; padding:32px 24px 64px }}
h1 {{ font-size:26px; margin:0 0 4px }}
h2 {{ font-size:18px; margin:0 0 4px }}
h3 {{ font-size:14px; margin:18px 0 2px }}
section > ul {{ margin-top:16px }}
.lead {{ color:var(--soft); margin:0 0 24px }}
.tiles {{ display:flex; gap:16px; flex-wrap:wrap; margin:0 0 24px }}
.tile {{ flex:1 1 220px; background:var(--card); border:1px solid var(--line); border-radius:10px; padding:14px 18px }}
.tile b {{ display:block; font-size:26px; line-height:1.2 }}
.tile span {{ color:var(--soft); font-size:13px }}
section {{ background:var(--card); border:1px solid var(--line); border-radius:10px; padding:20px 24px;
  margin:0 0 20px }}
section > p {{ color:var(--soft); margin:0 0 10px; font-size:13px }}
svg {{ width:100%; height:auto; display:block }}
svg text {{ font:13px system-ui,sans-serif; fill:var(--ink); stroke:none }}
svg .name {{ text-anchor:end }}
svg .tick {{ text-anchor:middle; fill:var(--soft); font-size:12px }}
svg .unit, svg .note {{ fill:var(--soft); font-size:12px }}
svg .warn {{ fill:{SLOWER} }}
svg .grid {{ stroke:var(--line) }}
svg .link {{ stroke:var(--line); stroke-width:4 }}
svg .spread {{ stroke-width:2; fill:none }}
svg .limit {{ stroke:{LIMIT}; stroke-dasharray:5 4; stroke-width:1.5 }}
svg .limit-name {{ fill:{LIMIT}; font-size:12px }}
svg circle {{ stroke:var(--card); stroke-width:1.5 }}
.bar {{ fill:{BAR} }} .faster {{ fill:{FASTER} }} .slower {{ fill:{SLOWER} }} .unclear {{ fill:{UNCLEAR} }}
{_STAGE_RULES}{_PERCENTILE_RULES}
.legend {{ display:flex; flex-wrap:wrap; gap:4px 16px; font-size:13px; color:var(--soft); margin:0 0 6px }}
.legend i {{ display:inline-block; width:11px; height:11px; border-radius:3px; margin-right:6px; vertical-align:-1px }}
.scroll {{ overflow-x:auto }}
table {{ border-collapse:collapse; width:100%; font-size:13px; font-variant-numeric:tabular-nums }}
th, td {{ text-align:right; padding:7px 10px; border-bottom:1px solid var(--line); white-space:nowrap }}
th {{ color:var(--soft); font-weight:600 }}
th:first-child, td:first-child {{ text-align:left; font-weight:600 }}
.words {{ text-align:left }}
td.words {{ white-space:normal; overflow-wrap:anywhere; min-width:110px }}
.note {{ color:var(--soft); font-size:12.5px; margin:8px 0 0 }}
td.why {{ text-align:left; white-space:normal; color:var(--soft) }}
td:empty::after {{ content:"" }}
ul {{ margin:0; padding-left:18px; font-size:13px }}
code {{ font:12px ui-monospace,Menlo,Consolas,monospace; overflow-wrap:anywhere }}
details summary {{ cursor:pointer; color:var(--soft); font-size:13px }}
dl {{ display:grid; grid-template-columns:max-content 1fr; gap:2px 16px; font-size:13px; margin:0 }}
dt {{ color:var(--soft) }} dd {{ margin:0 }}
"""
