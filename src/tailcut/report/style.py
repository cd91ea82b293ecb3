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

STAGES = {
    "network": "#8da2b5", "accept": "#b6a4d8", "receive": "#a9bcc7", "decode": "#efc35b", "sql": "#3f76b0", "cache":
    "#55b0a6", "http": "#2f8f6b", "preprocess": "#c26a8a", "model": "#d9534f", "code": "#ef8b2c", "framework":
    "#b9a798", "encode": "#c9a227", "wait": "#a8709c", "lock": "#7d4a8d", "loop": "#cf6a94", "gc": "#5f6fb5",
    "unattributed": "#c3c8cd",
}  # fmt: skip
"""Stages of a profile, the same colour everywhere, on light and on dark."""

_FLAMES = ("#f0a868", "#eeb87f", "#e8985a", "#f2c28f")
_DARK = ("sql", "http", "preprocess", "model", "lock", "gc", "wait", "cache")
"""Letters on these are white."""
_FILLS = {
    **{f"st-{name}": colour for name, colour in STAGES.items()},
    **{f"fr{place}": colour for place, colour in enumerate(_FLAMES)},
}

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
.lead, section > p {{ color:var(--soft); margin:0 0 16px }}
.tiles {{ display:flex; gap:16px; flex-wrap:wrap; margin:0 0 24px }}
.tile {{ flex:1 1 220px; background:var(--card); border:1px solid var(--line); border-radius:10px; padding:14px 18px }}
.tile b {{ display:block; font-size:26px; line-height:1.2 }}
.tile span, .note, section > p {{ color:var(--soft); font-size:13px }}
section {{ background:var(--card); border:1px solid var(--line); border-radius:10px; padding:20px 24px;
  margin:0 0 20px }}
svg {{ width:100%; height:auto; display:block; margin:0 0 12px }}
.scroll {{ overflow-x:auto }}
table {{ border-collapse:collapse; width:100%; font-size:13px; font-variant-numeric:tabular-nums }}
th, td {{ text-align:right; padding:7px 10px; border-bottom:1px solid var(--line); white-space:nowrap }}
th {{ color:var(--soft) }}
.words {{ text-align:left }}
td.words {{ white-space:normal; overflow-wrap:anywhere; min-width:110px }}
ul {{ margin:16px 0 0; padding-left:18px; font-size:13px; overflow-wrap:anywhere }}
{"".join(f".{name}{{fill:{colour}}}" for name, colour in _FILLS.items())}
.root {{ fill:var(--line) }}
.frame rect {{ stroke:var(--card); stroke-width:.8 }}
.frame:hover rect {{ fill-opacity:.72 }}
.frame text {{ font:11.5px system-ui,sans-serif; fill:#1c1a17; pointer-events:none }}
.frame .root-text {{ fill:var(--ink) }}
{"".join(f".frame .st-{name} + text{{fill:#fff}}" for name in _DARK)}
"""
