"""A conversation as one HTML file: complete, self-contained, and with nothing in it that anybody said to it."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

from shell import Shell
from zot.html_page import markdown, page
from zot.messages import Counters, ShownCall, ShownImage, ShownMessage, ShownResult, TextBlock

NOON = "2026-01-01T12:00:00.000Z"
HOSTILE = (
    '<script>alert(1)</script>\n\n`</style>` **<img src=x>** [x](javascript:alert(1)) [y](https://a.test/?"><b>)\x1b[2J'
)


class Outline(HTMLParser):
    """The elements of a page, in order, and what text they have."""

    VOID = ("meta", "br", "hr")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.texts: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_everything_that_was_said_is_on_the_page_and_calls_have_their_results() -> None:
    edit = {"path": "a.txt", "edits": [{"oldText": "red", "newText": "blue"}]}
    messages = [
        ShownMessage("user", (TextBlock("Paint <it>"), ShownImage("image/png", 2048)), NOON),
        ShownMessage("assistant", (TextBlock("# Fine\n\nI *do*."), ShownCall("1", "edit", edit)), NOON),
        ShownMessage("tool", (ShownResult("1", True, (TextBlock("no such file"),)),), NOON),
    ]
    text = page("A title", messages, model="lab-1", usage=Counters(10, 5, 0, 0, 0.5))
    said = "".join(Outline(text).texts)
    about = "lab-1 · 3 messages · 2026-01-01 12:00:00 UTC · 10 tokens in, 5 out · $0.5000"
    parts = ["A title", "Paint <it>", "[image/png, 2.0 kB]", "Fine", "I do.", "edit a.txt", "-red", "+blue", about]
    for part in (*parts, "no such file"):
        assert part in said
    assert '<details class="failed">' in text
    assert not re.search(r"\b(?:src|href)=", text)


def test_what_was_said_stays_text() -> None:
    text = page(HOSTILE, [ShownMessage(role, (TextBlock(HOSTILE),), NOON) for role in ("user", "assistant")])
    outline = Outline(text)
    assert {"script", "img"}.isdisjoint(outline.tags)
    assert outline.links == ['https://a.test/?"><b>']
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a\nb", "<p>a<br>b</p>"),
        ("## H\ntext", "<h3>H</h3>\n<p>text</p>"),
        ("```py\nx < 1\n```\nafter", "<pre><code>x &lt; 1</code></pre>\n<p>after</p>"),
        ("```\nnot closed", "<pre><code>not closed</code></pre>"),
        ("- a\n- **b**\n  more", "<ul><li>a</li><li><strong>b</strong><br>more</li></ul>"),
        ("1. a\n2. b", "<ol><li>a</li><li>b</li></ol>"),
        ("> said\n> so", "<blockquote><p>said<br>so</p></blockquote>"),
        ("| a |\n|---|\n| 1 |", "<table><tr><th>a</th></tr><tr><td>1</td></tr></table>"),
        ("---", "<hr>"),
        ("2 * 3 * 4 and snake_case_name", "<p>2 * 3 * 4 and snake_case_name</p>"),
        ("", ""),
    ],
)  # fmt: skip
def test_markdown_becomes_html(source: str, expected: str) -> None:
    assert markdown(source) == expected


def test_a_kept_session_is_exported_as_a_page(shell: Shell) -> None:
    shell.ask("!echo It is red.", "--session", "colours")
    done = shell.sessions("export", "colours", "--html")
    assert (done.err, done.code) == ("", 0)
    said = "".join(Outline(done.out).texts)
    assert "It is red." in said
    assert "lab-1 · 2 messages" in said
    assert shell.sessions("export", "colours", "--html", "-o", str(shell.cwd / "page.html")).code == 0
    assert (shell.cwd / "page.html").read_text() == done.out
    assert (shell.cwd / "page.html").stat().st_mode & 0o777 == 0o600
