"""Clients of /mcp that want more than their tokens allow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from serve.mcp.caller import TASKS, structured
from serve.mcp.test_http import WebCaller, frames, scoped
from serve.web.face import faced

ELICITS: dict[str, Any] = {"elicitation": {}, "extensions": {TASKS: {}}}


@pytest.mark.parametrize("roles", [("prompt",), ("prompt", "approve", "self_approve")])
async def test_a_token_that_cannot_view_learns_nothing_of_another_s_run(roles: tuple[str, ...], tmp_path: Path) -> None:
    async with faced(tmp_path, policy=("bash=ask",)) as face:
        owner = WebCaller(face, **ELICITS)
        asked = await owner.tool("zot", {"prompt": "!bash echo s3cret", "cwd": str(tmp_path)})
        handle = asked["requestState"]
        spy = WebCaller(face, scoped(face, "spy", *roles), **ELICITS)
        answers = [
            await spy.post("tasks/get", taskId=handle),
            await spy.post("tasks/cancel", taskId=handle),
            await spy.post("tools/call", name="zot", arguments={"prompt": "x"}, requestState=handle, inputResponses={}),
        ]
        assert [frames(one)[-1]["error"]["message"] for one in answers] == ["there is no such run"] * 3
        [key] = asked["inputRequests"]
        decision = {key: {"action": "accept", "content": {"decision": "reject"}}}
        done = await owner.tool("zot", {"prompt": "x"}, requestState=handle, inputResponses=decision)
        assert structured(done)["stop"] == "end_turn"
        assert "s3cret" not in json.dumps([frames(one) for one in answers])


async def test_a_token_continues_its_own_run(tmp_path: Path) -> None:
    async with faced(tmp_path, policy=("bash=ask",)) as face:
        mine = WebCaller(face, scoped(face, "mine", "prompt", "approve", "self_approve"), **ELICITS)
        asked = await mine.tool("zot", {"prompt": "!bash echo hi", "cwd": str(tmp_path)})
        assert (await mine.call("tasks/get", taskId=asked["requestState"]))["status"] == "input_required"


@pytest.mark.parametrize("role", ["view", "approve", "extend"])
async def test_a_token_without_prompt_gets_no_run(role: str, tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        caller = WebCaller(face, scoped(face, "one", role), **ELICITS)
        for method, params in (
            ("tools/call", {"name": "zot", "arguments": {"prompt": "!bash touch made"}}),
            ("tasks/get", {"taskId": "s#1"}),
            ("tasks/update", {"taskId": "s#1", "inputResponses": {}}),
            ("tasks/cancel", {"taskId": "s#1"}),
        ):
            [answer] = frames(await caller.post(method, **params))
            assert "needs a token with the role prompt" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Authorization": ""}, 401),
        ({"Authorization": "", "Cookie": "zot_web_00000000=x"}, 401),
        ({"Content-Type": "text/plain"}, 415),
    ],
)
async def test_a_page_or_a_stranger_gets_nothing(headers: dict[str, str], status: int, tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        assert (await WebCaller(face).post("tools/list", headers)).status == status


async def test_a_connection_belongs_to_the_token_that_opened_it(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        owner, other = WebCaller(face), WebCaller(face, scoped(face, "other", "prompt"))
        await owner.greet(elicitation={})
        other.connection = owner.connection
        for answer in (
            await other.post("tools/list"),
            await other.say({"jsonrpc": "2.0", "id": 1, "result": {"action": "accept"}}),
            await other.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}}),
            await face.ask("DELETE", "/mcp", headers=other.headers("", {})),
        ):
            assert answer.status == 404
        assert (await owner.post("tools/list")).status == 200
