from __future__ import annotations

import json
from typing import Any

import pytest

from zot.providers.base import Deadlines, HttpRequest
from zot.providers.lab.script import Script
from zot.providers.lab.transport import LabTransport

from .talk import CHAT, GEMINI, MESSAGES, RESPONSES, Clock, body, called, read_all, said, send, user

PLAY = """
scene one
status 529
---
call bash {"command": "a"}
---
status 500
repeat 2
---
call bash {"command": "b"}
---
say "end of one"

scene two '(.*)'
say "two: $1"
"""


def playing(lines: str) -> LabTransport:
    return LabTransport(Script.parse(lines, "play.lab"), sleep=Clock())


async def answer(transport: LabTransport, request: bytes) -> str:
    """Return a summary of a reply: its text, the command it calls, or its status."""
    response = await send(transport, request)
    data = (await read_all(response)).decode()
    if response.status != 200:
        return str(response.status)
    for command in "ab":
        if f'{{\\"command\\":\\"{command}\\"}}' in data:
            return f"call {command}"
    return "".join(json.loads(line[6:])["delta"]["text"] for line in data.split("\n") if '"text_delta"' in line)


async def test_each_request_of_a_prompt_takes_the_next_reply() -> None:
    transport = playing(PLAY)
    first, second, third = body("one"), body("one", *called("t1")), body("one", *called("t1"), *called("t2"))
    requests = [first, first, second, second, second, third]
    heard = [await answer(transport, request) for request in requests]
    assert heard == ["529", "call a", "500", "500", "call b", "end of one"]


async def test_a_new_prompt_chooses_its_scene_anew() -> None:
    transport = playing(PLAY)
    history = [user("one"), *called("t1"), {"role": "assistant", "content": "end"}]
    assert await answer(transport, body("one")) == "529"
    assert await answer(transport, body(*history, "two x")) == "two: x"
    assert await answer(transport, body(*history, "one")) == "529"


async def test_conversations_do_not_disturb_each_other() -> None:
    transport = playing(PLAY)
    heard = []
    for name in ("x", "y"):
        history = [user(f"I am {name}"), {"role": "assistant", "content": "hello"}]
        first = body(*history, "one")
        heard.append([await answer(transport, first), await answer(transport, first)])
    for name in ("x", "y"):
        history = [user(f"I am {name}"), {"role": "assistant", "content": "hello"}]
        heard.append([await answer(transport, body(*history, "one", *called("t1"), *called("t2")))])
    assert heard == [["529", "call a"], ["529", "call a"], ["end of one"], ["end of one"]]


async def test_even_conversations_that_say_the_same_get_the_same_answers() -> None:
    transport = playing('scene\ncall bash {"command": "a"}\n---\nsay end')
    first, second = body("go"), body("go", *called("t1"))
    heard = [await answer(transport, request) for request in (first, first, second, second)]
    assert heard == ["call a", "call a", "end", "end"]


async def test_requests_with_different_keys_never_share_a_retry() -> None:
    transport = playing("scene\nstatus 529\n---\nsay ok")
    statuses = []
    for key in ("a", "b", "a", "b"):
        request = HttpRequest("http://lab/v1/messages", {"x-api-key": key}, body("go"))
        statuses.append((await transport.send(request, Deadlines())).status)
    assert statuses == [529, 529, 200, 200]


@pytest.mark.parametrize(
    ("target", "first", "again"),
    [
        (
            RESPONSES,
            {"model": "m", "input": [{"role": "user", "content": "go"}], "client_metadata": {"a": "1", "b": "2"}},
            {"client_metadata": {"b": "3", "a": "1"}, "input": [{"content": "go", "role": "user"}], "model": "m"},
        ),
        (
            MESSAGES,
            {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": "go"}]}]},
            {
                "model": "m",
                "metadata": {"user_id": "x"},
                "messages": [
                    {
                        "role": "user",
                        "content": [{"type": "text", "text": "go", "cache_control": {"type": "ephemeral"}}],
                    }
                ],
            },
        ),
        (
            CHAT,
            {"model": "m", "messages": [{"role": "user", "content": "go"}]},
            {"messages": [{"role": "user", "content": "go"}], "model": "m", "temperature": 0, "user": "x"},
        ),
        (
            GEMINI,
            {"contents": [{"role": "user", "parts": [{"text": "go"}]}]},
            {"generationConfig": {"seed": 1}, "contents": [{"parts": [{"text": "go"}], "role": "user"}]},
        ),
    ],
)
async def test_a_retry_is_recognised_by_its_conversation(target: str, first: object, again: object) -> None:
    transport = playing("scene\nstatus 429\n---\nsay ok")
    requests = (json.dumps(document).encode() for document in (first, again))
    assert [(await send(transport, request, target=target)).status for request in requests] == [429, 200]


async def test_a_request_for_another_model_is_not_a_retry() -> None:
    transport = playing("scene\nstatus 429\n---\nsay ok")
    requests = [json.dumps({"model": model, "messages": [user("go")]}).encode() for model in "abab"]
    assert [(await send(transport, request)).status for request in requests] == [429, 429, 200, 200]


async def test_a_scene_continues_from_the_conversation_even_after_a_restart() -> None:
    assert await answer(playing(PLAY), body("one", *called("t1"), *called("t2"))) == "end of one"


@pytest.mark.parametrize(("at", "heard"), [(0, "end of one"), (1, "two: x")])
async def test_text_with_tool_results_is_a_prompt_only_after_them(at: int, heard: str) -> None:
    document = json.loads(body("one", *called("t1"), *called("t2")))
    document["messages"][-1]["content"].insert(at, {"type": "text", "text": "two x"})
    assert await answer(playing(PLAY), json.dumps(document).encode()) == heard


AGENT = """
scene !work
call bash {"command": "a"}
---
call bash {"command": "b"}
---
say "worked"

scene !other
say "other"

scene
call bash {"command": "a"}
---
say "shown"
"""
REMINDER = "<system-reminder>Keep the list of tasks current.</system-reminder>"


def reminded(messages: list[dict[str, Any]], text: str, *, apart: bool = False) -> list[dict[str, Any]]:
    """The same messages, with a text of the agent after the tool results that end them."""
    if apart:
        return [*messages, user(text)]
    *before, last = messages
    return [*before, {**last, "content": [*last["content"], {"type": "text", "text": text}]}]


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize(
    ("prompt", "answers"), [("!work", ["call a", "call b", "worked"]), ("hello", ["call a", "shown"])]
)
async def test_a_reminder_after_tool_results_does_not_restart_a_scene(
    prompt: str, answers: list[str], *, apart: bool
) -> None:
    transport, messages, heard = playing(AGENT), [user(prompt)], []
    for turn in range(len(answers)):
        heard.append(await answer(transport, body(*messages)))
        messages += reminded(called(f"t{turn}"), REMINDER, apart=apart)
    assert heard == answers


async def test_a_text_after_tool_results_that_names_a_scene_starts_it() -> None:
    steered = reminded(called("t1"), "!other")
    assert await answer(playing(AGENT), body("!work", *steered)) == "other"
    again = reminded(called("t1"), "!work")
    assert await answer(playing(AGENT), body("!work", *again)) == "call a"


async def test_a_text_beside_the_prompt_does_not_hide_it() -> None:
    parts = [{"type": "text", "text": text} for text in (REMINDER, "!work", REMINDER)]
    request = body({"role": "user", "content": parts}, *called("t1"))
    assert await answer(playing(AGENT), request) == "call b"


async def test_a_new_prompt_that_names_no_scene_does_not_continue_the_last_one() -> None:
    finished = [user("!other"), {"role": "assistant", "content": "other"}]
    assert await answer(playing(AGENT), body(*finished, "hello")) == "call a"


@pytest.mark.parametrize("apart", [True, False])
async def test_a_prompt_after_one_that_got_no_answer_is_answered(*, apart: bool) -> None:
    transport = playing("scene !fail\nstatus 401\nrepeat\n\nscene\nsay hello")
    messages = [user("!fail")]
    assert await answer(transport, body(*messages)) == "401"
    if apart:
        messages.append(user("hi"))
    else:
        messages = [{"role": "user", "content": [{"type": "text", "text": text} for text in ("!fail", "hi")]}]
    assert await answer(transport, body(*messages)) == "hello"


async def test_markup_after_a_prompt_does_not_hide_its_scene() -> None:
    transport = playing("scene !fail\nstatus 401\nrepeat\n\nscene\nsay hello")
    assert await answer(transport, body("!fail", REMINDER)) == "401"


async def test_an_expression_that_matches_everything_is_a_catch_all() -> None:
    transport = playing('scene \'(.*)\'\ncall bash {"command": "a"}\n---\nsay "$1"')
    assert await answer(transport, body("hello", *reminded(called("t1"), REMINDER))) == "hello"


@pytest.mark.parametrize("role", ["system", "developer"])
async def test_only_messages_of_the_user_are_the_prompt(role: str) -> None:
    aside = {"role": role, "content": "!other"}
    transport = playing(AGENT)
    for target, key, message in (
        (MESSAGES, "messages", user("!work")),
        (CHAT, "messages", user("!work")),
        (RESPONSES, "input", user("!work")),
        (GEMINI, "contents", {"role": "user", "parts": [{"text": "!work"}]}),
    ):
        spoken = aside if key != "contents" else {"role": role, "parts": [{"text": "!other"}]}
        request = json.dumps({"model": "m", "stream": True, key: [spoken, message, spoken]}).encode()
        assert b"bash" in await read_all(await send(transport, request, target=target)), target


class Continued:
    """A client of the Responses API that sends only new items."""

    def __init__(self, lines: str) -> None:
        self.transport = playing(lines)
        self.id: str | None = None

    async def ask(self, new: object, *, previous: str | None = None, **more: object) -> Any:
        document = {"model": "m", "input": new, "previous_response_id": previous or self.id, **more}
        response = await send(self.transport, json.dumps(document).encode(), target=RESPONSES)
        answered = json.loads(await read_all(response))
        self.id = answered.get("id", self.id)
        return answered

    async def said(self, new: object, **more: Any) -> str:
        [item] = (await self.ask(new, **more))["output"]
        return str(json.loads(item["arguments"])["command"] if "arguments" in item else item["content"][0]["text"])


def result(id_: str) -> list[dict[str, str]]:
    return [{"type": "function_call_output", "call_id": id_, "output": "ok"}]


async def test_a_response_continues_the_one_before_it() -> None:
    client = Continued(AGENT)
    first = await client.ask("!work")
    assert [await client.said(result("call_lab_1")), await client.said(result("call_lab_2"))] == ["b", "worked"]
    assert [await client.said("!other"), await client.said("hello")] == ["other", "a"]
    assert await client.said(result("call_lab_1"), previous=first["id"]) == "b"


async def test_call_ids_are_new_to_a_conversation_that_is_continued() -> None:
    client = Continued(AGENT)
    answers = [await client.ask("!work"), await client.ask(result("call_lab_1"))]
    assert [answer["output"][0]["call_id"] for answer in answers] == ["call_lab_1", "call_lab_2"]


async def test_a_streamed_response_can_be_continued() -> None:
    client = Continued(AGENT)
    request = json.dumps({"model": "m", "input": "!work", "stream": True}).encode()
    await read_all(await send(client.transport, request, target=RESPONSES))
    assert await client.said(result("call_lab_1"), previous="resp_lab_1") == "b"


async def test_a_retry_of_a_continued_response_is_recognised() -> None:
    client = Continued('scene\ncall bash {"command": "a"}\n---\nstatus 529\n---\nsay end')
    await client.ask("go")
    assert "error" in await client.ask(result("call_lab_1"))
    assert await client.said(result("call_lab_1")) == "end"


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"previous": "resp_lab_9"}, "previous_response_id", "previous_response_not_found"),
        ({"conversation": "conv_1"}, "conversation", "conversation_not_found"),
        ({"conversation": {"id": "conv_1"}}, "conversation", "conversation_not_found"),
    ],
)
async def test_a_conversation_that_lab_does_not_have_is_refused(more: dict[str, Any], param: str, code: str) -> None:
    error = (await Continued(AGENT).ask("!work", **more))["error"]
    assert (error["type"], error["param"], error["code"]) == ("invalid_request_error", param, code)


async def test_a_response_that_is_not_to_be_stored_is_not() -> None:
    client = Continued(AGENT)
    await client.ask("!work", store=False)
    assert "store=false" in (await client.ask(result("call_lab_1")))["error"]["message"]


async def test_a_response_that_was_cut_off_is_not_remembered() -> None:
    client = Continued("scene\nsay half\nno-end")
    request = json.dumps({"model": "m", "input": "go", "stream": True}).encode()
    await read_all(await send(client.transport, request, target=RESPONSES))
    assert "not found" in (await client.ask("more", previous="resp_lab_1"))["error"]["message"]


@pytest.mark.parametrize(("limit", "most"), [("_MOST_RESPONSES", 2), ("_MOST_CHARS", 1000)])
async def test_remembered_responses_are_bounded(monkeypatch: pytest.MonkeyPatch, limit: str, most: int) -> None:
    monkeypatch.setattr(f"zot.providers.lab.openai_responses.{limit}", most)
    client = Continued("scene\nsay ok")
    ids = []
    for number in range(3):
        client.id = None
        ids.append((await client.ask(f"{number}" * 300))["id"])
    assert "error" in await client.ask("more", previous=ids[0])
    assert await client.said("more", previous=ids[2]) == "ok"


async def test_the_last_text_of_a_message_is_the_prompt() -> None:
    parts = [{"type": "text", "text": "some context"}, {"type": "text", "text": "two x"}]
    assert await said(playing(PLAY), body({"role": "user", "content": parts})) == "two: x"


@pytest.mark.parametrize(
    ("lines", "requests", "message"),
    [
        ("say a\n---\nsay b", 2, "play.lab has no reply left: it has 2 replies, and each request takes one"),
        ("say a", 1, "play.lab has no reply left: it has 1 reply, and each request takes one"),
        ("scene other\nsay a", 0, "play.lab has no scene for the prompt 'hi'"),
        ("scene hi\nstatus 500", 1, "play.lab has no reply left: its scene has 1 reply, and each request takes one"),
        ("scene '(.*)'\nwords $1", 0, 'play.lab:2: found "hi" where a number should be; expected: words COUNT'),
    ],
)  # fmt: skip
async def test_a_script_without_an_answer_says_so(lines: str, requests: int, message: str) -> None:
    transport = playing(lines)
    for _ in range(requests):
        await read_all(await send(transport, body("hi")))
    response = await send(transport, body("hi"))
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
    assert (response.status, json.loads(await read_all(response))) == (400, error)


async def test_a_script_without_scenes_is_a_tape() -> None:
    transport = playing("say a\n---\nstatus 529\nrepeat 2\n---\nsay b\n---\nsay c\nrepeat")
    heard = [await said(transport, body(prompt)) for prompt in "uvwxyzuv"]
    assert heard == ["a", "status 529", "status 529", "b", "c", "c", "c", "c"]


async def test_a_tape_leaves_dollars_alone() -> None:
    assert await said(playing('say "$1 $model $HOME"'), body("x")) == "$1 $model $HOME"


async def test_repeat_plays_the_last_reply_without_end() -> None:
    transport = playing('scene\ncall bash {"command": "a"}\nrepeat')
    history: list[dict[str, object]] = [user("go")]
    for turn in range(5):
        assert await answer(transport, body(*history)) == "call a"
        history += called(f"t{turn}")


async def test_placeholders_know_the_prompt_and_the_model() -> None:
    transport = playing("scene '(\\w+)'\nsay \"$1 $chars $model $x\"")
    assert await said(transport, body("hey you")) == "hey 7 lab $x"


async def test_a_prompt_can_be_a_script() -> None:
    transport = playing("scene !script '(.+)'\nscript \"$1\"")
    prompt = '!script status 529 ;; --- ;; say "a" "$1"\n---\nsay "b"'
    assert await said(transport, body(prompt)) == "status 529"
    assert await said(transport, body(prompt)) == "a$1"
    assert await said(transport, body(prompt, *called("t1"))) == "b"
    assert await said(transport, body("!script sing")) == "status 400"
    assert await said(transport, body("!script scene x ;; say y")) == "status 400"


async def test_made_up_call_ids_are_new_to_the_conversation() -> None:
    transport = playing("scene\ncall a\ncall b\ncall c id=mine\nrepeat")

    async def ids(request: bytes) -> list[str]:
        data = (await read_all(await send(transport, request))).decode()
        starts = [json.loads(line[6:]) for line in data.split("\n") if '"content_block":' in line]
        return [start["content_block"]["id"] for start in starts]

    assert await ids(body("go")) == ["toolu_lab_1", "toolu_lab_2", "mine"]
    assert await ids(body("go", *called("toolu_lab_7", "toolu_lab_x", "call_lab_3"))) == [
        "toolu_lab_8",
        "toolu_lab_9",
        "mine",
    ]


async def test_remembered_retries_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("zot.providers.lab.stage._REMEMBERED", 2)
    transport = playing("scene\nstatus 529\n---\nsay ok")
    assert [await said(transport, body(prompt)) for prompt in "abc"] == ["status 529"] * 3
    assert [await said(transport, body(prompt)) for prompt in "cba"] == ["ok", "ok", "status 529"]
