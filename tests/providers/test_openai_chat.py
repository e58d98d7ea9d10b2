"""Chat Completions: requests equal the recorded ones, for every vendor, and the strictest server accepts them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from asking import CALL, RESULT, TOOLS, ask, assistant, results, user
from chat_validator import problems
from hypothesis import given, settings
from hypothesis import strategies as st
from inline_snapshot import snapshot

from zot.config.vendors import COMPATIBLE, VENDORS, ChatQuirks
from zot.messages import (
    CallBlock,
    ImageBlock,
    Message,
    ResultBlock,
    TextBlock,
    ThinkingBlock,
    TranscriptBlock,
)
from zot.providers.base import EncodedMessages, Reasoning
from zot.providers.openai_chat import ChatCompletions

QUIRKS: dict[str, ChatQuirks] = {
    **{name: vendor.chat for name, vendor in VENDORS.items() if "chat" in vendor.apis},
    "somebody": COMPATIBLE,
}
PNG = ImageBlock("image/png", b"\x89PNG")
PNG_PART = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}}


def api(vendor: str = "openai", base_url: str = "https://api.test") -> ChatCompletions:
    return ChatCompletions(base_url=base_url, origin=vendor, quirks=QUIRKS[vendor])


def body_of(*messages: Message, vendor: str = "openai", **changes: Any) -> dict[str, Any]:
    body = api(vendor).request(ask(*messages, **changes), "k").body
    assert problems(body, QUIRKS[vendor]) == []
    parsed: dict[str, Any] = json.loads(body)
    return parsed


def messages_of(*messages: Message, vendor: str = "openai", **changes: Any) -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = body_of(*messages, vendor=vendor, **changes)["messages"]
    return said


def test_a_request_is_one_post_with_the_key_in_its_header() -> None:
    request = api().request(ask(user("hi")), "sk-1")
    assert (request.method, request.url, dict(request.headers)) == (
        "POST",
        "https://api.test/v1/chat/completions",
        {"content-type": "application/json", "accept": "text/event-stream", "authorization": "Bearer sk-1"},
    )
    assert "authorization" in request.secret_headers


def test_without_a_key_nothing_is_authorized() -> None:
    assert "authorization" not in api("ollama").request(ask(user("hi")), "").headers


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("https://api.test", "https://api.test/v1/chat/completions"),
        ("https://api.test/", "https://api.test/v1/chat/completions"),
        ("https://api.test/v1", "https://api.test/v1/chat/completions"),
        ("https://api.test/v1/", "https://api.test/v1/chat/completions"),
        ("https://api.test/api/paas/v4", "https://api.test/api/paas/v4/chat/completions"),
        ("https://api.test/v1beta/openai/", "https://api.test/v1beta/openai/chat/completions"),
        ("https://api.test/v1/chat/completions", "https://api.test/v1/chat/completions"),
        ("https://api.test/chat/completions", "https://api.test/chat/completions"),
        ("https://api.test/openai", "https://api.test/openai/v1/chat/completions"),
        ("https://v1.test", "https://v1.test/v1/chat/completions"),
    ],
)
def test_an_address_is_accepted_with_and_without_its_version(base_url: str, url: str) -> None:
    assert api(base_url=base_url).request(ask(user("hi")), "k").url == url


@pytest.mark.parametrize(
    ("vendor", "url"),
    [
        ("openai", "https://api.openai.com/v1/chat/completions"),
        ("deepseek", "https://api.deepseek.com/v1/chat/completions"),
        ("kimi", "https://api.moonshot.ai/v1/chat/completions"),
        ("openrouter", "https://openrouter.ai/api/v1/chat/completions"),
        ("ollama", "http://localhost:11434/v1/chat/completions"),
        ("groq", "https://api.groq.com/openai/v1/chat/completions"),
        ("mistral", "https://api.mistral.ai/v1/chat/completions"),
        ("xai", "https://api.x.ai/v1/chat/completions"),
    ],
)
def test_every_vendor_has_its_address(vendor: str, url: str) -> None:
    assert api(vendor, VENDORS[vendor].base_url).request(ask(user("hi")), "k").url == url


def test_a_whole_request() -> None:
    body = body_of(user("one"), assistant("two"), user("three"), system="Be brief.", tools=TOOLS)
    assert body == snapshot(
        {
            "model": "m",
            "stream": True,
            "max_completion_tokens": 1000,
            "stream_options": {"include_usage": True},
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "read",
                        "description": "Read a file.",
                        "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
                    },
                },
                {
                    "type": "function",
                    "function": {
                        "name": "bash",
                        "description": "Run a command.",
                        "parameters": {"type": "object"},
                    },
                },
            ],
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "one"},
                {"role": "assistant", "content": "two"},
                {"role": "user", "content": "three"},
            ],
        }
    )


def test_each_vendor_is_asked_in_its_own_dialect() -> None:
    about = {
        vendor: {key for key in body_of(user("hi"), vendor=vendor) if key not in ("model", "messages", "stream")}
        for vendor in QUIRKS
    }
    usual = {"max_tokens", "stream_options"}
    assert about == {
        "openai": {"max_completion_tokens", "stream_options"},
        "deepseek": {*usual, "thinking"},
        "kimi": {*usual, "thinking"},
        "openrouter": usual,
        "ollama": {*usual, "reasoning_effort"},
        "groq": {"max_completion_tokens", "stream_options"},
        "mistral": {"max_tokens"},
        "xai": {"max_completion_tokens", "stream_options"},
        "lab": usual,
        "somebody": usual,
    }


ENABLED, DISABLED = {"thinking": {"type": "enabled"}}, {"thinking": {"type": "disabled"}}


@pytest.mark.parametrize(
    ("vendor", "model", "expected"),
    [
        ("openai", "gpt-5", [{}, *({"reasoning_effort": level} for level in ("low", "medium", "high"))]),
        ("somebody", "m", [{}, *({"reasoning_effort": level} for level in ("low", "medium", "high"))]),
        (
            "deepseek",
            "deepseek-chat",
            [DISABLED, *({**ENABLED, "reasoning_effort": level} for level in ("low", "medium", "high"))],
        ),
        ("kimi", "kimi-k2.5", [DISABLED, ENABLED, ENABLED, ENABLED]),
        ("kimi", "kimi-k2-thinking", [{}, {}, {}, {}]),
        ("kimi", "moonshot-v1-8k", [{}, {}, {}, {}]),
        ("openrouter", "a/b", [{}, *({"reasoning": {"effort": level}} for level in ("low", "medium", "high"))]),
        ("ollama", "qwen3", [{"reasoning_effort": level} for level in ("none", "low", "medium", "high")]),
        (
            "groq",
            "openai/gpt-oss-120b",
            [{}, *({"reasoning_effort": level} for level in ("low", "medium", "high"))],
        ),
        (
            "groq",
            "qwen/qwen3-32b",
            [{"reasoning_effort": "none"}, *[{"reasoning_effort": "default", "reasoning_format": "parsed"}] * 3],
        ),
        ("groq", "llama-3.3-70b-versatile", [{}, {}, {}, {}]),
        ("mistral", "magistral-medium-latest", [{}, {}, {}, {}]),
        ("xai", "grok-3-mini", [{}, *({"reasoning_effort": level} for level in ("low", "high", "high"))]),
        ("xai", "grok-4", [{}, {}, {}, {}]),
    ],
)
def test_the_reasoning_effort_is_in_the_vendor_s_terms(vendor: str, model: str, expected: list[dict[str, Any]]) -> None:
    levels: tuple[Reasoning, ...] = ("off", "low", "medium", "high")
    bodies = [body_of(user("hi"), vendor=vendor, model=model, reasoning=level) for level in levels]
    keys = ("reasoning_effort", "reasoning_format", "reasoning", "thinking")
    assert [{key: body[key] for key in keys if key in body} for body in bodies] == expected


def test_images_are_sent_and_unsupported_ones_described() -> None:
    conversation = (user("look", PNG, ImageBlock("image/tiff", b"II*"), ImageBlock("image/png", b"")),)
    assert messages_of(*conversation) == snapshot(
        [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "look"},
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw=="}},
                    {"type": "text", "text": "[an image was left out: image/tiff, 3 bytes]"},
                    {"type": "text", "text": "[an image was left out: image/png, 0 bytes]"},
                ],
            }
        ]
    )


@pytest.mark.parametrize(
    ("vendor", "image", "taken"),
    [
        ("deepseek", PNG, False),
        ("xai", ImageBlock("image/webp", b"RIFF"), False),
        ("kimi", ImageBlock("image/webp", b"RIFF"), True),
        ("groq", ImageBlock("image/png", bytes(3_000_000)), True),
        ("groq", ImageBlock("image/png", bytes(3_000_001)), False),
        ("openai", ImageBlock("image/png", bytes(3_000_001)), True),
        ("openai", ImageBlock("image/png", bytes(15_000_001)), False),
    ],
)
def test_each_vendor_has_its_limits_for_images(vendor: str, image: ImageBlock, *, taken: bool) -> None:
    (said,) = messages_of(user(image), vendor=vendor)
    note = f"[an image was left out: {image.mime_type}, {len(image.data)} bytes]"
    assert (said["content"] == note) is not taken


def test_calls_and_their_results() -> None:
    conversation = (
        user("go"),
        assistant("Yes.", CallBlock("c1", "read", {"path": "ö"}), CallBlock("c2", "bash", None, malformed="{"), "Now."),
        results(
            ResultBlock("c1", is_error=False, content=(TextBlock("seen"), TextBlock("twice"))),
            ResultBlock("c2", is_error=True, content=(TextBlock("not JSON"),)),
        ),
        user("and?"),
    )
    assert messages_of(*conversation, tools=TOOLS) == snapshot(
        [
            {"role": "user", "content": "go"},
            {
                "role": "assistant",
                "content": "Yes.\nNow.",
                "tool_calls": [
                    {"id": "c1", "type": "function", "function": {"name": "read", "arguments": '{"path":"ö"}'}},
                    {"id": "c2", "type": "function", "function": {"name": "bash", "arguments": "{}"}},
                ],
            },
            {
                "role": "tool",
                "tool_call_id": "c1",
                "content": """\
seen
twice\
""",
            },
            {
                "role": "tool",
                "tool_call_id": "c2",
                "content": """\
[error]
not JSON\
""",
            },
            {"role": "user", "content": "and?"},
        ]
    )


def test_images_of_results_follow_them_together_with_the_next_user_message() -> None:
    shown = (TextBlock("seen"), PNG, ImageBlock("image/tiff", b"II*"))
    conversation = (
        user("go"),
        assistant(CALL, CallBlock("c2", "t", {})),
        results(ResultBlock("c1", is_error=False, content=shown), ResultBlock("c2", is_error=False, content=(PNG,))),
        user("and?"),
        assistant("Fine."),
        user("bye"),
    )
    assert messages_of(*conversation)[2:] == [
        {
            "role": "tool",
            "tool_call_id": "c1",
            "content": "seen\n[an image: see below]\n[an image was left out: image/tiff, 3 bytes]",
        },
        {"role": "tool", "tool_call_id": "c2", "content": "[an image: see below]"},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "The images that the tools returned:"},
                PNG_PART,
                PNG_PART,
                {"type": "text", "text": "and?"},
            ],
        },
        {"role": "assistant", "content": "Fine."},
        {"role": "user", "content": "bye"},
    ]


@pytest.mark.parametrize("content", [(), (TextBlock(""),), (TextBlock(" \n"),)])
def test_a_result_without_output_says_so(content: tuple[TextBlock, ...]) -> None:
    said = messages_of(user("go"), assistant(CALL), results(ResultBlock("c1", is_error=False, content=content)))
    assert said[2]["content"] == "(no output)"


def test_a_failure_without_output_is_still_one() -> None:
    said = messages_of(user("go"), assistant(CALL), results(ResultBlock("c1", is_error=True, content=())))
    assert said[2]["content"] == "[error]"


def test_messages_of_one_role_are_merged_and_empty_ones_omitted() -> None:
    conversation = (
        user("a"),
        user("b", "c"),
        assistant(""),
        user(" "),
        user('"d"'),
        assistant("e"),
        user("f"),
        user(" "),
    )
    assert messages_of(*conversation) == [
        {"role": "user", "content": [{"type": "text", "text": text} for text in ("a", "b", "c", '"d"')]},
        {"role": "assistant", "content": "e"},
        {"role": "user", "content": "f"},
    ]


def test_texts_and_images_of_one_role_become_one_list() -> None:
    assert messages_of(user("a"), user(PNG), user("b")) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, PNG_PART, {"type": "text", "text": "b"}]},
    ]


def test_an_empty_conversation_is_sent_without_messages() -> None:
    body = json.loads(api().request(ask(system="s"), "k").body)
    assert body["messages"] == [{"role": "system", "content": "s"}]
    assert json.loads(api().request(ask(), "k").body)["messages"] == []


@pytest.mark.parametrize("vendor", QUIRKS)
def test_an_assistant_message_separates_user_and_tool_where_the_vendor_needs_it(vendor: str) -> None:
    roles = [said["role"] for said in messages_of(user("a"), assistant(CALL), RESULT, user("b"), vendor=vendor)]
    bridge = ["assistant"] if vendor == "mistral" else []
    assert roles == ["user", "assistant", "tool", *bridge, "user"]


@pytest.mark.parametrize(
    ("vendor", "call_id", "sent"),
    [
        ("openai", "functions.bash:0", "functions.bash:0"),
        ("openai", "c" * 64, "c" * 64),
        ("openai", "c" * 65, "cd51a1fe2"),
        ("openai", "é", "c0e048d3e"),
        ("openai", "", "c00000000"),
        ("mistral", "D681PevKs", "D681PevKs"),
        ("mistral", "toolu_01A", "c01f42422"),
    ],
)
def test_an_id_that_the_service_would_refuse_is_replaced(vendor: str, call_id: str, sent: str) -> None:
    said = messages_of(
        user("a"),
        assistant(CallBlock(call_id, "t", {})),
        results(ResultBlock(call_id, is_error=False, content=())),
        vendor=vendor,
    )
    assert (said[1]["tool_calls"][0]["id"], said[2]["tool_call_id"]) == (sent, sent)


@pytest.mark.parametrize(
    ("name", "sent"), [("read", "read"), ("a.b c", "a_b_c"), ("", "unknown"), ("é" * 80, "_" * 64)]
)
def test_an_invalid_name_does_not_end_the_conversation(name: str, sent: str) -> None:
    said = messages_of(user("a"), assistant(CallBlock("c1", name, {})), RESULT)
    assert said[1]["tool_calls"][0]["function"]["name"] == sent


# Thoughts.

SEAL = '[{"type":"reasoning.text","text":"Hm","signature":"s"}]'


@pytest.mark.parametrize("vendor", ["deepseek", "kimi", "lab"])
def test_thoughts_before_a_call_are_sent_back_unchanged(vendor: str) -> None:
    conversation = (
        user("a"),
        assistant(ThinkingBlock("Hm"), "b", ThinkingBlock(", so."), CALL, origin=vendor),
        RESULT,
        assistant(ThinkingBlock("Well"), "c", origin=vendor),
        user("d"),
    )
    said = messages_of(*conversation, vendor=vendor)
    assert [message.get("reasoning_content") for message in said] == [None, "Hm, so.", None, None, None]


@pytest.mark.parametrize("vendor", ["deepseek", "kimi"])
def test_a_missing_thought_is_replaced_where_the_vendor_needs_one(vendor: str) -> None:
    said = messages_of(user("a"), assistant(ThinkingBlock("Hm", "s"), CALL, origin="anthropic"), RESULT, vendor=vendor)
    assert said[1]["reasoning_content"] == "(no thought is known)"


@pytest.mark.parametrize(
    ("thoughts", "sent"),
    [
        ([ThinkingBlock("Hm", SEAL)], {"reasoning_details": json.loads(SEAL)}),
        ([ThinkingBlock("Hm", SEAL), ThinkingBlock("So")], {"reasoning_details": json.loads(SEAL)}),
        ([ThinkingBlock("Hm"), ThinkingBlock("So")], {"reasoning": "HmSo"}),
        ([ThinkingBlock("Hm", "bm9ib2R5cw==")], {"reasoning": "Hm"}),
        ([ThinkingBlock("Hm", "[" * 10_000)], {"reasoning": "Hm"}),
        ([], {}),
    ],
)
@pytest.mark.parametrize("calls", [[], [CALL]])
def test_sealed_thoughts_are_sent_back_unchanged(
    thoughts: list[ThinkingBlock], sent: dict[str, Any], calls: list[CallBlock]
) -> None:
    follows = RESULT if calls else user("c")
    said = messages_of(user("a"), assistant(*thoughts, "b", *calls, origin="openrouter"), follows, vendor="openrouter")
    assert {key: value for key, value in said[1].items() if key.startswith("reasoning")} == sent


@pytest.mark.parametrize("vendor", QUIRKS)
def test_thoughts_of_another_provider_are_not_sent(vendor: str) -> None:
    thought = assistant(ThinkingBlock("secret", SEAL), "b", CALL, origin="gemini")
    assert "secret" not in json.dumps(messages_of(user("a"), thought, RESULT, vendor=vendor))


@pytest.mark.parametrize("vendor", ["openai", "ollama", "groq", "mistral", "xai", "somebody"])
def test_thoughts_are_not_sent_unless_the_vendor_wants_them(vendor: str) -> None:
    said = messages_of(user("a"), assistant(ThinkingBlock("Hm", SEAL), "b", CALL), RESULT, vendor=vendor)
    assert "Hm" not in json.dumps(said)


def test_a_message_that_is_only_a_thought_is_left_out() -> None:
    assert messages_of(user("a"), assistant(ThinkingBlock("Hm")), user("b"), vendor="deepseek") == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]


@pytest.mark.parametrize("half", ["\ud83d", "a\ude00", "\ud83d\ude00"])
def test_a_lone_surrogate_does_not_break_a_conversation(half: str) -> None:
    whole = half.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    said = messages_of(
        user(half),
        assistant(CallBlock("c1", "t", {half: half})),
        results(ResultBlock("c1", is_error=False, content=(TextBlock(half),))),
        system=half,
    )
    assert [message["content"] for message in said] == [whole, whole, None, whole]
    assert json.loads(said[2]["tool_calls"][0]["function"]["arguments"]) == {whole: whole}


# A conversation only grows.


@pytest.mark.parametrize("vendor", QUIRKS)
def test_sent_messages_stay_byte_equal(vendor: str) -> None:
    conversation = [
        user("a"),
        assistant(ThinkingBlock("Hm"), "b", CALL, origin=vendor),
        results(ResultBlock("c1", is_error=False, content=(TextBlock("seen"), PNG))),
        user("c"),
        assistant("d", origin=vendor),
        user("e", PNG),
        assistant(CALL, origin=vendor),
        RESULT,
        user("f"),
    ]
    asked, encoded = api(vendor), EncodedMessages()
    before: list[Any] = []
    for count in range(1, len(conversation) + 1):
        body = asked.request(ask(*conversation[:count], encoded=encoded), "k").body
        assert body == asked.request(ask(*conversation[:count]), "k").body
        # All but the user's last message, which may continue.
        messages = json.loads(body)["messages"]
        assert messages[: len(before)] == before
        before = messages[:-1] if messages[-1]["role"] == "user" else messages


def test_encoded_messages_are_not_encoded_again() -> None:
    looked: list[str] = []

    class Watched(TextBlock, tag="text", frozen=True, gc=False):
        def __getattribute__(self, name: str) -> object:
            if name == "text":
                looked.append(name)
            return super().__getattribute__(name)

    asked, encoded = api(), EncodedMessages()
    conversation = [user(Watched("a")), assistant(Watched("b"))] * 50
    asked.request(ask(*conversation, user("c"), encoded=encoded), "k")
    first = len(looked)
    assert first >= 100
    asked.request(ask(*conversation, user("d"), user("e"), encoded=encoded), "k")
    assert len(looked) == first


_texts = st.sampled_from(["", " ", "a", 'b "c"', "\ud83d"])
_images = st.sampled_from([PNG, ImageBlock("image/tiff", b"II"), ImageBlock("image/webp", b"RIFF")])
_said = st.one_of(_texts.map(TextBlock), _images)


@st.composite
def _turn(draw: st.DrawFn, number: int) -> list[Message]:
    """A prompt of the user, the answer of the model, and the results of its calls."""
    origin = draw(st.sampled_from(["", "deepseek", "openrouter", "gemini"]))
    ids = [f"c{number}.{index}" for index in range(draw(st.integers(0, 2)))]
    blocks: list[TranscriptBlock] = [
        TextBlock(draw(_texts)),
        ThinkingBlock(draw(_texts), draw(st.sampled_from(["", SEAL]))),
    ]
    blocks += [
        CallBlock(call_id, draw(st.sampled_from(["t", "a b", ""])), draw(st.sampled_from([{}, None])))
        for call_id in ids
    ]
    turn = [user("go", *draw(st.lists(_said, max_size=2))), Message("assistant", tuple(blocks), "t", origin=origin)]
    shown = [ResultBlock(id_, draw(st.booleans()), tuple(draw(st.lists(_said, max_size=2)))) for id_ in ids]
    return [*turn, results(*shown)] if shown else turn


@settings(max_examples=200, deadline=None)
@given(st.data(), st.sampled_from(sorted(QUIRKS)), st.integers(0, 4))
def test_the_strictest_server_accepts_any_conversation(data: st.DataObject, vendor: str, turns: int) -> None:
    messages = [message for number in range(turns) for message in data.draw(_turn(number))]
    assert problems(api(vendor).request(ask(*messages, user("now?")), "k").body, QUIRKS[vendor]) == []
