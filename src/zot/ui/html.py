"""A conversation as one self-contained HTML file. Does no I/O."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import msgspec

from zot.errors import ExtraMissing
from zot.messages import Counters, PastMessage, ShownCall, ShownImage, ShownMessage, ShownResult, TextBlock
from zot.text import escaped
from zot.ui.readable import counted, diff_lines, format_size, format_time, one_line, stop_note, summary

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.token import Token

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


#: Other links are shown as they were written.
_SCHEMES = ("http://", "https://", "mailto:")
#: Markdown nested deeper than this is shown as it was written: the parser drops what is inside.
_MAX_NESTING = 100
#: URLs in plain text. linkify-it-py would find more, in time quadratic in the length of the text.
_BARE_URL = re.compile(r"(?<!\w)https?://(?:[^\s<>\"`()\[\]|]|\([^\s()<>]*\))+")
#: Punctuation that ends a sentence and not the URL before it.
_AFTER_URL = ".,;:!?*_~'\""
_TASK = re.compile(r"\[([ xX])\][ \t]+(?=\S)")
#: Elements that are written as the parser names them. All others are known to `_html` or left out.
_PLAIN_TAGS = frozenset({"blockquote", "em", "li", "ol", "p", "strong", "tbody", "td", "th", "thead", "tr", "ul"})
_SIDES = {"text-align:right": ' class="right"', "text-align:center": ' class="centre"'}


def escaped_html(text: str) -> str:
    """Return ``text`` escaped for HTML, with invisible characters written as escapes."""
    return escape(escaped(text))


def markdown(text: str) -> str:
    """Return Markdown as HTML. Raw HTML stays text, and so do links to other schemes than http, https and mailto.

    Raise ConfigError if the parser is not installed.
    """
    tokens = _parser().parse(text)
    if any(token.level >= _MAX_NESTING - 1 for token in tokens):
        return f"<pre>{escaped_html(text)}</pre>"
    _mark_tasks(tokens)
    return "".join(_html(tokens)).rstrip("\n")


def _parser() -> MarkdownIt:
    try:  # Imported lazily: an extra, and slow to load.
        from markdown_it import MarkdownIt
    except ImportError:
        raise ExtraMissing("an HTML page needs the package markdown-it-py", "html") from None
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_NESTING})
    parser.enable(["table", "strikethrough"]).disable(["html_block", "html_inline"])
    parser.validateLink = lambda url: url.lower().startswith(_SCHEMES)  # type: ignore[method-assign]  # Its documented hook.
    return parser


def _mark_tasks(tokens: Sequence[Token]) -> None:
    """Note at each item of a task list whether it is done, and take the box out of its text."""
    for item, _, inline in zip(tokens, tokens[1:], tokens[2:], strict=False):
        words = inline.children if item.type == "list_item_open" and inline.type == "inline" else None
        if words and words[0].type == "text" and (task := _TASK.match(words[0].content)):
            item.meta["done"] = task[1] != " "
            words[0].content = words[0].content[task.end() :]


def _html(tokens: Sequence[Token]) -> Iterator[str]:
    is_linked = False
    for token in tokens:
        match token.type:
            case "inline":
                yield from _html(token.children or ())
            case "text":
                yield escaped_html(token.content) if is_linked else _with_links(token.content)
            case "code_inline":
                yield f"<code>{escaped_html(token.content)}</code>"
            case "fence" | "code_block":
                yield f"<pre><code>{escaped_html(token.content.removesuffix(chr(10)))}</code></pre>"
            case "softbreak" | "hardbreak":
                yield "<br>"
            case "hr":
                yield "<hr>"
            case "image":  # Nothing is loaded: its description leads to it.
                url = str(token.attrs.get("src", ""))
                yield f"{_link_start(url, is_bare=token.content == url)}{escaped_html(token.content)}</a>"
            case "link_open":
                is_linked = True
                yield _link_start(str(token.attrs.get("href", "")), is_bare=token.markup == "autolink")
            case "link_close":
                is_linked = False
                yield "</a>"
            case "heading_open" | "heading_close":
                level = min(6, int(token.tag[1]) + 1)  # The page's title is the only h1.
                yield f"<h{level}>" if token.nesting == 1 else f"</h{level}>"
            case "s_open":
                yield "<del>"
            case "s_close":
                yield "</del>"
            case "table_open":
                yield '<div class="table"><table>'
            case "table_close":
                yield "</table></div>"
            case _ if token.tag in _PLAIN_TAGS and not token.hidden:
                yield _tag(token)
            case _:
                yield escaped_html(token.content)
        if token.block and token.level == 0 and token.nesting != 1 and token.type != "inline":
            yield "\n"


def _tag(token: Token) -> str:
    if token.nesting != 1:
        return f"</{token.tag}>"
    if "done" in token.meta:
        return f'<li class="task"><input type="checkbox"{" checked" if token.meta["done"] else ""} disabled>'
    start = f' start="{int(token.attrs["start"])}"' if "start" in token.attrs else ""
    return f"<{token.tag}{start}{_SIDES.get(str(token.attrs.get('style')), '')}>"


def _with_links(text: str) -> str:
    """Return plain text as HTML, with its URLs as links."""
    parts, at = [], 0
    for found in _BARE_URL.finditer(text):
        url = found[0].rstrip(_AFTER_URL)
        parts += [escaped_html(text[at : found.start()]), f"{_link_start(url, is_bare=True)}{escaped_html(url)}</a>"]
        at = found.start() + len(url)
    return "".join([*parts, escaped_html(text[at:])])


def _link_start(url: str, *, is_bare: bool) -> str:
    """Return the start of a link. Print shows its URL after it, unless it is bare: its text is the URL."""
    kind = ' class="bare"' if is_bare else ""
    return f'<a{kind} href="{escaped_html(url)}" rel="noopener noreferrer">'


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
