"""Compaction: which messages are kept, the text of the summary, and that calls stay with their results."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import claude
from fakes import NOON, PNG, FakeTransport, finish, kinds, listen, open_session, talk
from zot.agent.compaction import KEEP_MESSAGES
from zot.events import CompactDone
from zot.messages import CallBlock, Message, ResultBlock, Role, TextBlock, ThinkingBlock, TranscriptBlock
from zot.providers.base import Model

SUMMARY = claude.reply(claude.text("They talked."))


def said(role: Role, *blocks: TranscriptBlock) -> Message:
    return Message(role, blocks, NOON)


def user(text: str) -> Message:
    return said("user", TextBlock(text))


def turn(number: int) -> list[Message]:
    """A model's turn with a call, and its result."""
    return [
        said("assistant", CallBlock(f"c{number}", "t", {})),
        said("tool", ResultBlock(f"c{number}", False, (TextBlock("r"),))),
    ]


async def compacted(messages: list[Message]) -> tuple[list[Message], dict[str, Any]]:
    """Return the compacted conversation, and the request that the model got."""
    transport = FakeTransport([SUMMARY])
    session = open_session(transport, reasoning="high")
    session.replace_messages(messages)
    listener = listen(session)
    session.compact()
    await finish(session)
    assert CompactDone("They talked.") in listener.events
    body: dict[str, Any] = json.loads(transport.bodies[0])
    return list(session.history.transcript.messages), body


async def test_the_newest_messages_stay_unchanged() -> None:
    messages = [user(str(number)) for number in range(7)]
    kept, _ = await compacted(messages)
    assert kept == [user("## Context Summary (compacted)\n\nThey talked."), *messages[3:]]


async def test_results_stay_with_their_calls() -> None:
    messages = [user("go"), user("on"), *turn(1), *turn(2), user("x")]
    kept, _ = await compacted(messages)
    assert kept[1:] == messages[2:]


async def test_the_model_is_asked_for_text_alone() -> None:
    _, body = await compacted([user(str(number)) for number in range(7)])
    assert "tools" not in body
    assert "thinking" not in body
    assert body["max_tokens"] == 4096
    assert len(body["messages"]) == 1
    assert "hand-over notes" in body["system"][0]["text"]


async def test_the_summariser_gets_the_messages_as_text() -> None:
    messages = [
        said("user", TextBlock("look"), PNG),
        said("assistant", ThinkingBlock("secret", "sig"), CallBlock("c1", "read", {"path": "x"}),
             CallBlock("c2", "read", None, malformed="{")),
        said("tool", ResultBlock("c1", False, (TextBlock("seen"),)), ResultBlock("c2", True, (TextBlock("bad"),))),
        *(user("kept") for _ in range(KEEP_MESSAGES)),
    ]  # fmt: skip
    _, body = await compacted(messages)
    text = body["messages"][0]["content"][0]["text"]
    assert text.startswith(
        "<conversation>\n"
        "[user]\nlook\n(image: image/png, 4 bytes)\n\n"
        "[assistant]\n(thought about it)\n(calls read with {'path': 'x'})\n(calls read with {)\n\n"
        "[tool]\n(result: seen)\n(failed: bad)\n"
        "</conversation>\n\n"
    )
    assert "secret" not in text
    assert "kept" not in text


async def test_a_long_block_is_summarised_from_its_beginning_and_end() -> None:
    _, body = await compacted([user("a" * 5000 + "z" * 5000), *(user("kept") for _ in range(KEEP_MESSAGES))])
    text = body["messages"][0]["content"][0]["text"]
    assert f"{'a' * 2000}\n[... 6000 characters left out ...]\n{'z' * 2000}" in text
    assert "a" * 2001 not in text


async def test_a_compacted_conversation_can_be_compacted_again() -> None:
    session = open_session(FakeTransport([SUMMARY]))
    session.replace_messages([user(str(number)) for number in range(7)])
    session.compact()
    await finish(session)
    await talk(session, "go on")
    listener = listen(session)
    session.compact()
    await finish(session)
    assert CompactDone("fine") in listener.events
    assert len(session.history.transcript) == KEEP_MESSAGES + 1


async def test_a_second_summary_replaces_the_first() -> None:
    transport = FakeTransport([SUMMARY, claude.reply(claude.text("They talked more."))])
    session = open_session(transport)
    session.replace_messages([user(f"said {number}") for number in range(7)])
    for _ in range(2):
        session.compact()
        await finish(session)
        session.replace_messages([*session.history.transcript.messages, user("and more")])
    text = json.loads(transport.bodies[1])["messages"][0]["content"][0]["text"]
    assert text.startswith("<notes>\nThey talked.\n</notes>\n\n<conversation>\n[user]\nsaid 3\n</conversation>\n\n")
    assert "keep what still holds" in text
    assert session.history.transcript.messages[0] == user("## Context Summary (compacted)\n\nThey talked more.")
    assert len(session.history.transcript) == KEEP_MESSAGES + 2


async def test_a_summary_alone_is_not_summarised_again() -> None:
    transport = FakeTransport([SUMMARY])
    session = open_session(transport)
    session.replace_messages([user(str(number)) for number in range(7)])
    session.compact()
    session.compact()
    listener = listen(session)
    await finish(session)
    assert len(transport.requests) == 1
    assert kinds(listener.events) == ["usage", "compact_done", "done", "error", "done"]


async def test_a_summary_that_was_cut_off_says_so() -> None:
    session = open_session(FakeTransport([claude.reply(claude.text("They"), ends="max_tokens")]))
    session.replace_messages([user(str(number)) for number in range(7)])
    listener = listen(session)
    session.compact()
    await finish(session)
    assert CompactDone("They\n\n[These notes were cut off at the length limit.]") in listener.events


@pytest.mark.parametrize(
    ("count", "is_shortened", "is_cut"), [(24, False, False), (80, True, False), (1000, True, True)]
)
async def test_the_request_for_a_summary_fits_whatever_must_be_summarised(
    count: int, is_shortened: bool, is_cut: bool
) -> None:
    """The oldest messages are shortened, then omitted; the newest stay whole."""
    transport = FakeTransport([SUMMARY])
    model = Model("m", "anthropic", 50_000, 8000, reasoning=False)
    session = open_session(transport, models=[model], model="m")
    session.replace_messages([user(f"{number} ".ljust(2000, "é")) for number in range(count)])
    session.compact()
    await finish(session)
    text = json.loads(transport.bodies[0])["messages"][0]["content"][0]["text"]
    assert len(text.encode()) < 3 * (50_000 - 8000)
    assert f"\n{count - KEEP_MESSAGES - 1} ".ljust(2000, "é") in text
    first = int(text.split("[user]\n")[1].split()[0])
    assert (first > 0, f"(the oldest {first} messages are left out)" in text) == (is_cut, is_cut)
    assert ("characters left out ...]" in text) == is_shortened
    assert len(session.history.transcript) == KEEP_MESSAGES + 1


_part = st.sampled_from(["user", "turn", "text"])


@settings(max_examples=60, deadline=None)
@given(st.lists(_part, min_size=1, max_size=9))
def test_no_pair_is_ever_torn_apart(parts: list[str]) -> None:
    messages: list[Message] = [user("begin")]
    for number, part in enumerate(parts):
        match part:
            case "user":
                messages.append(user("more"))
            case "turn":
                messages += turn(number)
            case _:
                messages.append(said("assistant", TextBlock("text")))
    kept = _kept(messages)
    if kept is None:
        assert len(messages) <= KEEP_MESSAGES + 1 or messages[-KEEP_MESSAGES].role == "tool"
        return
    assert kept == messages[-len(kept) :]
    assert KEEP_MESSAGES <= len(kept) < len(messages)
    assert kept[0].role != "tool"


def _kept(messages: list[Message]) -> list[Message] | None:
    """Return the messages that a compaction keeps; None if there is nothing to compact."""
    import asyncio

    async def run() -> list[Message] | None:
        session = open_session(FakeTransport([SUMMARY]))
        session.replace_messages(messages)
        session.compact()
        await finish(session)
        after = list(session.history.transcript.messages)
        return None if after == messages else after[1:]

    return asyncio.run(run())


@pytest.mark.parametrize("count", range(KEEP_MESSAGES + 1))
async def test_a_short_conversation_is_not_compacted(count: int) -> None:
    transport = FakeTransport()
    session = open_session(transport)
    session.replace_messages([user("x") for _ in range(count)])
    session.compact()
    await finish(session)
    assert (transport.requests, len(session.history.transcript)) == ([], count)


async def test_a_failed_compaction_still_counts_its_usage() -> None:
    session = open_session(FakeTransport([claude.reply(claude.text("  "))]))
    session.replace_messages([user("x") for _ in range(KEEP_MESSAGES + 1)])
    listener = listen(session)
    session.compact()
    await finish(session)
    assert kinds(listener.events) == ["usage", "error", "done"]
    assert session.history.totals.input > 0
