"""The portable form of a session: files of older versions are read, and errors name the line."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shell import Shell
from zot.encoding import encode
from zot.errors import UserError
from zot.journal.portable import checked, line_of, local, portable
from zot.store import CallStarted, PermissionGranted

FILE = Path(__file__).parents[1] / "files" / "session-v1.jsonl"
LINES = FILE.read_bytes().split(b"\n")[:-1]


def test_a_file_of_version_1_is_read_and_written_unchanged(shell: Shell) -> None:
    assert shell.sessions("import", str(FILE)) == ("v1\n", "", 0)
    assert shell.sessions("export", "v1").out == FILE.read_text()


def test_reading_and_writing_are_inverse() -> None:
    assert [encode(line) for line in checked(enumerate(LINES, 1), "f")] == LINES


@pytest.mark.parametrize(
    ("path", "home", "told"),
    [
        ("/home/me", "/home/me", "~"),
        ("/home/me/a/b", "/home/me", "~/a/b"),
        ("/home/melanie", "/home/me", ""),
        ("/srv", "/home/me", ""),
        ("", "/home/me", ""),
        ("/srv", "/", ""),
        ("/srv", "", ""),
    ],
)
def test_a_directory_is_stored_relative_to_the_home(path: str, home: str, told: str) -> None:
    assert portable(path, home) == told
    if told:
        assert local(told, home) == path
        assert local(told, "/Users/you") == path.replace(home, "/Users/you")
    assert local(told, "") == ""


def altered(number: int, **fields: Any) -> Callable[[list[bytes]], list[bytes]]:
    """Return an edit that changes fields of one line; "a.b" is a field inside another."""

    def alter(lines: list[bytes]) -> list[bytes]:
        value = json.loads(lines[number - 1])
        for path, new in fields.items():
            *outer, last = path.split("__")
            target = value
            for name in outer:
                target = target[name]
            target[last] = new
        return [*lines[: number - 1], json.dumps(value).encode(), *lines[number:]]

    return alter


def test_approvals_for_good_are_not_exported() -> None:
    for row in (PermissionGranted("bash", command="make"), CallStarted("c1")):
        assert line_of(1, 1, row, home="/home/me") is None
        line = encode({"type": "change", "seq": 1, "run": 1, "change": row})
        with pytest.raises(UserError, match=r"f, line 2: permissions are not moved with a session$"):
            list(checked(enumerate([LINES[0], line], 1), "f"))


PICTURE = {"type": "image", "sha256": hashlib.sha256(b"x").hexdigest(), "data": base64.b64encode(b"x").decode()}
DIRECTORY = "a directory must be '', '~' or begin with '~/', and not lead out of it"
NOT_OURS = "line 1: this is not a session that zot exported"
WRONG: list[tuple[str, Callable[[list[bytes]], list[bytes]], str]] = [
    ("nothing", lambda lines: [], "line 1: the file ends here, but the session does not: it is incomplete"),
    ("other things", lambda lines: [b"\x7fELF\x00"], NOT_OURS),
    ("other JSON", lambda lines: [b'{"type":"zot","version":1}'], NOT_OURS),
    ("deep at once", lambda lines: [b"[" * 100_000], NOT_OURS),
    ("later", altered(1, version=2, news=[1]), "line 1: this is version 2, and this zot reads 1"),
    ("no header", lambda lines: lines[1:], NOT_OURS),
    ("two headers", lambda lines: [lines[0], *lines], "line 2: it begins again"),
    ("cut off", lambda lines: lines[:-1], "line 13: the file ends here, but the session does not: it is incomplete"),
    ("cut in a line", lambda lines: [*lines[:4], lines[4][:-9]], "line 5: the JSON ends too early"),
    ("a line gone", lambda lines: [*lines[:5], *lines[6:]], "line 12: it says that there are 11 rows, and "),
    ("more", lambda lines: [*lines, lines[-2]], "line 14: nothing may follow the end"),
    ("blank", lambda lines: [lines[0], b"", *lines[1:]], "line 2: the JSON ends too early"),
    ("again", lambda lines: [*lines[:3], *lines[2:]], "line 4: seq must be more than 2, and run at least 1"),
    ("earlier run", altered(5, run=0), "line 5: seq must be more than 3, and run at least 1"),
    ("huge seq", altered(3, seq=1 << 62), "line 3: seq must be a whole number of at most 4611686018427387903"),
    ("an id", altered(1, id=7), "line 1: id must be a string, not a whole number"),
    ("no id", altered(1, id=""), "line 1: id must be a string that is not empty"),
    ("a time", altered(1, created="yesterday"), "line 1: created must be a string that matches"),
    ("a field", altered(1, news=1), "line 1: news is unknown"),
    ("a path", altered(1, cwd="/etc"), f"line 1: {DIRECTORY}"),
    ("a way out", altered(2, change__cwd="~/../etc"), f"line 2: {DIRECTORY}"),
    ("thinking", altered(2, change__reasoning="hard"), "line 2: reasoning must be one of high, low, medium, off"),
    ("an event", altered(4, event__type="x"), "line 4: event.type cannot be 'x'"),
    ("a role", altered(3, change__message__role="boss"), "line 3: change.message.role cannot be 'boss'"),
    ("no UTF-8", lambda lines: [*lines[:2], lines[2].replace(b"Yes", b"\xff"), *lines[3:]], "line 3: not UTF-8"),
    ("a splice", altered(3, change={"type": "spliced", "start": 5, "stop": 0, "messages": []}),
     "line 3: it replaces messages 5 to 0"),
    ("an image", altered(3, change__message__content=[{"type": "image", "mime_type": "x", "data": "aaaa"}]),
     "line 3: it shows an image that is not in the lines before it"),
    ("a wrong image", lambda lines: [lines[0], b'{"type":"image","sha256":"00","data":"aaaa"}', *lines[1:]],
     "line 2: the image is not the one that its sha256 says"),
    ("an idle image", lambda lines: [lines[0], json.dumps(PICTURE).encode(), *lines[1:]],
     "line 14: an image is in the file that nothing shows"),
    ("an image twice", lambda lines: [lines[0], json.dumps(PICTURE).encode(), json.dumps(PICTURE).encode(), *lines[1:]],
     "line 3: this image was there already"),
    ("deep", lambda lines: [*lines[:3], b'{"type":"event","seq":3,"run":1,"event":{"type":"tool_call","id":"x",'
     b'"name":"x","args":{"x":' + b"[" * 700 + b"]" * 700 + b"}}}", *lines[4:]], "line 4: nested too deeply"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "problem"), [pytest.param(*case, id=name) for name, *case in WRONG])
def test_an_error_is_reported_with_its_line(change: Callable[[list[bytes]], list[bytes]], problem: str) -> None:
    with pytest.raises(UserError) as caught:
        list(checked(enumerate(change(list(LINES)), 1), "f"))
    assert str(caught.value).startswith(f"f, {problem}")


@pytest.mark.parametrize("args", [{"x": '[{"\\' * 5000}, {"x": [[]] * 5000}, {"x": json.loads("[" * 480 + "]" * 480)}])
def test_brackets_that_are_not_nested_too_deeply_are_read_by_every_python(args: Any) -> None:
    called = {"type": "event", "seq": 3, "run": 1, "event": {"type": "tool_call", "id": "x", "name": "x", "args": args}}
    lines = [*LINES[:3], json.dumps(called).encode(), *LINES[4:]]
    assert len(list(checked(enumerate(lines, 1), "f"))) == len(list(checked(enumerate(LINES, 1), "f")))
