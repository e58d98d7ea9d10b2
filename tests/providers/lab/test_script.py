from __future__ import annotations

import os
from pathlib import Path

import pytest

from zot.errors import ConfigError
from zot.providers.lab import directives as d
from zot.providers.lab.api import LabTool
from zot.providers.lab.script import Script


def only(lines: str) -> list[d.Directive]:
    """The directives of a script with one reply."""
    return Script.parse(lines).scenes[0].replies[0].directives({})


@pytest.mark.parametrize(
    ("line", "directive"),
    [
        ('say "a" "b"', d.Say(("a", "b"))),
        ('split 3 "abc"', d.Split(3, "abc")),
        ("words 2", d.Words(2)),
        ("flood 9", d.Flood(9)),
        ("status overloaded retry-after=1", d.StatusDirective(None, {"retry-after": "1"})),
        ('shell "ls -l" id=c1 chunks=2', d.Shell("ls -l", "c1", 2)),
        ("help", d.Help()),
        ('think "hm"', d.Think(("hm",))),
        ("redacted xyz", d.Redacted("xyz")),
        ("call ls", d.CallDirective("ls", "{}")),
        ('call read {"path": "a"} id=tA chunks=3', d.CallDirective("read", '{"path":"a"}', "tA", 3)),
        ('call read [{"path": "a"}] id=""', d.CallDirective("read", '[{"path":"a"}]', "", 1)),
        ("call-raw bash '{\"x\": '", d.CallDirective("bash", '{"x": ')),
        ("usage", d.UsageDirective(100, 20, 0, 0)),
        ("usage input=1 output=2 cache_read=3 cache_write=4", d.UsageDirective(1, 2, 3, 4)),
        ("usage-twice", d.UsageTwice()),
        ("stop length", d.StopDirective("length")),
        ("pace 20ms", d.PaceDirective(0.02)),
        ("wait 1s", d.Wait(1.0)),
        ("chunk 1", d.ChunkDirective(1)),
        ("ping", d.PingDirective(1)),
        ("ping 3", d.PingDirective(3)),
        ('raw "a\\nb"', d.Raw("a\nb")),
        ("repeat", d.Repeat(None)),
        ("repeat 3", d.Repeat(3)),
        ("status 429", d.StatusDirective(429)),
        ('status 429 Retry-After=1 {"a": 1}', d.StatusDirective(429, {"retry-after": "1"}, '{"a":1}')),
        ('status 502 "<html>"', d.StatusDirective(502, {}, "<html>")),
        ("refuse", d.Refuse()),
        ("stall", d.Stall()),
        ("stall pings", d.Stall(1.0)),
        ("stall pings every=20ms", d.Stall(0.02)),
        ("cut", d.Cut()),
        ("cut utf8", d.Cut("utf8")),
        ("cut json", d.Cut("json")),
        ("no-end", d.NoEnd()),
        ('error overloaded_error "Overloaded"', d.ErrorDirective("overloaded_error", "Overloaded")),
        ("scene\nscript 'say \"x\"'", d.Play('say "x"')),
    ],
)
def test_each_directive_reads(line: str, directive: d.Directive) -> None:
    assert only(line) == [directive]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("say", 'x.lab:1: found 0 arguments; expected: say "text" ...'),
        ("\n\nwords many", 'x.lab:3: found "many" where a number should be; expected: words COUNT'),
        ("say {}", 'x.lab:1: found {} where text should be; expected: say "text" ...'),
        ("say x a=b", "x.lab:1: found option 'a'; expected: say \"text\" ..."),
        ("wait soon", 'x.lab:1: found "soon" where a duration such as 20ms or 1.5s should be; expected: wait DURATION'),
        ("call read nope", "x.lab:1: found 'nope' where a JSON object should be; expected: "
         'call TOOL {"argument": "value"} [id=ID] [chunks=COUNT]'),
        ("status 200", "x.lab:1: found status 200, which is not a failure; expected: "
         "status 300..599|overloaded [header=value ...] [BODY]"),
        ("cut here", "x.lab:1: found 'here'; expected: cut [utf8|json]"),
        ("stall for ever", "x.lab:1: found 2 arguments; expected: stall [pings [every=DURATION]]"),
        ("say x\ncut\nsay y", "x.lab:3: say cannot follow cut, which ends the reply"),
        ("repeat\nsay x\n---\nsay y", "x.lab:1: repeat needs a number: only the last reply can be played for ever"),
        ("repeat 0\nsay x", "x.lab:1: repeat 0: the reply would never be played"),
        ("split 0 x", 'x.lab:1: found 0 where a number of at least 1 should be; expected: split COUNT "text"'),
        ("ping 0", "x.lab:1: found 0 where a number of at least 1 should be; expected: ping [COUNT]"),
        ("call-raw t x chunks=0", "x.lab:1: found 0 where a number of at least 1 should be; expected: "
         'call-raw TOOL "text" [id=ID] [chunks=COUNT]'),
        ("stall pings every=0ms", "x.lab:1: found every=0, which leaves no time for anything else; expected: "
         "stall [pings [every=DURATION]]"),
        ("script x", "x.lab:1: script can only be a scene's only line"),
        ("scene\nsay x\nscript x", "x.lab:3: script can only be a scene's only line"),
        ("scene\nscript x\n---\nsay x", "x.lab:2: script can only be a scene's only line"),
        ("scene '(a)(b)'\nsay $1\ncall t {\"$3\": [{}, \"$2\"]}",
         "x.lab:3: $3 stands for a group that the expression of this scene does not have"),
        ("scene a\ncall t {\"a\": 1, \"b\": [\"$1\"]}",
         "x.lab:2: $1 stands for a group that the expression of this scene does not have"),
        ("", "x.lab: there is no reply in it"),
        ("---\n---", "x.lab: there is no reply in it"),
        ("--- x\nsay y", "x.lab:1: --- stands alone on its line"),
        ("scene a", "x.lab:1: no reply follows"),
        ("say x\nscene a\nsay y", "x.lab:1: say before the first scene"),
        ("scene 'x' y\nsay z", "x.lab:1: found arguments in another order; expected: "
         "scene [WORD] ['regular expression'] [tools=none|offered] [help=\"text\"]"),
        ("scene tools=some\nsay z", "x.lab:1: found tools=some; expected: "
         "scene [WORD] ['regular expression'] [tools=none|offered] [help=\"text\"]"),
        ('say "x', "x.lab:1: '\"x': a string or bracket that does not close or open"),
    ],
)  # fmt: skip
def test_an_error_names_file_line_and_what_was_expected(lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Script.parse(lines, "x.lab")
    assert str(caught.value) == message


@pytest.mark.parametrize("lines", ["say $1", "scene '(.)'\nrepeat $1\nsay $1 $model $HOME $0 $x"])
def test_lines_that_only_look_wrong_are_accepted(lines: str) -> None:
    Script.parse(lines)


def test_an_unknown_directive_is_answered_with_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"^x:2: unknown directive 'sya'; known: call, call-raw, .*, words, ---; did you mean say\?$"
    ):
        Script.parse("\nsya x", "x")


def test_a_bad_regular_expression_is_named_before_anything_is_played() -> None:
    with pytest.raises(ConfigError, match=r"^x:1: '\(' is not a regular expression: "):
        Script.parse("scene '('\nsay x", "x")


def test_a_file_may_have_a_byte_order_mark_and_carriage_returns(tmp_path: Path) -> None:
    path = tmp_path / "a.lab"
    path.write_bytes(b'\xef\xbb\xbfsay "a"\r\n---\r\nsay "b"\r\n')
    script = Script.load(os.fspath(path))
    assert script.name == "a.lab"
    assert [reply.directives({}) for reply in script.scenes[0].replies] == [[d.Say(("a",))], [d.Say(("b",))]]


@pytest.mark.parametrize(
    ("content", "reason"), [(None, "No such file or directory"), (b"say \xff", "not UTF-8, at byte 4")]
)
def test_a_file_that_cannot_be_read_is_a_config_error(tmp_path: Path, content: bytes | None, reason: str) -> None:
    path = tmp_path / "a.lab"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match=f"cannot read the lab script {path}: {reason}$"):
        Script.load(os.fspath(path))


@pytest.mark.parametrize(
    ("head", "prompt", "found"),
    [
        ("scene", "anything", {}),
        ("scene", "", {}),
        ("scene !go", "!go", {}),
        ("scene !go", "!go there\nnow", {}),
        ("scene !go", "!gone", None),
        ("scene !go", "say !go", None),
        ("scene !go", "", None),
        ("scene !go '(\\d+) (.*)'", "!go 3  a\nb", {"1": "3", "2": " a\nb"}),
        ("scene !go '(\\d+)'", "!go 3 x", None),
        ("scene 'h(e)?y(.*)'", "oh hy you\nall", {"1": "", "2": " you\nall"}),
        ("scene '^hey'", "oh hey", None),
        ("scene tools=none", "x", None),
    ],
)
def test_a_scene_matches_by_first_word_or_expression(head: str, prompt: str, found: dict[str, str] | None) -> None:
    scene = Script.parse(f"{head}\nsay x").scenes[0]
    assert scene.match(prompt, tools=[LabTool("x")]) == found


def test_a_scene_for_requests_without_tools_sees_only_those() -> None:
    scene = Script.parse("scene tools=none\nsay x").scenes[0]
    assert (scene.match("x", tools=[LabTool("x")]), scene.match("x", tools=[])) == (None, {})
