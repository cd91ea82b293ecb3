"""Colours of a profile's page: a stage has the same one everywhere, on light and on dark."""

from __future__ import annotations

from tailcut.profiler.records import Stage
from tailcut.report import style

STAGE_COLOURS: dict[Stage, str] = {
    Stage.NETWORK: "#8da2b5",
    Stage.ACCEPT: "#b6a4d8",
    Stage.RECEIVE: "#a9bcc7",
    Stage.DECODE: "#efc35b",
    Stage.SQL: "#3f76b0",
    Stage.CACHE: "#55b0a6",
    Stage.HTTP: "#2f8f6b",
    Stage.PREPROCESS: "#c26a8a",
    Stage.MODEL: "#d9534f",
    Stage.CODE: "#ef8b2c",
    Stage.FRAMEWORK: "#b9a798",
    Stage.ENCODE: "#c9a227",
    Stage.WAIT: "#a8709c",
    Stage.LOCK: "#7d4a8d",
    Stage.LOOP: "#cf6a94",
    Stage.GC: "#5f6fb5",
    Stage.UNATTRIBUTED: "#c3c8cd",
}

_RULES = "".join(f".st-{stage}{{fill:{colour}}}" for stage, colour in STAGE_COLOURS.items())
_DARK = (Stage.SQL, Stage.HTTP, Stage.PREPROCESS, Stage.MODEL, Stage.LOCK, Stage.GC, Stage.WAIT, Stage.CACHE)
"""Letters on these are white."""
_FRAMES = ("#f0a868", "#eeb87f", "#e8985a", "#f2c28f")

CSS = f"""{style.CSS}
{_RULES}
{"".join(f".fr{place}{{fill:{colour}}}" for place, colour in enumerate(_FRAMES))}
.root {{ fill:var(--line) }}
.hover {{ fill:transparent }}
.hover:hover {{ fill:var(--ink); fill-opacity:.12 }}
.frame rect {{ stroke:var(--card); stroke-width:.8 }}
.frame:hover rect {{ fill-opacity:.72 }}
svg .frame text {{ font-size:11.5px; fill:#1c1a17; pointer-events:none }}
svg .frame .root-text {{ fill:var(--ink) }}
{"".join(f".frame .st-{stage} + text{{fill:#fff!important}}" for stage in _DARK)}
.bottleneck {{ font-size:18px; line-height:1.45; color:var(--ink); margin:0 0 6px }}
.bad {{ color:{style.SLOWER} }} .good {{ color:{style.FASTER} }}
@media (prefers-color-scheme: dark) {{
  .bad {{ color:#f1857a }} .good {{ color:#6fcf97 }}
  svg .limit {{ stroke:#c99be0 }} svg .limit-name {{ fill:#c99be0 }}
}}
td.words, th.words {{ text-align:left }}
td.words {{ white-space:normal; overflow-wrap:anywhere; min-width:120px }}
td.words:first-child {{ white-space:nowrap; min-width:0 }}
td.more {{ color:var(--soft); padding-left:26px }}
td.cell {{ width:24%; min-width:120px }}
td.cell span {{ display:block; height:11px; border-radius:3px; min-width:1px }}
.whole td {{ font-weight:600 }}
section h3 + p {{ color:var(--soft); font-size:13px; margin:0 0 8px }}
.note {{ color:var(--soft); font-size:12.5px; margin:8px 0 0 }}
ol {{ margin:0 0 12px; padding-left:20px }}
{"".join(f".bg-{stage}{{background:{colour}}}" for stage, colour in STAGE_COLOURS.items())}
"""
