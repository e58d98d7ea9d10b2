"""Markdown on the HTML page: common syntax is rendered, and hostile text stays harmless and cheap."""

from __future__ import annotations

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from html_outline import Outline
from zot.errors import ConfigError
from zot.ui.html import markdown

TAGS = {
    "a", "blockquote", "br", "code", "del", "div", "em", "h2", "h3", "h4", "h5", "h6", "hr", "input", "li", "ol", "p",
    "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
}  # fmt: skip


def table(head: str, *rows: str) -> str:
    body = f"<tbody>{''.join(f'<tr>{row}</tr>' for row in rows)}</tbody>" if rows else ""
    return f'<div class="table"><table><thead><tr>{head}</tr></thead>{body}</table></div>'


def link(url: str, label: str = "", kind: str = "") -> str:
    return f'<a{kind} href="{url}" rel="noopener noreferrer">{label or url}</a>'


BARE = ' class="bare"'
BLOCKS = {
    "a\nb": "<p>a<br>b</p>",
    "## H\ntext": "<h3>H</h3>\n<p>text</p>",
    "# C# #\n####### no": "<h2>C#</h2>\n<p>####### no</p>",
    "One\nmore\n===\nTwo\n---": "<h2>One<br>more</h2>\n<h3>Two</h3>",
    "```py\nx < 1\n\n\ty\n```\nafter": "<pre><code>x &lt; 1\n\n\ty</code></pre>\n<p>after</p>",
    "````\n```\n````": "<pre><code>```</code></pre>",
    "```\nnot closed": "<pre><code>not closed</code></pre>",
    "text:\n\n    code\n\n      more\nend": "<p>text:</p>\n<pre><code>code\n\n  more</code></pre>\n<p>end</p>",
    "> said\n> - so\n\nend": "<blockquote><p>said</p><ul><li>so</li></ul></blockquote>\n<p>end</p>",
    "---": "<hr>",
    "": "",
    "\n \n": "",
}
LISTS = {
    "- a\n- **b**\n  more": "<ul><li>a</li><li><strong>b</strong><br>more</li></ul>",
    "1. a\n2. b": "<ol><li>a</li><li>b</li></ol>",
    "3. c\n4. d": '<ol start="3"><li>c</li><li>d</li></ol>',
    "0) z": '<ol start="0"><li>z</li></ol>',
    "- a\n  - b\n    - c\n  - d\n- e": "<ul><li>a<ul><li>b<ul><li>c</li></ul></li><li>d</li></ul></li><li>e</li></ul>",
    "1. a\n   - b\n2. c": "<ol><li>a<ul><li>b</li></ul></li><li>c</li></ol>",
    "- a\n\t- with a tab": "<ul><li>a<ul><li>with a tab</li></ul></li></ul>",
    "- a\n\n- b": "<ul><li><p>a</p></li><li><p>b</p></li></ul>",
    "- a\n\n  more\n- b": "<ul><li><p>a</p><p>more</p></li><li><p>b</p></li></ul>",
    "- a\n  - b\n\n- c": "<ul><li><p>a</p><ul><li>b</li></ul></li><li><p>c</p></li></ul>",
    "- a\n  ```\n  x\n\n  y\n  ```\n- b": "<ul><li>a<pre><code>x\n\ny</code></pre></li><li>b</li></ul>",
    "1. a\n```\nx\n```\n2. b": '<ol><li>a</li></ol>\n<pre><code>x</code></pre>\n<ol start="2"><li>b</li></ol>',
    "- a\nlazy\n\nend": "<ul><li>a<br>lazy</li></ul>\n<p>end</p>",
    "- a\n* b": "<ul><li>a</li></ul>\n<ul><li>b</li></ul>",
    "* a\n* * *\n* b": "<ul><li>a</li></ul>\n<hr>\n<ul><li>b</li></ul>",
    "text\n- a": "<p>text</p>\n<ul><li>a</li></ul>",
    "It was\n1999. A good year": "<p>It was<br>1999. A good year</p>",
    "- [ ] to do\n- [x] done\n- [y] no": (
        '<ul><li class="task"><input type="checkbox" disabled>to do</li>'
        '<li class="task"><input type="checkbox" checked disabled>done</li><li>[y] no</li></ul>'
    ),
    "-": "<ul><li></li></ul>",
}
TABLES = {
    "| a |\n|---|\n| 1 |": table("<th>a</th>", "<td>1</td>"),
    "a | b\n--- | ---\n1 | 2": table("<th>a</th><th>b</th>", "<td>1</td><td>2</td>"),
    "|l|c|r|\n|:--|:-:|--:|\n|1|2|3|": table(
        '<th>l</th><th class="centre">c</th><th class="right">r</th>',
        '<td>1</td><td class="centre">2</td><td class="right">3</td>',
    ),
    "|a|b|\n|-|-|\n|x \\| y|`p\\|q`|": table("<th>a</th><th>b</th>", "<td>x | y</td><td><code>p|q</code></td>"),
    "|a|b|\n|-|-|\n|1|\n|1|2|3|": table("<th>a</th><th>b</th>", "<td>1</td><td></td>", "<td>1</td><td>2</td>"),
    "|a|b|\n|-|-|\n||2|": table("<th>a</th><th>b</th>", "<td></td><td>2</td>"),
    "So:\n|a|\n|-|\n\nend": f"<p>So:</p>\n{table('<th>a</th>')}\n<p>end</p>",
    "|a|b|\n|-|\n": "<p>|a|b|<br>|-|</p>",
    "- x\n\n  |a|\n  |-|\n  |1|": f"<ul><li><p>x</p>{table('<th>a</th>', '<td>1</td>')}</li></ul>",
}
WORDS = {
    "**a *b* c** and *d **e** f*": "<strong>a <em>b</em> c</strong> and <em>d <strong>e</strong> f</em>",
    "***both*** __strong__ _em_ ~~gone~~": (
        "<em><strong>both</strong></em> <strong>strong</strong> <em>em</em> <del>gone</del>"
    ),
    "**over\nlines**": "<strong>over<br>lines</strong>",
    "2 * 3 * 4 and snake_case_name": "2 * 3 * 4 and snake_case_name",
    "``a ` b`` and ` x ` `**no**`": "<code>a ` b</code> and <code>x</code> <code>**no**</code>",
    r"\*no\* \<b> &lt; &copy; &nothing;": "*no* &lt;b&gt; &lt; © &amp;nothing;",
    "a\\\nb  \nc": "a<br>b<br>c",
    "[l](https://a.test/b_(c)) ![i](http://a.test/i.png 'title')": (
        f"{link('https://a.test/b_(c)', 'l')} {link('http://a.test/i.png', 'i')}"
    ),
    "[`a[0]`](mailto:a@b.test) <mailto:a@b.test>": (
        f"{link('mailto:a@b.test', '<code>a[0]</code>')} {link('mailto:a@b.test', kind=BARE)}"
    ),
    "See https://a.test/x?a=1&b=2. (<https://b.test>)": (
        f"See {link('https://a.test/x?a=1&amp;b=2', kind=BARE)}. ({link('https://b.test', kind=BARE)})"
    ),
    "[a.py](src/a.py:3) [x](javascript:alert(1)) [y](JavaScript:1) [z](data:text/html,1) ![i](file:///i.png)": (
        "[a.py](src/a.py:3) [x](javascript:alert(1)) [y](JavaScript:1) [z](data:text/html,1) ![i](file:///i.png)"
    ),
    "<b>no</b> <!-- no --> <a href='https://a.test'>": (
        f"&lt;b&gt;no&lt;/b&gt; &lt;!-- no --&gt; &lt;a href=&#x27;{link('https://a.test', kind=BARE)}&#x27;&gt;"
    ),
    "over\u202ewritten and &#x202e;": "over\\u202ewritten and \\u202e",
}


@pytest.mark.parametrize(("source", "expected"), [*BLOCKS.items(), *LISTS.items(), *TABLES.items()])
def test_blocks_become_html(source: str, expected: str) -> None:
    assert markdown(source) == expected


@pytest.mark.parametrize(("source", "expected"), WORDS.items())
def test_inline_markup_becomes_html(source: str, expected: str) -> None:
    assert markdown(source) == f"<p>{expected}</p>"


PIECES = st.sampled_from(
    [*"*_`~[]()<>|\\:!#-+=&;. \t\n1ax", "**", "```", "\n- ", "\n1. ", "\n> ", "[x](", "https://", "|-|\n"]
)


@given(st.lists(PIECES, max_size=60).map("".join))
def test_any_text_gives_a_well_formed_page_with_web_and_mail_links_only(text: str) -> None:
    outline = Outline(markdown(text))
    assert {*outline.tags} <= TAGS
    assert all(url.lower().startswith(("http://", "https://", "mailto:")) for url in outline.links)


@pytest.mark.parametrize(
    "piece",
    ["*", "**", "`", "_", "~~", "[", "[a", "![", "(", ">", "> ", "- ", "-", "|", "a|", "<", "\\", " ", "\t", "#", "&a",
     "*a ", "**a ", "[a](", "`` ` ", "|-", "\n- ", "\n\n", "> - ", "[a](b(", "*a **b", "http://(", "<http://",
     "&#x41;"],
)  # fmt: skip
def test_no_text_takes_long_or_exhausts_the_stack(piece: str) -> None:
    began = time.process_time()
    Outline(markdown(f"{piece * 4_000}x"))
    assert time.process_time() - began < 5  # Less than 0.2 s on an idle machine.


def test_text_nested_too_deeply_is_shown_verbatim() -> None:
    text = "> " * 150 + "the end"
    assert markdown(text) == f"<pre>{text.replace('>', '&gt;')}</pre>"


def test_without_the_extra_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "markdown_it", None)
    with pytest.raises(ConfigError, match=r"needs the package markdown-it-py.*pip install '\.\[html\]'"):
        markdown("text")
