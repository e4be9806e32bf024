"""The style sheet of the audit's page: light and dark, one column on a phone, two on a wide screen."""

STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --card: #f5f6f8; --ink: #16191f; --quiet: #535b68; --rule: #d9dde3;
  --main: #164a9c; --second: #b4530a; --third: #4d7c3a; --soft: #5f8fdc; --alert: #fff3d6; --alert-ink: #5c3c00; }
@media (prefers-color-scheme: dark) { :root { --paper: #12151b; --card: #1b2029; --ink: #e8ebf0; --quiet: #a3adbb;
  --rule: #343c49; --main: #7fb0ff; --second: #f2a65e; --third: #9ccf85; --soft: #4a72ad; --alert: #3a2d0d;
  --alert-ink: #ffdf9a; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1.5rem 1rem 3rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: 1rem/1.5 system-ui, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", sans-serif; overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; line-height: 1.3; margin: 0 0 .25rem; }
h2 { font-size: 1.05rem; margin: 0 0 .25rem; }
p { margin: .25rem 0 .75rem; max-width: 46rem; }
.quiet { color: var(--quiet); }
.small { font-size: .875rem; }
.verdict { font-size: 1.1rem; border-left: 4px solid var(--main); padding-left: .75rem; margin: 1rem 0; }
.alert { background: var(--alert); color: var(--alert-ink); padding: .6rem .8rem; border-radius: .4rem; }
.headline { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 10rem), 1fr));
  margin: 1rem 0 1.5rem; padding: 0; list-style: none; }
.headline li { background: var(--card); border-radius: .5rem; padding: .75rem .9rem; }
.headline .name { font-size: .875rem; color: var(--quiet); }
.headline .number { display: block; font-size: 1.6rem; font-weight: 650; font-variant-numeric: tabular-nums; line-height: 1.25; }
.headline .unit { display: block; line-height: 1.3; font-size: .875rem; font-weight: 400; color: var(--quiet); }
.charts { display: grid; gap: 1rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; padding: .9rem; background: var(--card); border-radius: .5rem; min-width: 0; }
figcaption p { font-size: .875rem; color: var(--quiet); margin: 0 0 .5rem; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--quiet); font-size: 11.5px; font-variant-numeric: tabular-nums; }
svg .label { fill: var(--ink); font-size: 12px; }
.rule { stroke: var(--rule); } .axis { stroke: var(--quiet); }
.bar { fill: var(--soft); } .line { fill: none; stroke: var(--main); stroke-width: 2; stroke-linejoin: round; }
.line.second { stroke: var(--second); stroke-dasharray: 6 3; } .line.third { stroke: var(--third); stroke-dasharray: 2 3; }
.dot { fill: var(--main); } .whisker { stroke: var(--main); stroke-width: 1.5; opacity: .75; }
.key { display: flex; flex-wrap: wrap; gap: .25rem 1rem; font-size: .875rem; margin: 0 0 .4rem; padding: 0; list-style: none; }
.key li::before { content: ""; display: inline-block; width: 1.4rem; margin-right: .4rem; vertical-align: middle;
  border-top: 2px solid var(--main); }
.key .bar::before { border-top: .7rem solid var(--soft); } .key .second::before { border-top: 2px dashed var(--second); }
.key .third::before { border-top: 2px dotted var(--third); }
details { margin-top: .5rem; font-size: .875rem; } summary { cursor: pointer; color: var(--quiet); }
.scroll { overflow: auto; max-height: 24rem; white-space: nowrap; overflow-wrap: normal; }
.scroll td:first-child { white-space: normal; overflow-wrap: anywhere; min-width: 9.5rem; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .2rem .5rem; border-bottom: 1px solid var(--rule); font-weight: 400; }
thead th { color: var(--quiet); vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; }
.facts { margin-top: 1.5rem; } .facts td { text-align: left; } .facts th { width: 16rem; color: var(--quiet); vertical-align: top; }
@media (max-width: 30rem) { .facts th { width: 9rem; } svg text, svg .label { font-size: 14px; } }
@media print { body { max-width: none; } figure, .headline li { break-inside: avoid; } }
"""
