"""Ids of tool calls: missing, duplicate, and refused by other services."""

from __future__ import annotations

import re

import pytest

from zot.messages import CallBlock, Message
from zot.providers.sse import CallIds, acceptable_id, acceptable_name, finished_call


def said(*ids: str) -> Message:
    return Message("assistant", tuple(CallBlock(call_id, "t", {}) for call_id in ids), "t")


@pytest.mark.parametrize(
    ("before", "given", "taken"),
    [
        ((), ("a", "b"), ["a", "b"]),
        ((), ("", "", "call_1"), ["call_1", "call_2", "call_3"]),
        ((), ("a", "a"), ["a", "call_2"]),
        (("call_1",), ("call_1", "call_1"), ["call_2", "call_3"]),
        (("call_2", "x"), ("", "x", "y"), ["call_3", "call_4", "y"]),
    ],
)
def test_an_id_is_new_to_the_conversation(before: tuple[str, ...], given: tuple[str, ...], taken: list[str]) -> None:
    ids = CallIds([said(*before)])
    assert [ids.take(call_id) for call_id in given] == taken


def test_the_substitute_for_a_foreign_id_is_short_and_unique() -> None:
    strange = ["functions.read:1", "functions.read:2", "é", "x" * 65, "", "a b"]
    stand_ins = [acceptable_id(call_id) for call_id in strange]
    assert all(re.fullmatch("c[0-9a-f]{8}", call_id) for call_id in stand_ins)
    assert len({*stand_ins}) == len(strange)
    assert acceptable_id("toolu_1-a") == "toolu_1-a"
    assert acceptable_id("toolu_1", "[a-zA-Z0-9]{9}") != "toolu_1"


@pytest.mark.parametrize(
    ("name", "sent"), [("read", "read"), ("a.b c", "a_b_c"), ("", "unknown"), ("x" * 70, "x" * 64)]
)
def test_an_invalid_tool_name_becomes_a_valid_one(name: str, sent: str) -> None:
    assert acceptable_name(name) == sent


def test_a_lone_surrogate_costs_one_character_and_not_the_call() -> None:
    assert finished_call("c", "t", r'{"a": "x\ud83d"}') == CallBlock("c", "t", {"a": "x�"})
