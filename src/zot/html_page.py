"""A conversation as one HTML file: needs nothing else, reads well and prints well. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from typing import Any

from zot.about import changes, summary
from zot.messages import Counters, ShownCall, ShownImage, ShownMessage, ShownResult, TextBlock
from zot.readable import counted, one_line, size, when

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --dim: #777; --accent: #2a6fdb; }
body { font: 16px/1.55 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
header { border-bottom: 1px solid var(--line); margin-bottom: 1.5rem; }
h1 { font-size: 1.3rem; margin: 0 0 .3rem; overflow-wrap: anywhere; }
header p, .time { color: var(--dim); font-size: .85rem; margin: .2rem 0 .8rem; }
.time { float: right; margin: 0; }
section { margin: 1.1rem 0; overflow-wrap: anywhere; }
.user { border-left: 3px solid var(--accent); padding: .1rem 0 .1rem .9rem; background: var(--soft); }
.user { white-space: pre-wrap; }
pre, code { font: .88em/1.45 ui-monospace, monospace; }
pre { background: var(--soft); padding: .6rem .8rem; border-radius: 4px; overflow-x: auto; white-space: pre-wrap; }
details { border: 1px solid var(--line); border-radius: 4px; margin: .5rem 0; padding: .3rem .7rem; }
summary { cursor: pointer; font-family: ui-monospace, monospace; font-size: .88em; overflow-wrap: anywhere; }
.failed summary { color: #c33; }
.add { color: #1a7f37; } .del { color: #c33; }
table { border-collapse: collapse; } td, th { border: 1px solid var(--line); padding: .2rem .6rem; text-align: left; }
blockquote { border-left: 3px solid var(--line); margin-left: 0; padding-left: .9rem; color: var(--dim); }
@media print {
  body { max-width: none; margin: 0; font-size: 10.5pt; }
  details > * { display: block; } details::details-content { content-visibility: visible; }
  pre, details, .user { break-inside: avoid-page; } pre { max-height: none; }
}
""".strip()


def page(title: str, messages: Sequence[ShownMessage], *, model: str = "", usage: Counters | None = None) -> str:
    """Return the page. Whatever was said is text in it: nothing of it can become part of the page."""
    results = {
        block.call_id: block for message in messages for block in message.content if isinstance(block, ShownResult)
    }
    body = "\n".join(part for message in messages for part in _message(message, results))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>\n{_STYLE}\n</style>\n</head>\n<body>\n"
        f"<header><h1>{_text(title)}</h1><p>{_text(_about(messages, model, usage))}</p></header>\n"
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _about(messages: Sequence[ShownMessage], model: str, usage: Counters | None) -> str:
    parts = [model, counted(len(messages), "message")]
    if messages:
        parts.append(f"{when(messages[0].time)} UTC")
    if usage is not None:
        parts.append(f"{usage.input + usage.cache_read + usage.cache_write} tokens in, {usage.output} out")
        if usage.cost is not None:
            parts.append(f"${usage.cost:.4f}")
    return " · ".join(filter(None, parts))


def _message(message: ShownMessage, results: dict[str, ShownResult]) -> Iterator[str]:
    time = f'<span class="time">{_text(when(message.time))}</span>' if message.time else ""
    for block in message.content:
        match block:
            case TextBlock(text=text) if message.role == "user":
                yield f'<section class="user">{time}{_text(text)}</section>'
            case TextBlock(text=text):
                yield f'<section class="{message.role}">{markdown(text)}</section>'
            case ShownImage():
                yield f'<section class="{message.role}"><p>{_image(block)}</p></section>'
            case ShownCall():
                yield _call(block, results.get(block.id))
            case ShownResult():
                pass  # It stands below its call.
        time = ""


def _call(call: ShownCall, result: ShownResult | None) -> str:
    args = call.args or {}
    failed = ' class="failed"' if result is not None and result.is_error else ""
    content = result.content if result is not None else ()
    shown = (_image(one) if isinstance(one, ShownImage) else f"<pre>{_text(one.text)}</pre>" for one in content)
    parts = [*_arguments(args), *shown]
    head = f"<b>{_text(call.name)}</b> {_text(one_line(summary(args), 160))}"
    return f"<details{failed}><summary>{head}</summary>{''.join(parts)}</details>"


def _arguments(args: dict[str, Any]) -> Iterator[str]:
    match args:
        case {"command": str(command)} if "\n" in command.strip():
            yield f"<pre>{_text(command)}</pre>"
        case _:
            kinds = {"+": "add", "-": "del"}
            rows = [f'<span class="{kinds.get(row[:1], "")}">{row}</span>' for row in changes(args, _text)]
            if rows:
                yield f"<pre>{chr(10).join(rows)}</pre>"


def _image(image: ShownImage) -> str:
    return f"[{_text(image.mime_type)}, {size(image.bytes)}]"


def _text(text: str) -> str:
    return escape("".join(one if one in "\n\t" or one.isprintable() else "\ufffd" for one in text))


# Markdown, as much of it as models write.

_FENCE = re.compile(r"^\s{0,3}(`{3,}|~{3,})\s*([\w+-]*)")
_LIST = re.compile(r"^(\s*)(?:([-*+])|(\d+)[.)])\s+(.*)$")
_INLINE = re.compile(
    r"(?P<code>`+)(?P<coded>.+?)(?P=code)|\*\*(?P<bold>.+?)\*\*|(?<![\w*])\*(?P<it>[^*\s][^*]*)\*(?![\w*])"
    r"|\[(?P<label>[^\]]+)\]\((?P<url>https?://[^)\s]+)\)"
)


def markdown(text: str) -> str:
    """Return Markdown as HTML. What it does not know stays text."""
    return "\n".join(_blocks(text.replace("\r\n", "\n").split("\n")))


def _blocks(lines: list[str]) -> Iterator[str]:
    at = 0
    while at < len(lines):
        line = lines[at]
        if not line.strip():
            at += 1
        elif fence := _FENCE.match(line):
            end = next((n for n in range(at + 1, len(lines)) if lines[n].strip().startswith(fence[1])), len(lines))
            yield f"<pre><code>{_text(chr(10).join(lines[at + 1 : end]))}</code></pre>"
            at = end + 1
        elif heading := re.match(r"^(#{1,6})\s+(.*)$", line):
            level = min(6, len(heading[1]) + 1)
            yield f"<h{level}>{_inline(heading[2])}</h{level}>"
            at += 1
        elif re.match(r"^\s*([-*_])(\s*\1){2,}\s*$", line):
            yield "<hr>"
            at += 1
        elif _LIST.match(line):
            items, at = _taken(lines, at, lambda one: bool(_LIST.match(one)) or one.startswith("  "))
            yield _list(items)
        elif line.lstrip().startswith(">"):
            quoted, at = _taken(lines, at, lambda one: one.lstrip().startswith(">"))
            yield f"<blockquote>{markdown(chr(10).join(re.sub(r'^ *> ?', '', one) for one in quoted))}</blockquote>"
        elif line.strip().startswith("|") and at + 1 < len(lines) and re.match(r"^[\s|:-]+$", lines[at + 1]):
            rows, at = _taken(lines, at, lambda one: one.strip().startswith("|"))
            yield _table(rows)
        else:
            paragraph, at = _taken(lines, at, lambda one: bool(one.strip()) and not _begins(one))
            yield f"<p>{'<br>'.join(map(_inline, paragraph))}</p>"


def _begins(line: str) -> bool:
    return bool(_FENCE.match(line) or _LIST.match(line) or re.match(r"^#{1,6}\s", line) or line.startswith(">"))


def _taken(lines: list[str], at: int, goes_on: Any) -> tuple[list[str], int]:
    end = at + 1
    while end < len(lines) and goes_on(lines[end]):
        end += 1
    return lines[at:end], end


def _list(lines: Iterable[str]) -> str:
    items: list[str] = []
    ordered = False
    for line in lines:
        if found := _LIST.match(line):
            ordered = ordered or (not items and found[3] is not None)
            depth = len(found[1]) // 2
            indent = f' style="margin-left:{1.2 * depth:g}em"' if depth else ""
            items.append(f"<li{indent}>{_inline(found[4])}</li>")
        elif items:
            items[-1] = f"{items[-1].removesuffix('</li>')}<br>{_inline(line.strip())}</li>"
    tag = "ol" if ordered else "ul"
    return f"<{tag}>{''.join(items)}</{tag}>"


def _table(rows: list[str]) -> str:
    cells = [[_inline(cell.strip()) for cell in row.strip().strip("|").split("|")] for row in (rows[0], *rows[2:])]
    lines = [f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in row)}</tr>"
             for tag, row in zip(("th", *["td"] * len(cells)), cells, strict=False)]  # fmt: skip
    return f"<table>{''.join(lines)}</table>"


def _inline(text: str) -> str:
    parts, at = [], 0
    for found in _INLINE.finditer(text):
        parts.append(_text(text[at : found.start()]))
        match found.lastgroup:
            case "coded" | "code":
                parts.append(f"<code>{_text(found['coded'])}</code>")
            case "bold":
                parts.append(f"<strong>{_inline(found['bold'])}</strong>")
            case "it":
                parts.append(f"<em>{_inline(found['it'])}</em>")
            case _:
                parts.append(f'<a href="{escape(found["url"])}">{_inline(found["label"])}</a>')
        at = found.end()
    return "".join([*parts, _text(text[at:])])
