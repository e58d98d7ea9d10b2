"""A conversation is encoded once, message by message, and anew only where it changed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fakes import FakeTransport, finish, open_session, talk
from zot.messages import Message, TextBlock
from zot.providers.anthropic import AnthropicMessages
from zot.providers.base import EncodedMessages, ModelRequest


class Encoder:
    """Encodes a message as its text after the role that was open, and counts its calls."""

    def __init__(self) -> None:
        self.encoded: list[str] = []

    def __call__(self, message: Message, role: str) -> tuple[bytes, str]:
        block = message.content[0]
        assert isinstance(block, TextBlock)
        self.encoded.append(block.text)
        return f"{role}>{block.text};".encode(), block.text


def say(text: str) -> Message:
    return Message("user", (TextBlock(text),), "t")


def text(encoded: EncodedMessages, messages: list[Message], encode: Encoder) -> tuple[bytes, str]:
    joined, role = encoded.text(messages, encode)
    return bytes(joined), role


def test_only_new_messages_are_encoded() -> None:
    encode, encoded = Encoder(), EncodedMessages()
    messages = [say("a"), say("b")]
    assert text(encoded, messages, encode) == (b">a;a>b;", "b")
    messages += [say("c")]
    assert text(encoded, messages, encode) == (b">a;a>b;b>c;", "c")
    assert text(encoded, messages, encode) == (b">a;a>b;b>c;", "c")
    assert encode.encoded == ["a", "b", "c"]


def test_equal_messages_need_not_be_identical() -> None:
    encode, encoded = Encoder(), EncodedMessages()
    encoded.text([say("a")], encode)
    assert text(encoded, [say("a"), say("b")], encode) == (b">a;a>b;", "b")
    assert encode.encoded == ["a", "b"]


def test_a_changed_conversation_is_encoded_anew_from_the_change() -> None:
    encode, encoded = Encoder(), EncodedMessages()
    a, b, c, summary = say("a"), say("b"), say("c"), say("s")
    encoded.text([a, b, c], encode)
    assert text(encoded, [a, c], encode) == (b">a;a>c;", "c")
    assert text(encoded, [a], encode) == (b">a;", "a")
    assert text(encoded, [summary, c], encode) == (b">s;s>c;", "c")
    assert text(encoded, [], encode) == (b"", "")
    assert text(encoded, [a], encode) == (b">a;", "a")
    assert encode.encoded == ["a", "b", "c", "c", "s", "c", "a"]


def test_another_api_encodes_everything_anew() -> None:
    first, second, encoded = Encoder(), Encoder(), EncodedMessages()
    messages = [say("a"), say("b")]
    encoded.text(messages, first)
    assert text(encoded, messages, second) == (b">a;a>b;", "b")
    assert second.encoded == ["a", "b"]


@given(st.lists(st.lists(st.integers(0, 4), max_size=6), max_size=6))
def test_the_encoding_always_equals_a_fresh_one(talks: list[list[int]]) -> None:
    words = [say(str(number)) for number in range(5)]
    encoded = EncodedMessages()
    encode = Encoder()
    for talk_ in talks:
        messages = [words[number] for number in talk_]
        assert text(encoded, messages, encode) == text(EncodedMessages(), messages, Encoder())


async def test_each_request_of_a_long_conversation_encodes_only_new_messages() -> None:
    """Count the messages whose blocks are read: encoding a message reads them."""
    looked: list[str] = []

    class Watched(TextBlock, tag="text", frozen=True, gc=False):
        def __getattribute__(self, name: str) -> object:
            if name == "text":
                looked.append(name)
            return super().__getattribute__(name)

    transport = FakeTransport()
    session = open_session(transport)
    session.replace_messages([Message("user", (Watched("word"),), "t") for _ in range(100)])
    await talk(session, "first")
    after_first = len(looked)
    assert after_first >= 100
    for _ in range(5):
        await talk(session, "more")
    assert len(looked) == after_first


async def test_every_request_equals_one_without_a_cache() -> None:
    transport = FakeTransport()
    session = open_session(transport)
    seen: list[tuple[Message, ...]] = []
    original = session.agent.provider.call

    def remembering(request: ModelRequest, on_retry: object) -> object:
        seen.append(tuple(request.messages))
        return original(request, on_retry)  # type: ignore[arg-type]

    session.agent.provider.call = remembering  # type: ignore[method-assign,assignment]
    for text in ("one", "two", "three"):
        await talk(session, text)
    session.compact()
    await finish(session)
    await talk(session, "after the compaction")
    session.clear()
    await talk(session, "after the clearing")
    session.replace_messages(seen[1])
    await talk(session, "after the replacement")
    assert len(transport.bodies) == 7
    api = AnthropicMessages(base_url="https://api.test", origin="anthropic")
    for messages, body in zip(seen, transport.bodies, strict=True):
        if b"hand-over" not in body:
            fresh = ModelRequest("claude-sonnet-4-5", "You are a test.", messages, (), 64_000, "off", EncodedMessages())
            assert api.request(fresh, "k").body == body
