"""Words inside a paragraph: Markdown as HTML, in which nothing that was said can become part of the page."""

from __future__ import annotations

import re
from html import escape, unescape
from html.entities import html5

from zot.ui.readable import escaped

#: Links lead to these only.
_SCHEMES = ("http://", "https://", "mailto:")
#: Whoever nests deeper than this means something else.
_DEEPEST = 8
#: What ends a sentence, and no address.
_AFTER_ADDRESS = ".,;:!?*_~'\""

_WORDS = re.compile(
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


def plain(text: str) -> str:
    """Return text as HTML that shows it as it is; what would not be seen stands there as its escape."""
    return escape(escaped(text))


def words(text: str, depth: int = 0) -> str:
    """Return the words of a paragraph as HTML. What is no Markdown stays text."""
    if depth == _DEEPEST:
        return plain(text)
    parts, at = [], 0
    for found in _WORDS.finditer(text):
        parts += [plain(text[at : found.start()]), _word(found, depth + 1)]
        at = found.end()
    return "".join([*parts, plain(text[at:])])


def _word(found: re.Match[str], depth: int) -> str:
    kind = found.lastgroup or ""
    said = found[kind]
    match kind:
        case "escaped":
            return plain(said)
        case "code":
            return f"<code>{plain(_code(said))}</code>"
        case "angled":
            return _link(said, plain(said.removeprefix("mailto:")), "bare")
        case "url":
            return _labelled(found["label"], said, depth)
        case "bare":
            return _address(said)
        case "entity":
            return plain(unescape(said) if said[1] == "#" or said[1:] in html5 else said)
        case "newline":
            return "<br>"
        case _:
            tag = kind.rstrip("_")
            return f"<{tag}>{words(said, depth)}</{tag}>"


def _code(said: str) -> str:
    said = said.replace("\n", " ")
    return said[1:-1] if said[0] == said[-1] == " " and said.strip() else said


def _labelled(label: str, url: str, depth: int) -> str:
    """A link, if it leads where links may; else what it says: nothing is left out."""
    url = re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", url[1:-1] if url[0] == "<" and url[-1] == ">" else url)
    said = words(label, depth)
    if url.lower().startswith(_SCHEMES):
        return _link(url, said, "bare" if label == url else "")
    return said if label.strip("`") == url else f"{said} ({plain(url)})"


def _address(said: str) -> str:
    url = said.rstrip(_AFTER_ADDRESS)
    return _link(url, plain(url), "bare") + plain(said[len(url) :])


def _link(url: str, label: str, kind: str) -> str:
    """A link. Where it is printed, its address stands behind it, unless it is a ``bare`` address itself."""
    name = f' class="{kind}"' if kind else ""
    return f'<a{name} href="{plain(url)}" rel="noopener noreferrer">{label}</a>'
