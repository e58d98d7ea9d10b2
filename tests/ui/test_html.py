"""A conversation as one HTML file: complete, self-contained, and without markup from messages."""

from __future__ import annotations

from typing import Any

from html_outline import Outline
from shell import Shell
from zot.messages import Counters, PastMessage, ShownCall, ShownImage, ShownMessage, ShownResult, TextBlock
from zot.ui.html import page

NOON = "2026-01-01T12:00:00.000Z"
HOSTILE = (
    '<script>alert(1)</script>\n\n`</style>` **<img src=x>** [x](javascript:alert(1)) [y](https://a.test/?"><b>)\x1b[2J'
)


def test_every_message_is_on_the_page_and_calls_have_their_results() -> None:
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
    outline = Outline(text)
    assert (outline.links, {"script", "link", "img"} & {*outline.tags}) == ([], set())
    assert "default-src 'none'" in text


def test_combining_characters_stay_whole() -> None:
    said = "\N{MAN}\N{ZERO WIDTH JOINER}\N{WOMAN}\N{NO-BREAK SPACE}x"
    assert said in page("t", [ShownMessage("assistant", (TextBlock(said),), NOON)])


def test_printed_pages_fold_and_cut_nothing_and_show_link_targets() -> None:
    said = [ShownMessage("assistant", (ShownCall("1", "bash", {"command": "ls"}),), NOON)]
    paper = page("t", said).partition("@media print {")[2].partition("</style>")[0]
    for rule in ("details::details-content { content-visibility: visible", 'content: " (" attr(href) ")"', "thead {"):
        assert rule in paper
    assert "pre-wrap" in page("t", said)


def test_messages_stay_text() -> None:
    text = page(HOSTILE, [ShownMessage(role, (TextBlock(HOSTILE),), NOON) for role in ("user", "assistant")])
    outline = Outline(text)
    assert {"script", "img"}.isdisjoint(outline.tags)
    assert outline.links == ["https://a.test/?%22%3E%3Cb%3E"]
    assert "\x1b" not in text


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


def test_the_ends_of_turns_are_on_the_page(shell: Shell) -> None:
    for prompt in ("!cut", "!length", "!status 401", "!echo all of it"):
        shell.ask(prompt, "--session", "ends")
    said = "".join(Outline(shell.sessions("export", "ends", "--html").out).texts)
    parts = ["half an", "lab: the connection was cut (try again)", "!length", "This goes on and"]
    parts += ["cut off at the model's length limit", "!status 401", "lab: http 401", "!echo all of it"]
    places = [said.index(part) for part in parts]
    assert places == sorted(places)
    assert said.rstrip().endswith("all of it")


def test_the_error_of_a_turn_stays_text() -> None:
    outline = Outline(page("t", [PastMessage("user", (), NOON, "", "error", HOSTILE)]))
    assert ({"script", "img", "b"}.isdisjoint(outline.tags), outline.links) == (True, [])


def test_all_arguments_of_a_call_are_on_the_page() -> None:
    calls: list[tuple[str, dict[str, Any]]] = [
        ("bash", {"command": f"echo {'a' * 200}; echo <tail>", "timeout": 7}),
        ("look_up", {"long": "b" * 200, "last": "<word>"}),
        ("write", {"path": "p" * 200 + "/end.txt", "content": "one\n", "mode": "odd"}),
        ("read", {"path": "a.txt", "offset": 3}),
    ]
    said = [ShownMessage("assistant", tuple(ShownCall(name, name, args) for name, args in calls), NOON)]
    text = "".join(Outline(page("t", said)).texts)
    for part in ("echo <tail>", '"timeout": 7', '"last": "<word>"', "/end.txt", '"mode": "odd"', '"offset": 3'):
        assert part in text
    assert text.count("+one") == 1
    assert text.count("a.txt") == 1
