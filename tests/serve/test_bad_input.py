"""Any input of a client: one answer to each line, and the next line is served normally."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness import Frame, Zot

MIB = 1024 * 1024
LIMIT = 16 * MIB


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zot]:
    """One process for all: that is the point."""
    with Zot(cwd=tmp_path_factory.mktemp("server")) as process:
        yield process
        assert process.finish() == []


PING = {"type": "ping", "id": "still there"}
PONG = {"type": "response", "id": "still there", "command": "ping", "success": True, "data": {"pong": True}}

BAD = {
    "not JSON": b"garbage",
    "a shell command": b"ls -la",
    "truncated": b'{"id":"6","type":"ping"',
    "trailing text": b'{"id":"7","type":"ping"} trailing',
    "two objects": b'{"id":"8","type":"ping"}{"id":"9","type":"ping"}',
    "single quotes": b"{'id':'10'}",
    "an array": b"[]",
    "a string": b'"x"',
    "a number": b"42",
    "a boolean": b"true",
    "null": b"null",
    "an empty object": b"{}",
    "a byte order mark": b'\xef\xbb\xbf{"type":"ping"}',
    "a NUL": b"\0",
    "NULs around": b'\0{"type":"ping"}\0',
    "a NUL in a string": b'{"type":"ping\0"}',
    "UTF-16": '{"type":"ping"}'.encode("utf-16-le"),
    "invalid UTF-8 in a field that is used": b'{"type":"prompt","message":"\xff"}',
    "invalid UTF-8 in a field that is skipped": b'{"type":"ping","x":"\xc3("}',
    "invalid UTF-8 in the id": b'{"id":"28\xff","type":"ping"}',
    "invalid UTF-8 in the type": b'{"type":"\x80"}',
    "an encoded surrogate": b'{"type":"ping","x":"\xed\xa0\x80"}',
    "a lone surrogate in the type": b'{"type":"\\ud800"}',
    "a lone surrogate in the id": b'{"id":"\\ud800","type":"ping"}',
    "a lone surrogate that is skipped": b'{"type":"ping","x":"\\udc00"}',
    "a lone surrogate in a message": b'{"type":"prompt","message":"\\udfff"}',
    "arrays 100,000 deep": b"[" * 100_000 + b"]" * 100_000,
    "arrays 100,000 deep in a field that is skipped": b'{"type":"ping","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "objects 100,000 deep": b'{"x":' * 100_000 + b"1" + b"}" * 100_000,
    "two types": b'{"type":"ping","type":"abort"}',
    "the same type twice": b'{"type":"ping","type":"ping"}',
    "NaN": b'{"type":"ping","id":NaN}',
    "infinity": b'{"type":"ping","id":Infinity}',
    "a number that is none": b'{"type":"ping","id":01}',
}

BAD_WITH_ID = {
    "no type": (b'{"id":"2"}', ""),
    "an empty type": (b'{"id":"2","type":""}', ""),
    "a type that is null": (b'{"id":"2","type":null}', ""),
    "a type that is a number": (b'{"id":"2","type":5}', ""),
    "an unknown type": (b'{"id":"2","type":"frobnicate"}', "frobnicate"),
    "a type in capitals": (b'{"id":"2","type":"PING"}', "PING"),
    "a message that is a number": (b'{"id":"2","type":"prompt","message":5}', "prompt"),
    "a message that is an object": (b'{"id":"2","type":"prompt","message":{}}', "prompt"),
    "no message": (b'{"id":"2","type":"prompt"}', "prompt"),
    "an empty message": (b'{"id":"2","type":"prompt","message":""}', "prompt"),
    "a blank message": (b'{"id":"2","type":"prompt","message":" \\n"}', "prompt"),
    "a message that is null": (b'{"id":"2","type":"prompt","message":null,"images":null}', "prompt"),
    "images that are a string": (b'{"id":"2","type":"prompt","images":"x"}', "prompt"),
    "an image that is a string": (b'{"id":"2","type":"prompt","images":["x"]}', "prompt"),
    "an image that is not base64": (b'{"id":"2","type":"prompt","images":[{"data":"!!!"}]}', "prompt"),
    "an image that is a number": (b'{"id":"2","type":"prompt","images":[{"data":5}]}', "prompt"),
    "no model": (b'{"id":"2","type":"set_model"}', "set_model"),
    "an empty model": (b'{"id":"2","type":"set_model","model":""}', "set_model"),
    "a model that is a number": (b'{"id":"2","type":"set_model","model":5}', "set_model"),
    "an unknown model": (b'{"id":"2","type":"set_model","model":"gpt-5"}', "set_model"),
    "a token that is a number": (b'{"id":"2","type":"hello","token":5}', "hello"),
    "features that are a string": (b'{"id":"2","type":"hello","features":"seq"}', "hello"),
    "a queue that is a string": (b'{"id":"2","type":"abort","queue":"yes"}', "abort"),
    "nothing to steer with": (b'{"id":"2","type":"steer"}', "steer"),
    "case-varied keys and a wrong type": (b'{"ID":"2","Type":"set_model","MODEL":5}', "set_model"),
}


def refusal(server: Zot, line: bytes) -> Frame:
    """Return the answer to an invalid line; check that it is the only one, and that the next line is served."""
    server.send(line, PING)
    answer, pong = server.read(), server.read()
    assert pong == PONG
    assert answer["type"] == "response"
    assert answer["success"] is False
    assert answer["error"]
    return answer


@pytest.mark.parametrize("line", BAD.values(), ids=BAD.keys())
def test_an_invalid_command_costs_one_answer(server: Zot, line: bytes) -> None:
    assert "id" not in refusal(server, line)


@pytest.mark.parametrize(("line", "command"), BAD_WITH_ID.values(), ids=BAD_WITH_ID.keys())
def test_a_wrong_command_is_answered_with_its_id(server: Zot, line: bytes, command: str) -> None:
    answer = refusal(server, line)
    assert (answer["id"], answer["command"]) == ("2", command)


@pytest.mark.parametrize("frame_id", [b"[1]", b'{"a":1}', b"true", b"false"])
def test_an_id_that_is_neither_string_nor_number_is_not_echoed(server: Zot, frame_id: bytes) -> None:
    answer = refusal(server, b'{"id":%b,"type":"ping"}' % frame_id)
    assert answer.keys() == {"type", "command", "success", "error"}


ACCEPTED = {
    "a numeric id": (b'{"id":7,"type":"ping"}', 7),
    "a huge integer": (b'{"id":%b,"type":"ping"}' % (b"9" * 400), 10**400 - 1),
    "a huge number that is skipped": (b'{"id":1,"type":"ping","x":%b}' % (b"9" * 10_000), 1),
    "an infinite number that is skipped": (b'{"id":1,"type":"ping","x":1e999999}', 1),
    "an escaped NUL": (b'{"id":"\\u0000","type":"ping"}', "\0"),
    "keys in another case": (b'{"ID":"12","TYPE":"ping"}', "12"),
    "the last id": (b'{"id":"14","type":"ping","id":"15"}', "15"),
    "unknown fields": (b'{"id":1,"type":"ping","x":{"type":"abort","id":2}}', 1),
    "blanks around": (b'  \t{"id":1,"type":"ping"}  ', 1),
    "a carriage return": (b'{"id":1,"type":"ping"}\r', 1),
}


@pytest.mark.parametrize(("line", "frame_id"), ACCEPTED.values(), ids=ACCEPTED.keys())
def test_odd_but_unambiguous_input_is_served(server: Zot, line: bytes, frame_id: str | int) -> None:
    assert server.ask(line) == {**PONG, "id": frame_id}


@pytest.mark.parametrize("line", [b'{"id":null,"type":"ping"}', b'{"id":"","type":"ping"}', b'{"type":"ping"}'])
def test_an_empty_id_counts_as_missing(server: Zot, line: bytes) -> None:
    assert "id" not in server.ask(line)


def test_blank_lines_are_skipped(server: Zot) -> None:
    server.write(b"\n\r\n   \n\t\n")
    assert server.ask(PING) == PONG


@pytest.mark.parametrize("character", ["\u2028", "\u2029", "\u0085", "\v", "\f", "\x1c", "\x1d", "\x1e"])
def test_unicode_line_separators_pass_through_both_ways(server: Zot, character: str) -> None:
    said = f"!echo a{character}b"
    raw = json.dumps({"type": "prompt", "message": said}, ensure_ascii=ord(character) < 0x20)
    server.send(raw.encode())
    frames = server.until(type="done")
    assert [frame["content"] for frame in frames if "content" in frame] == [
        [{"type": "text", "text": said}],
        [{"type": "text", "text": f"a{character}b"}],
    ]


def test_a_line_as_long_as_the_limit_is_read_and_a_longer_one_is_refused(server: Zot) -> None:
    filler = LIMIT - len(b'{"id":1,"type":"ping","x":""}')
    exact = b'{"id":1,"type":"ping","x":"%b"}' % (b"x" * filler)
    assert len(exact) == LIMIT
    assert server.ask(exact) == {**PONG, "id": 1}
    assert server.ask(exact + b"\r") == {**PONG, "id": 1}
    assert str(LIMIT) in refusal(server, exact + b" ")["error"]


def test_a_line_of_twenty_megabytes_is_refused_before_it_has_ended(server: Zot) -> None:
    server.write(b'{"type":"prompt","message":"' + b"x" * 20_000_000)
    answer = server.read()
    assert (answer["success"], answer["command"]) == (False, "")
    server.write(b'"}\n')
    assert server.ask(PING) == PONG


def test_the_limit_can_be_set(zot: Callable[..., Zot]) -> None:
    process = zot("--max-line-bytes", "64")
    assert process.ask(PING) == PONG
    assert process.ask(b'{"type":"ping","x":"%b"}' % (b"x" * 64))["error"].startswith("the line is longer than 64 ")
    assert process.ask(PING) == PONG
    assert process.finish() == []


def test_random_lines_leave_the_server_standing(server: Zot) -> None:
    dice = random.Random(20_260_101)
    words = [b'{"type":', b'"prompt"', b'"ping"', b',"id":', b"1", b'"a"', b"}", b"{", b"[", b"]", b"null", b"\\u",
             b"\xff", b'"message":', b"-", b"1e5", b'"', b" ", b"\r", b"\0", b'"type"', b"true", b":"]  # fmt: skip
    for _ in range(20):
        lines = [b"".join(dice.choices(words, k=dice.randint(1, 12))) for _ in range(50)]
        expected = sum(1 for line in lines if line.strip())
        server.send(*lines, PING)
        answers = server.until(id="still there")[:-1]
        assert len(answers) == expected
        assert {answer["type"] for answer in answers} <= {"response"}


def test_the_last_line_needs_no_end(zot: Callable[..., Zot]) -> None:
    process = zot()
    process.write(b'{"type":"ping","id":"1"}\r\n{"type":"ping","id":"2"}')
    assert [frame["id"] for frame in process.finish()] == ["1", "2"]


def test_a_last_line_that_is_cut_short_is_answered_too(zot: Callable[..., Zot], tmp_path: Path) -> None:
    process = zot()
    process.write(b'{"type":"pi')
    assert [frame["success"] for frame in process.finish()] == [False]
