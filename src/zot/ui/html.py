"""A conversation as one self-contained HTML file. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from html import escape, unescape
from html.entities import html5
from typing import Any, TypeAlias

import msgspec

from zot.messages import Counters, PastMessage, ShownCall, ShownImage, ShownMessage, ShownResult, TextBlock
from zot.text import escaped
from zot.ui.readable import counted, diff_lines, format_size, format_time, one_line, stop_note, summary

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


#: Links to other schemes are shown as text.
_SCHEMES = ("http://", "https://", "mailto:")
#: Nested emphasis beyond this depth is shown as text.
_MAX_INLINE_DEPTH = 8
#: Punctuation that ends a sentence and not the URL before it.
_AFTER_URL = ".,;:!?*_~'\""

_INLINE = re.compile(
    r"""
      \\(?P<escaped>[!-/:-@\[-`{-~])
    | (?<!`)(?P<ticks>`+)(?!`)(?P<code>.+?)(?<!`)(?P=ticks)(?!`)
    | <(?P<angled>(?:https?://|mailto:)[^\s<>]+)>
    | !?\[(?P<label>(?:[^\[\]`\\]|\\.|`[^`]{1,200}`|\[[^\[\]]{0,200}\])+)\]
      \([ ]*(?P<url><[^<>\n]*>|(?:[^\s()\\]|\\.|\([^\s()]*\))+)(?:\s+(?:"[^"]*"|'[^']*'))?[ ]*\)
    | \*\*(?=\S)(?P<strong>(?:(?!\*\*(?!\*)).)+)(?<=\S)\*\*(?!\*)
    | (?<!\w)__(?=\S)(?P<strong_>(?:(?!__).)+)(?<=\S)__(?!\w|\.\w)
    | ~~(?=\S)(?P<del>(?:(?!~~).)+)(?<=\S)~~
    | (?<![\w*])\*(?=[^\s*])(?P<em>(?:[^*\\]|\\.|\*\*(?:(?!\*\*).)+\*\*)+)(?<=\S)\*(?![\w*])
    | (?<!\w)_(?=[^\s_])(?P<em_>[^_]+)(?<=\S)_(?!\w)
    | (?<!\w)(?P<bare>https?://(?:[^\s<>"`()\[\]|]|\([^\s()<>]*\))+)
    | (?P<entity>&(?:\#\d{1,7}|\#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,30});)
    | (?P<newline>\\?\n)
    """,
    re.VERBOSE | re.DOTALL,
)

RULE = re.compile(r" {0,3}([-*_])(?:[ \t]*\1){2,}[ \t]*$")

_ITEM = re.compile(r"([ \t]*)([-*+]|\d{1,9}[.)])(?:([ \t]+)(.*)|$)")
_TASK = re.compile(r"\[([ xX])\][ \t]+(?=\S)")
_BOX = '<input type="checkbox" disabled>'
_TICKED = '<input type="checkbox" checked disabled>'

_DELIMITER_ROW = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(?:\|[ \t]*:?-+:?[ \t]*)*\|?")
_PIPE = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)")


def escaped_html(text: str) -> str:
    """Return ``text`` escaped for HTML, with invisible characters written as escapes."""
    return escape(escaped(text))


def inline_markdown(text: str, depth: int = 0) -> str:
    """Return inline Markdown as HTML. Unrecognised syntax stays text."""
    if depth == _MAX_INLINE_DEPTH:
        return escaped_html(text)
    parts, at = [], 0
    for found in _INLINE.finditer(text):
        parts += [escaped_html(text[at : found.start()]), _inline(found, depth + 1)]
        at = found.end()
    return "".join([*parts, escaped_html(text[at:])])


def _inline(found: re.Match[str], depth: int) -> str:
    kind = found.lastgroup or ""
    text = found[kind]
    match kind:
        case "escaped":
            return escaped_html(text)
        case "code":
            return f"<code>{escaped_html(_code(text))}</code>"
        case "angled":
            return _link(text, escaped_html(text.removeprefix("mailto:")), "bare")
        case "url":
            return _labelled_link(found["label"], text, depth)
        case "bare":
            return _bare_link(text)
        case "entity":
            return escaped_html(unescape(text) if text[1] == "#" or text[1:] in html5 else text)
        case "newline":
            return "<br>"
        case _:
            tag = kind.rstrip("_")
            return f"<{tag}>{inline_markdown(text, depth)}</{tag}>"


def _code(text: str) -> str:
    text = text.replace("\n", " ")
    return text[1:-1] if text[0] == text[-1] == " " and text.strip() else text


def _labelled_link(label: str, url: str, depth: int) -> str:
    """Return a link if its scheme is allowed, else its label and URL as text."""
    url = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", url[1:-1] if url[0] == "<" and url[-1] == ">" else url)
    text = inline_markdown(label, depth)
    if url.lower().startswith(_SCHEMES):
        return _link(url, text, "bare" if label == url else "")
    return text if label.strip("`") == url else f"{text} ({escaped_html(url)})"


def _bare_link(text: str) -> str:
    url = text.rstrip(_AFTER_URL)
    return _link(url, escaped_html(url), "bare") + escaped_html(text[len(url) :])


def _link(url: str, label: str, kind: str) -> str:
    """Return a link. Print shows its URL after it, unless it is of kind ``bare``: the label is the URL."""
    name = f' class="{kind}"' if kind else ""
    return f'<a{name} href="{escaped_html(url)}" rel="noopener noreferrer">{label}</a>'


class HtmlBlock(msgspec.Struct):
    """An HTML element. ``is_apart``: a blank line follows. ``attributes`` start with a space."""

    tag: str
    inner: str
    is_apart: bool = False
    attributes: str = ""

    @property
    def whole(self) -> str:
        return f"<{self.tag}{self.attributes}>{self.inner}</{self.tag}>" if self.tag != "hr" else "<hr>"


def indent_of(line: str) -> int:
    """Return the width of a line's leading white space, a tab counting as four columns."""
    return sum(4 if one == "\t" else 1 for one in line[: len(line) - len(line.lstrip(" \t"))])


def dedented(line: str, columns: int) -> str:
    """Return a line without its first ``columns`` columns of white space, or as many as it has."""
    at = 0
    while columns > 0 and at < len(line) and line[at] in " \t":
        columns -= 4 if line[at] == "\t" else 1
        at += 1
    return " " * -columns + line[at:]


def next_nonblank(lines: list[str], at: int) -> int:
    """Return the index of the next line that is not blank, or the end."""
    while at < len(lines) and not lines[at].strip():
        at += 1
    return at


class _Item(msgspec.Struct):
    """The lines of a list item, and the index of the line after it."""

    body: list[str]
    end: int


def begins_item(line: str, *, within_text: bool = False) -> bool:
    """True if a list item begins here. ``within_text`` only counts markers that may interrupt a paragraph."""
    found = _ITEM.match(line)
    if found is None or indent_of(line) > 3:
        return False
    return not within_text or ((found[2] in "-*+" or found[2][:-1] == "1") and bool(found[4]))


def read_list(
    lines: list[str], at: int, inner: Callable[[list[str]], list[HtmlBlock]], starts: Callable[[str], bool]
) -> tuple[HtmlBlock, int]:
    """Return a list, and the index of the line after it.

    ``inner`` parses an item's lines into blocks; ``starts`` tells whether a line begins a new block.
    """
    mark = _mark(lines[at])
    items: list[_Item] = []
    first, end, has_room = at, at, False
    while at < len(lines) and _mark(lines[at]) == mark:
        items.append(_item(lines, at, starts))
        end = items[-1].end
        at = next_nonblank(lines, end)
        has_room = has_room or (at > end and at < len(lines) and _mark(lines[at]) == mark)
    tasks = [_TASK.match(item.body[0]) for item in items]
    made = [inner([item.body[0][task.end() if task else 0 :], *item.body[1:]])
            for item, task in zip(items, tasks, strict=True)]  # fmt: skip
    has_room = has_room or any(block.is_apart for blocks in made for block in blocks[:-1])
    points = (_item_html(blocks, task, has_room=has_room) for blocks, task in zip(made, tasks, strict=True))
    number = "" if mark in "-*+" else lines[first].split(mark)[0].strip().lstrip("0") or "0"
    start = f' start="{number}"' if number not in ("", "1") else ""
    return HtmlBlock("ol" if number else "ul", "".join(points), attributes=start), end


def _mark(line: str) -> str:
    """Return the marker character that the items of one list share; "" if none begins here."""
    found = _ITEM.match(line)
    return found[2][-1] if found and not RULE.match(line) else ""


def _item(lines: list[str], at: int, starts: Callable[[str], bool]) -> _Item:
    found = _ITEM.match(lines[at])
    assert found is not None
    own, blanks = indent_of(lines[at]), len(found[3] or "")
    column = own + len(found[2]) + (blanks if 1 <= blanks <= 4 else 1)
    item = _Item([found[4] or ""], at + 1)
    while (at := next_nonblank(lines, item.end)) < len(lines):
        line = lines[at]
        if indent_of(line) >= min(column, own + 2):  # Two columns are common below a number, too.
            item.body += [*[""] * (at - item.end), dedented(line, column)]
        elif at == item.end and item.body[-1].strip() and not starts(line) and not _mark(line):
            item.body.append(line.strip())  # A paragraph continued without indentation.
        else:
            break
        item.end = at + 1
    return item


def _item_html(blocks: Sequence[HtmlBlock], task: re.Match[str] | None, *, has_room: bool) -> str:
    parts = [block.inner if block.tag == "p" and not has_room else block.whole for block in blocks]
    if task is None:
        return f"<li>{''.join(parts)}</li>"
    return f'<li class="task">{_BOX if task[1] == " " else _TICKED}{"".join(parts)}</li>'


def begins_table(lines: list[str], at: int) -> bool:
    """True if a table's header is at ``at``, with the delimiter row below it."""
    if at + 1 >= len(lines) or "|" not in lines[at] or "|" not in lines[at + 1]:
        return False
    rule = lines[at + 1].strip()
    return _DELIMITER_ROW.fullmatch(rule) is not None and len(_cells(lines[at])) == len(_cells(rule))


def read_table(lines: list[str], at: int) -> tuple[HtmlBlock, int]:
    """Return a table, and the index of the line after it."""
    head, sides = _cells(lines[at]), [_side(cell) for cell in _cells(lines[at + 1])]
    end = at + 2
    while end < len(lines) and "|" in lines[end]:
        end += 1
    rows = "".join(_row(_cells_of(line, len(head)), sides, "td") for line in lines[at + 2 : end])
    body = f"<tbody>{rows}</tbody>" if rows else ""
    table = f"<table><thead>{_row(head, sides, 'th')}</thead>{body}</table>"
    return HtmlBlock("div", table, attributes=' class="table"'), end


def _cells(row: str) -> list[str]:
    cells = _PIPE.split(row.strip())
    if not cells[0]:
        del cells[0]
    if len(cells) > 1 and not cells[-1].strip():
        del cells[-1]
    return [cell.strip().replace("\\|", "|") for cell in cells]


def _cells_of(row: str, count: int) -> list[str]:
    """Return a row's cells, as many as the header has; surplus cells are joined into the last one."""
    cells = _cells(row)
    if len(cells) > count:  # Models often forget that a bar within code ends a cell.
        cells = _cells(_CODE.sub(lambda code: _PIPE.sub(r"\\|", code[0]), row))
    cells += [""] * (count - len(cells))
    return [*cells[: count - 1], " | ".join(cells[count - 1 :])]


def _side(cell: str) -> str:
    match cell[:1], cell[-1:]:
        case ":", ":":
            return ' class="centre"'
        case _, ":":
            return ' class="right"'
        case _:
            return ""


def _row(cells: list[str], sides: list[str], tag: str) -> str:
    made = (f"<{tag}{side}>{inline_markdown(cell)}</{tag}>" for cell, side in zip(cells, sides, strict=True))
    return f"<tr>{''.join(made)}</tr>"


#: Lists and quotes nested deeper than this are shown as text.
_MAX_BLOCK_DEPTH = 24

_FENCE = re.compile(r"( {0,3})(`{3,}(?=[^`]*$)|~{3,})")
_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*)|$)")
_QUOTE = re.compile(r" {0,3}>[ \t]?")
_UNDERLINE = re.compile(r" {0,3}(=+|-+)[ \t]*$")

#: A block that begins at a line, and the index of the line after it; None if it does not begin there.
_Read: TypeAlias = tuple[HtmlBlock, int] | None


def markdown(text: str) -> str:
    return "\n".join(block.whole for block in _blocks(text.replace("\r\n", "\n").split("\n"), 0))


def _blocks(lines: list[str], depth: int) -> Iterator[HtmlBlock]:
    at = next_nonblank(lines, 0)
    while at < len(lines):
        block, end = next(filter(None, (read(lines, at, depth) for read in _READERS)))
        yield block
        at = next_nonblank(lines, end)
        block.is_apart = at > end


def _fence(lines: list[str], at: int, depth: int) -> _Read:
    fence = _FENCE.match(lines[at])
    if fence is None:
        return None
    end = at + 1
    while end < len(lines) and not _closes(lines[end], fence[2]):
        end += 1
    code = "\n".join(dedented(line, len(fence[1])) for line in lines[at + 1 : end])
    return _code_block(code), end + 1


def _closes(line: str, fence: str) -> bool:
    mark = line.strip()
    return len(mark) >= len(fence) and not mark.strip(fence[0]) and indent_of(line) < 4


def _indented(lines: list[str], at: int, depth: int) -> _Read:
    if indent_of(lines[at]) < 4:
        return None
    end = at
    while end < len(lines) and (not lines[end].strip() or indent_of(lines[end]) >= 4):
        end += 1
    return _code_block("\n".join(dedented(line, 4) for line in lines[at:end]).rstrip()), end


def _code_block(code: str) -> HtmlBlock:
    return HtmlBlock("pre", f"<code>{escaped_html(code)}</code>")


def _heading(lines: list[str], at: int, depth: int) -> _Read:
    heading = _HEADING.match(lines[at])
    if heading is None:
        return None
    text = (heading[2] or "").strip()
    bare = text.rstrip("#")
    return _heading_block(len(heading[1]), bare.rstrip() if not bare or bare[-1] in " \t" else text), at + 1


def _heading_block(level: int, text: str) -> HtmlBlock:
    return HtmlBlock(f"h{min(6, level + 1)}", inline_markdown(text))  # The page's title is the only h1.


def _rule(lines: list[str], at: int, depth: int) -> _Read:
    return (HtmlBlock("hr", ""), at + 1) if RULE.match(lines[at]) else None


def _list(lines: list[str], at: int, depth: int) -> _Read:
    if depth == _MAX_BLOCK_DEPTH or not begins_item(lines[at]):
        return None
    return read_list(lines, at, lambda body: [*_blocks(body, depth + 1)], _starts)


def _quote(lines: list[str], at: int, depth: int) -> _Read:
    if depth == _MAX_BLOCK_DEPTH or not _QUOTE.match(lines[at]):
        return None
    end = at
    while end < len(lines) and _QUOTE.match(lines[end]):
        end += 1
    quoted = [_QUOTE.sub("", line, count=1) for line in lines[at:end]]
    return HtmlBlock("blockquote", "".join(block.whole for block in _blocks(quoted, depth + 1))), end


def _table(lines: list[str], at: int, depth: int) -> _Read:
    return read_table(lines, at) if begins_table(lines, at) else None


def _paragraph(lines: list[str], at: int, depth: int) -> tuple[HtmlBlock, int]:
    end = at + 1
    while end < len(lines) and lines[end].strip():
        if underline := _UNDERLINE.match(lines[end]):
            return _heading_block(1 if underline[1][0] == "=" else 2, _joined(lines[at:end])), end + 1
        if _starts(lines[end]) or begins_table(lines, end):
            break
        end += 1
    return HtmlBlock("p", inline_markdown(_joined(lines[at:end]))), end


def _joined(lines: list[str]) -> str:
    return "\n".join(line.strip() for line in lines)


def _starts(line: str) -> bool:
    """True if this line interrupts a paragraph."""
    if _FENCE.match(line) or _HEADING.match(line) or RULE.match(line) or _QUOTE.match(line):
        return True
    return begins_item(line, within_text=True)


_READERS: tuple[Callable[[list[str], int, int], _Read], ...] = (
    _fence, _indented, _heading, _rule, _list, _quote, _table, _paragraph,
)  # fmt: skip


#: Nothing is loaded and no script runs, whatever the messages contain.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"


def page(title: str, messages: Sequence[ShownMessage], *, model: str = "", usage: Counters | None = None) -> str:
    """Return the page. All content is escaped, so that no message can add markup to it.

    Marks how a run ended where the messages know it.
    """
    results = {
        block.call_id: block for message in messages for block in message.content if isinstance(block, ShownResult)
    }
    body = "\n".join(part for message in messages for part in _message(message, results))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped_html(one_line(title))}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
        f'<header><h1 dir="auto">{escaped_html(title)}</h1>'
        f"<p>{escaped_html(_about(messages, model, usage))}</p></header>\n"
        f"<main>\n{body}\n</main>\n</body>\n</html>\n"
    )


def _about(messages: Sequence[ShownMessage], model: str, usage: Counters | None) -> str:
    parts = [model, counted(len(messages), "message")]
    if messages:
        parts.append(f"{format_time(messages[0].time)} UTC")
    if usage is not None:
        parts.append(f"{usage.input + usage.cache_read + usage.cache_write} tokens in, {usage.output} out")
        if usage.cost is not None:
            parts.append(f"${usage.cost:.4f}")
    return " · ".join(filter(None, parts))


def _message(message: ShownMessage, results: dict[str, ShownResult]) -> Iterator[str]:
    said_at = f"<time>{escaped_html(format_time(message.time))}</time>" if message.time else ""
    for block in message.content:
        match block:
            case TextBlock(text=text) if message.role == "user":
                yield f'<section class="user" aria-label="user" dir="auto">{said_at}{escaped_html(text)}</section>'
            case TextBlock(text=text):
                yield f'<section class="{message.role}" dir="auto">{markdown(text)}</section>'
            case ShownImage():
                yield f'<section class="{message.role}">{_image(block)}</section>'
            case ShownCall():
                yield _call(block, results.get(block.id))
            case ShownResult():
                pass  # `_call` shows it with its call.
        said_at = ""
    if isinstance(message, PastMessage) and (mark := stop_note(message.stop, message.error)):
        yield f'<p class="ended" dir="auto">{escaped_html(mark)}</p>'


def _call(call: ShownCall, result: ShownResult | None) -> str:
    """Return a tool call as an element that is folded on screen and open in print."""
    args = call.args or {}
    failed = ' class="failed"' if result is not None and result.is_error else ""
    content = result.content if result is not None else ()
    shown = (_image(one) if isinstance(one, ShownImage) else f"<pre>{escaped_html(one.text)}</pre>" for one in content)
    about = summary(args)
    head = one_line(about, 160)
    below = "".join([*_arguments(args, is_named=head == about), *shown])
    return f"<details{failed}><summary><b>{escaped_html(call.name)}</b> {escaped_html(head)}</summary>{below}</details>"


def _arguments(args: dict[str, Any], *, is_named: bool) -> Iterator[str]:
    """Yield the arguments of a call; ``is_named`` if the heading already shows its summary in full."""
    kinds = {"+": "add", "-": "del"}
    rows = [f'<span class="{kinds.get(row[:1], "")}">{row}</span>' for row in diff_lines(args, escaped_html)]
    told = {"edits", "content"} if rows else set()
    match args:
        case {"command": str(command)}:
            told.add("command")
            if not is_named:
                yield f"<pre>{escaped_html(command)}</pre>"
        case {"path": str()}:
            told |= {"path"} if is_named else set()
        case _:
            told |= args.keys() if is_named else set()
    if rows:
        yield f"<pre>{chr(10).join(rows)}</pre>"
    if rest := {name: value for name, value in args.items() if name not in told}:
        yield f"<pre>{escaped_html(msgspec.json.format(msgspec.json.encode(rest), indent=2).decode())}</pre>"


def _image(image: ShownImage) -> str:
    return f"[{escaped_html(image.mime_type)}, {format_size(image.bytes)}]"
