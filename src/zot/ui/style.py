"""How a page looks: on a screen, wide or narrow, light or dark, and on paper."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --line: #8886; --soft: #8881; --dim: #6b6b6b; --accent: #2a6fdb; }
:root { --add: #1a7f37; --del: #c62828; }
@media (prefers-color-scheme: dark) {
  :root { --dim: #a0a0a0; --accent: #7aa7f5; --add: #58c472; --del: #f28b82; }
}
body { font: 16px/1.55 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
header { border-bottom: 1px solid var(--line); margin-bottom: 1.5rem; }
h1, h2, h3, h4, h5, h6 { line-height: 1.25; margin: 1.4em 0 .5em; overflow-wrap: anywhere; }
h1 { font-size: 1.35rem; margin: 0 0 .3rem; }
h2 { font-size: 1.25rem; } h3 { font-size: 1.12rem; } h4, h5, h6 { font-size: 1rem; }
header p, time { color: var(--dim); font-size: .85rem; margin: .2rem 0 .8rem; }
time { float: right; margin: 0 0 0 1rem; }
section { margin: 1.1rem 0; overflow-wrap: anywhere; }
.user { border-left: 3px solid var(--accent); padding: .4rem .9rem; background: var(--soft); white-space: pre-wrap; }
.ended { border-left: 3px solid var(--del); padding: 0 .9rem; overflow-wrap: anywhere; }
a { color: var(--accent); }
pre, code { font: .88em/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem .8rem; border-radius: 4px; white-space: pre-wrap; tab-size: 4; }
pre code { font-size: 1em; }
:not(pre) > code { background: var(--soft); border-radius: 3px; padding: .1em .3em; }
details { border: 1px solid var(--line); border-radius: 4px; margin: .5rem 0; padding: .3rem .7rem; }
details { overflow-wrap: anywhere; }
summary { cursor: pointer; font-family: ui-monospace, monospace; font-size: .88em; }
.failed summary, .del, .ended { color: var(--del); } .add { color: var(--add); }
ul, ol { margin: .6em 0; padding-left: 1.8em; } li { margin: .2em 0; } li > ul, li > ol { margin: .1em 0; }
.task { list-style: none; } .task > input { margin: 0 .5em 0 -1.4em; }
.task > input + p { display: inline; }
.table { overflow-x: auto; margin: .8em 0; }
table { border-collapse: collapse; overflow-wrap: normal; }
td, th { border: 1px solid var(--line); padding: .25rem .6rem; text-align: left; vertical-align: top; }
th { background: var(--soft); } .right { text-align: right; } .centre { text-align: center; }
blockquote { border-left: 3px solid var(--line); margin: .8em 0; padding-left: .9rem; color: var(--dim); }
hr { border: 0; border-top: 1px solid var(--line); margin: 1.5em 0; }
@media (max-width: 32rem) {
  body { margin: 1rem auto; } time { float: none; display: block; margin: 0; } ul, ol { padding-left: 1.4em; }
}
@page { margin: 18mm 16mm; @bottom-center { content: counter(page) " / " counter(pages); font: 9pt sans-serif; } }
@media print {
  :root { color-scheme: light; --line: #999; --soft: #f4f4f4; --dim: #555; --accent: #1a4fa0; }
  :root { --add: #1a7f37; --del: #c62828; }
  body { max-width: none; margin: 0; padding: 0; font-size: 10.5pt; orphans: 3; widows: 3; }
  details::details-content { content-visibility: visible; block-size: auto; opacity: 1; }
  pre { border: 1px solid var(--line); } pre, details, .user { box-decoration-break: clone; }
  h1, h2, h3, h4, h5, h6, summary, header { break-after: avoid; }
  tr, li > input { break-inside: avoid; } thead { display: table-header-group; }
  .table { overflow: visible; } table { overflow-wrap: anywhere; }
  a:not(.bare)::after { content: " (" attr(href) ")"; font-size: .85em; color: var(--dim); overflow-wrap: anywhere; }
}
""".strip()
