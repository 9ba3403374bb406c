"""The style sheet of the page: light, dark, narrow, printed. System fonts; nothing is loaded."""

from __future__ import annotations

__all__ = ["STYLE"]

STYLE = """
:root {
  --paper: #ffffff; --ink: #1f2933; --soft: #566370; --grid: #d9dee4; --shade: #f4f6f8;
  --blue: #0072b2; --red: #d55e00; --green: #009e73; --sky: #56b4e9; --orange: #e69f00; --purple: #cc79a7;
  --grey: #8a949e; --good: #00664a; --bad: #a63d00; --link: #005a8e;
  color-scheme: light dark;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --paper: #14191f; --ink: #e6eaee; --soft: #a3afba; --grid: #333d47; --shade: #1d242c;
    --blue: #3d9bd6; --red: #ee7a2a; --green: #22b88d; --sky: #8fd0f7; --orange: #f0b429; --purple: #d990b8;
    --grey: #7b8692; --good: #4fd1a9; --bad: #ff9d5c; --link: #7cc4f2;
  }
}
* { box-sizing: border-box; }
html { -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body {
  margin: 0 auto; max-width: 1100px; padding: 1.5rem 1.25rem 4rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
  overflow-wrap: anywhere;
}
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; margin: 3rem 0 .75rem; padding-top: .6rem; border-top: 2px solid var(--grid); }
h3 { font-size: 1rem; margin: 1.5rem 0 .4rem; }
p, ul { margin: .5rem 0; max-width: 75ch; }
ul { padding-left: 1.2rem; }
a { color: var(--link); }
code, pre { font: .87em/1.45 ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.lead, .note, .kicker, figcaption { color: var(--soft); }
.note { font-size: .85rem; max-width: none; }
nav { margin: 1.75rem 0 0; padding: .6rem .9rem; background: var(--shade); border-radius: 6px; font-size: .92rem; }
nav ol { margin: 0; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; list-style: none; }
.verdict { margin: 1.25rem 0 1rem; padding: .8rem 1rem; background: var(--shade); border-left: 6px solid var(--mark);
  border-radius: 0 6px 6px 0; }
.verdict p { margin: 0; }
.verdict .big + p { margin-top: .35rem; }
.verdict .kicker strong { color: var(--ink); }
.verdict .big { font-size: 1.25rem; font-weight: 600; line-height: 1.35; }
.missing { padding: .6rem .9rem; border: 1px dashed var(--soft); border-radius: 6px; max-width: none; }
.strip { display: flex; height: 1.1rem; margin: 1rem 0 .5rem; border-radius: 4px; overflow: hidden; }
.strip span { min-width: 1px; print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.swatch { display: inline-block; width: .8em; height: .8em; margin-right: .5em; border-radius: 2px;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); gap: .6rem;
  margin: 1.25rem 0 0; }
.tiles div { padding: .6rem .75rem; background: var(--shade); border-radius: 6px; }
.tiles dt { font-size: .85rem; color: var(--soft); }
.tiles dd { margin: 0; font-size: 1.2rem; font-weight: 600; text-align: left; }
.tiles dd.note { font-size: .78rem; font-weight: 400; line-height: 1.35; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); gap: 1.25rem 2rem;
  margin: 1rem 0 1.25rem; }
figure { margin: 0; min-width: 0; max-width: 34rem; break-inside: avoid; }
figure svg { display: block; width: 100%; height: auto; overflow: visible; stroke-linejoin: round;
  print-color-adjust: exact; -webkit-print-color-adjust: exact; }
figcaption { font-size: .85rem; line-height: 1.4; margin-top: .25rem; }
.scroll { overflow-x: auto; margin: .75rem 0 1.25rem; }
table { border-collapse: collapse; font-size: .87rem; line-height: 1.4; min-width: min(100%, 24rem); }
caption { text-align: left; font-weight: 600; padding: 0 0 .3rem; max-width: calc(100vw - 1.8rem); }
th, td { text-align: left; vertical-align: top; padding: .3rem 1.25rem .3rem 0; border-bottom: 1px solid var(--grid);
  overflow-wrap: normal; }
thead th { font-weight: 600; color: var(--soft); vertical-align: bottom; }
tbody th { font-weight: 400; min-width: 8.5rem; }
.equations tbody th { min-width: 12rem; }
th code { white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td.prose { min-width: 17rem; }
td:last-child, th:last-child { padding-right: .25rem; }
td ul { margin: 0; padding-left: 1rem; }
.checks td.prose { min-width: 19rem; }
.good { color: var(--good); font-weight: 600; }
.bad { color: var(--bad); font-weight: 600; }
abbr { font-size: .8em; color: var(--soft); }
pre { margin: .4rem 0 1rem; padding: .7rem .9rem; max-height: 22rem; overflow: auto; background: var(--shade);
  border-radius: 6px; overflow-wrap: normal; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
footer { margin-top: 3rem; color: var(--soft); font-size: .85rem; }
@media (max-width: 600px) {
  body { padding: 1rem .9rem 3rem; }
  h1 { font-size: 1.35rem; }
  h2 { margin-top: 2.25rem; }
  .checks tbody th, .checks td.prose { min-width: 0; }
  figure svg text { font-size: 13px !important; }
  .tiles { grid-template-columns: repeat(2, minmax(0, 1fr)); }
}
@media print {
  @page { margin: 14mm; }
  html { font-size: 10pt; }
  body { max-width: none; padding: 0; font-size: 1rem; }
  nav { display: none; }
  h2, h3, caption { break-after: avoid; }
  h2 { margin-top: 1.5rem; }
  .charts { grid-template-columns: 1fr 1fr; gap: 1rem 1.5rem; }
  .verdict, .tiles, .strip, tr, .scroll { break-inside: avoid; }
  .scroll { overflow: visible; }
  table { font-size: 8pt; }
  th code, .number { white-space: normal; }
  th, td { padding-right: .5rem; }
  td.prose, .checks td.prose, tbody th, .equations tbody th { min-width: 0; }
  pre { max-height: none; overflow: visible; white-space: pre-wrap; overflow-wrap: anywhere; font-size: 7.5pt; }
  a { color: inherit; text-decoration: none; }
}
"""
