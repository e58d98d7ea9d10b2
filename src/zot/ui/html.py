"""The page: who said what, and what tools were called."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from zot.messages import Counters, PastMessage, ShownCall, ShownImage, ShownMessage, ShownResult, TextBlock
from zot.ui.about import changes, summary
from zot.ui.blocks import markdown
from zot.ui.readable import counted, ended, one_line, size, when
from zot.ui.style import STYLE
from zot.ui.words import plain

#: Nothing is loaded and nothing runs, whatever somebody may have found to say.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"


def page(title: str, messages: Sequence[ShownMessage], *, model: str = "", usage: Counters | None = None) -> str:
    """Return the page. Whatever was said is text in it: nothing of it can become part of the page.

    How turns ended is told as far as the messages know it.
    """
    results = {
        block.call_id: block for message in messages for block in message.content if isinstance(block, ShownResult)
    }
    body = "\n".join(part for message in messages for part in _message(message, results))
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{plain(one_line(title))}</title>\n<style>\n{STYLE}\n</style>\n</head>\n<body>\n"
        f'<header><h1 dir="auto">{plain(title)}</h1><p>{plain(_about(messages, model, usage))}</p></header>\n'
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
    said_at = f"<time>{plain(when(message.time))}</time>" if message.time else ""
    for block in message.content:
        match block:
            case TextBlock(text=text) if message.role == "user":
                yield f'<section class="user" aria-label="user" dir="auto">{said_at}{plain(text)}</section>'
            case TextBlock(text=text):
                yield f'<section class="{message.role}" dir="auto">{markdown(text)}</section>'
            case ShownImage():
                yield f'<section class="{message.role}">{_image(block)}</section>'
            case ShownCall():
                yield _call(block, results.get(block.id))
            case ShownResult():
                pass  # It stands below its call.
        said_at = ""
    if isinstance(message, PastMessage) and (mark := ended(message.stop, message.error)):
        yield f'<p class="ended" dir="auto">{plain(mark)}</p>'


def _call(call: ShownCall, result: ShownResult | None) -> str:
    """A call, folded into a line where it is looked at, and open where it is printed."""
    args = call.args or {}
    failed = ' class="failed"' if result is not None and result.is_error else ""
    content = result.content if result is not None else ()
    shown = (_image(one) if isinstance(one, ShownImage) else f"<pre>{plain(one.text)}</pre>" for one in content)
    about = summary(args)
    head = one_line(about, 160)
    below = "".join([*_arguments(args, is_named=head == about), *shown])
    return f"<details{failed}><summary><b>{plain(call.name)}</b> {plain(head)}</summary>{below}</details>"


def _arguments(args: dict[str, Any], *, is_named: bool) -> Iterator[str]:
    """Yield what a call was called with; ``is_named`` if its summary is read in full above."""
    kinds = {"+": "add", "-": "del"}
    rows = [f'<span class="{kinds.get(row[:1], "")}">{row}</span>' for row in changes(args, plain)]
    told = {"edits", "content"} if rows else set()
    match args:
        case {"command": str(command)}:
            told.add("command")
            if not is_named:
                yield f"<pre>{plain(command)}</pre>"
        case {"path": str()}:
            told |= {"path"} if is_named else set()
        case _:
            told |= args.keys() if is_named else set()
    if rows:
        yield f"<pre>{chr(10).join(rows)}</pre>"
    if rest := {name: value for name, value in args.items() if name not in told}:
        yield f"<pre>{plain(msgspec.json.format(msgspec.json.encode(rest), indent=2).decode())}</pre>"


def _image(image: ShownImage) -> str:
    return f"[{plain(image.mime_type)}, {size(image.bytes)}]"
