"""Types that several threads decode for the first time at once, and error messages for wrong values."""

from __future__ import annotations

import subprocess
import sys
from typing import Annotated, Literal

import msgspec
import pytest

from harness import PATIENCE_S
from zot.encoding import explain

#: Each child is a process in which nothing has been read yet. It is let go of as often as a thread can be.
RACES = """
import os, sys, threading
from zot.events import Done, TextDelta
from zot.journal.chunks import pack, unpack
from zot.messages import Message, TextBlock
from zot.store import MessageAdded

message = Message("user", (TextBlock("hello"),), "2026-01-01T12:00:00.000Z")
rows = [[MessageAdded(message)], [TextDelta("a"), Done()]]
chunks = [pack(some, session=1, first=1, run=1)[0][0] for some in rows]
sys.setswitchinterval(1e-6)


def race():
    ready, wrong = threading.Barrier(4), []

    def read(which):
        ready.wait()
        if list(unpack(chunks[which])) != rows[which]:
            wrong.append(which)

    threads = [threading.Thread(target=read, args=(number % 2,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os._exit(len(wrong))


ends = []
for _ in range(40):
    child = os.fork()
    if not child:
        race()
    ends.append(os.waitpid(child, 0)[1])
print(ends.count(0))
"""


def test_concurrent_first_decodes_of_a_type_do_not_crash_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RACES], capture_output=True, text=True, timeout=4 * PATIENCE_S, check=False
    )
    assert (done.stdout, done.stderr) == ("40\n", "")


class Item(msgspec.Struct, forbid_unknown_fields=True):
    """A value with every kind of demand that our structs make."""

    count: Annotated[int, msgspec.Meta(ge=1)]
    share: Annotated[float, msgspec.Meta(gt=0, le=1)] = 1.0
    name: Annotated[str, msgspec.Meta(min_length=1, max_length=5)] = "a"
    code: Annotated[str, msgspec.Meta(pattern="^a$")] = "a"
    pair: Annotated[tuple[int, ...], msgspec.Meta(min_length=2)] = (1, 2)
    limits: dict[Literal["x", "y"], float] = {}
    either: str | int | None = None
    switch: bool = True


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("[]", "it must be an object, not a list"),
        ("{}", "items is missing"),
        ('{"items":[{}]}', "items[0].count is missing"),
        ('{"items":[{"count":1,"wat":1}]}', "items[0].wat is unknown"),
        ('{"items":[{"count":0}]}', "items[0].count must be a whole number of at least 1"),
        ('{"items":[{"count":1.5}]}', "items[0].count must be a whole number, not a fraction"),
        ('{"items":[{"count":null}]}', "items[0].count must be a whole number, not null"),
        ('{"items":[{"count":1,"share":0}]}', "items[0].share must be a number above 0"),
        ('{"items":[{"count":1,"share":2}]}', "items[0].share must be a number of at most 1"),
        ('{"items":[{"count":1,"name":""}]}', "items[0].name must be a string that is not empty"),
        ('{"items":[{"count":1,"name":"abcdef"}]}', "items[0].name must be a string of at most 5 characters"),
        ('{"items":[{"count":1,"code":"b"}]}', "items[0].code must be a string that matches '^a$'"),
        ('{"items":[{"count":1,"pair":[1]}]}', "items[0].pair must be a list of at least 2 items"),
        ('{"items":[{"count":1,"limits":{"z":1}}]}', "a key of items[0].limits cannot be 'z'"),
        ('{"items":[{"count":1,"either":[]}]}', "items[0].either must be a whole number or a string, not a list"),
        ('{"items":[{"count":1,"switch":1}]}', "items[0].switch must be true or false, not a whole number"),
        ('{"items":[{"count":true}]}', "items[0].count must be a whole number, not a boolean"),
        ('{"items":[{"count":1e999}]}', "items[0].count: number out of range"),
        ('{"items":', "the JSON ends too early"),
        ("items", "JSON is malformed: invalid character (byte 0)"),
        (b'{"items":[{"count":1,"name":"\xff"}]}', "not UTF-8, at byte 0"),
    ],
)
def test_a_wrong_value_is_named_in_words(line: str | bytes, words: str) -> None:
    kind = msgspec.defstruct("Items", [("items", list[Item])])
    with pytest.raises((msgspec.MsgspecError, UnicodeDecodeError, RecursionError)) as caught:
        msgspec.json.decode(line, type=kind)
    assert explain(caught.value) == words


def test_deep_nesting_is_named_in_words() -> None:
    with pytest.raises(RecursionError) as caught:
        msgspec.json.decode("[" * 100_000)
    assert explain(caught.value) == "nested too deeply"
