"""Conversations of MCP clients with /mcp of a daemon, over HTTP."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from serve.mcp.caller import STATELESS, TASKS, WITH_HANDSHAKE, meta, structured
from serve.web.face import PATIENCE_S, Answer, Face, faced, until
from zot.config.tokens import make_scoped, revoke
from zot.serve.web import Limits


class WebCaller:
    """A client of /mcp. ``capabilities`` are those of a stateless client; a handshake sets ``connection``."""

    def __init__(self, face: Face, token: str = "", **capabilities: Any) -> None:
        self.face = face
        self.token = token or face.token
        self.capabilities = capabilities
        self.connection = ""
        self._count = 0

    def headers(self, method: str, params: dict[str, Any]) -> dict[str, str]:
        told = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}",
                "Accept": "application/json, text/event-stream"}  # fmt: skip
        if self.connection:
            return {**told, "Mcp-Session-Id": self.connection, "MCP-Protocol-Version": WITH_HANDSHAKE}
        name = params.get("name") or params.get("taskId")
        named = {} if name is None else {"Mcp-Name": name}
        return {**told, "MCP-Protocol-Version": STATELESS, "Mcp-Method": method, **named}

    async def post(self, method: str, _headers: dict[str, str] | None = None, **params: Any) -> Answer:
        """Send a request, and return the response."""
        self._count += 1
        if not self.connection:
            params["_meta"] = meta(self.capabilities, **params.get("_meta", {}))
        body = json.dumps({"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}).encode()
        headers = self.headers(method, params) | (_headers or {})
        return await self.face.ask("POST", "/mcp", body=body, headers=headers)

    async def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Return the result of a request."""
        answer = frames(await self.post(method, **params))[-1]
        assert "result" in answer, answer
        found: dict[str, Any] = answer["result"]
        return found

    async def tool(self, name: str, arguments: dict[str, Any], **more: Any) -> dict[str, Any]:
        return await self.call("tools/call", name=name, arguments=arguments, **more)

    async def greet(self, **capabilities: Any) -> None:
        """Open a connection of 2025-11-25."""
        params = {
            "protocolVersion": WITH_HANDSHAKE,
            "capabilities": capabilities,
            "clientInfo": {"name": "t", "version": "1"},
        }
        body = json.dumps({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}).encode()
        told = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        answer = await self.face.ask("POST", "/mcp", body=body, headers=told)
        assert answer.status == 200
        self.connection = answer.headers["mcp-session-id"]
        assert (await self.say({"jsonrpc": "2.0", "method": "notifications/initialized"})).status == 202

    async def say(self, message: dict[str, Any]) -> Answer:
        """Send a notification or a reply."""
        headers = self.headers("", {})
        return await self.face.ask("POST", "/mcp", body=json.dumps(message).encode(), headers=headers)


def scoped(face: Face, name: str, *roles: str, sessions: tuple[str, ...] | None = None) -> str:
    """Return a new token."""
    return make_scoped(tokens_of(face), name, roles=roles, sessions=sessions, expires=None, now=0.0)


def tokens_of(face: Face) -> str:
    return str(face.home / "data" / "token")


def frames(answer: Answer) -> list[dict[str, Any]]:
    """Return the messages of an answer: one, or those of a stream."""
    if answer.headers["content-type"] == "application/json":
        return [json.loads(answer.body)]
    return [json.loads(line[6:]) for line in unchunked(answer.body).splitlines() if line.startswith(b"data: ")]


def unchunked(body: bytes) -> bytes:
    whole = b""
    while body:
        size, _, rest = body.partition(b"\r\n")
        whole, body = whole + rest[: int(size, 16)], rest[int(size, 16) + 2 :]
    return whole


async def test_a_stateless_client_runs_prompts_and_continues(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        caller = WebCaller(face)
        assert (await caller.call("server/discover"))["capabilities"]["tools"] == {}
        assert [one["name"] for one in (await caller.call("tools/list"))["tools"]] == ["zot", "zot_reply"]
        done = structured(await caller.tool("zot", {"prompt": "!echo one"}))
        again = structured(await caller.tool("zot_reply", {"session": done["session"], "prompt": "!echo two"}))
        assert (again["session"], again["text"]) == (done["session"], "two")
        told = [(one["method"], one["outcome"]) for one in face.audited() if one["event"] == "call"]
        assert told == [("/mcp tools/call", "end_turn")] * 2


async def test_progress_makes_the_response_a_stream(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        answer = await WebCaller(face).post(
            "tools/call", name="zot", arguments={"prompt": "!read a"}, _meta={"progressToken": 7}
        )
        assert answer.headers["content-type"] == "text/event-stream"
        *progress, last = frames(answer)
        assert {one["params"]["progressToken"] for one in progress} == {7}
        assert structured(last["result"])["stop"] == "end_turn"


async def test_sessions_from_the_network_deny_what_no_policy_allows(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        await WebCaller(face).tool("zot", {"prompt": "!bash touch made", "cwd": str(tmp_path)})
        assert not (tmp_path / "made").exists()


async def test_a_question_to_a_stateless_client_survives_the_daemon(tmp_path: Path) -> None:
    arguments = {"prompt": "!bash touch made", "cwd": str(tmp_path)}
    async with faced(tmp_path, policy=("bash=ask",)) as face:
        asked = await WebCaller(face, elicitation={}).tool("zot", arguments)
        assert asked["resultType"] == "input_required"
    async with faced(tmp_path, policy=("bash=ask",)) as face:
        [key] = asked["inputRequests"]
        answer = {key: {"action": "accept", "content": {"decision": "allow_once"}}}
        caller = WebCaller(face, elicitation={})
        done = await caller.tool("zot", arguments, requestState=asked["requestState"], inputResponses=answer)
        assert (structured(done)["stop"], (tmp_path / "made").exists()) == ("end_turn", True)


async def test_a_client_of_a_connection_answers_in_a_request_of_its_own(tmp_path: Path) -> None:
    async with faced(tmp_path, policy=("bash=ask",)) as face:
        caller = WebCaller(face)
        await caller.greet(elicitation={})
        arguments = {"prompt": "!bash touch made", "cwd": str(tmp_path)}
        calling = asyncio.ensure_future(caller.post("tools/call", name="zot", arguments=arguments))
        pool = face.daemon.sessions.pool
        await until(lambda: any(one.approvals.pending is not None for one in pool.sessions))
        accepted = {"action": "accept", "content": {"decision": "allow_once"}}
        await until_taken(caller, {"jsonrpc": "2.0", "id": 1, "result": accepted}, calling)
        question, last = frames(await calling)
        assert question["method"] == "elicitation/create"
        assert (structured(last["result"])["stop"], (tmp_path / "made").exists()) == ("end_turn", True)


async def until_taken(caller: WebCaller, message: dict[str, Any], calling: asyncio.Future[Answer]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not calling.done():
            assert (await caller.say(message)).status == 202
            await asyncio.wait({calling}, timeout=0.01)


async def test_closing_a_stateless_request_aborts_its_run(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        caller = WebCaller(face)
        params = {"name": "zot", "arguments": {"prompt": "!stall-mid", "session": "s"}, "_meta": meta()}
        writer = await begun(caller, "tools/call", params)
        pool = face.daemon.sessions.pool
        await until(lambda: any(one.worker.has_begun for one in pool.sessions))
        writer.close()
        await until(lambda: not any(one.worker.busy for one in pool.sessions))
        assert structured(await caller.tool("zot_reply", {"session": "s", "prompt": "!echo on"}))["text"] == "on"


async def begun(caller: WebCaller, method: str, params: dict[str, Any]) -> asyncio.StreamWriter:
    """Send a request on a connection of its own, and do not wait for the answer."""
    _, writer = await asyncio.open_connection("127.0.0.1", caller.face.port)
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    lines = ["POST /mcp HTTP/1.1", f"Host: 127.0.0.1:{caller.face.port}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in caller.headers(method, params).items()]
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + body)
    await writer.drain()
    return writer


async def test_a_connection_is_cancelled_by_a_notification_and_not_by_closing_the_request(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        caller = WebCaller(face)
        await caller.greet()
        writer = await begun(
            caller, "tools/call", {"name": "zot", "arguments": {"prompt": "!stall-mid", "session": "s"}}
        )
        pool = face.daemon.sessions.pool
        await until(lambda: any(one.worker.has_begun for one in pool.sessions))
        writer.close()
        await face.ask("GET", "/healthz")  # It has seen the end of the connection by now.
        assert all(one.worker.busy for one in pool.sessions)
        await caller.say({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        await until(lambda: not any(one.worker.busy for one in pool.sessions))


async def test_a_connection_ends_with_delete_and_belongs_to_its_token(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        caller = WebCaller(face)
        await caller.greet()
        other = WebCaller(face, scoped(face, "other", "prompt"))
        other.connection = caller.connection
        assert (await other.post("tools/list")).status == 404
        assert (await other.say({"jsonrpc": "2.0", "method": "notifications/cancelled"})).status == 404
        assert (await caller.post("tools/list")).status == 200
        deleted = await face.ask("DELETE", "/mcp", headers=caller.headers("", {}))
        assert deleted.status == 204
        assert (await caller.post("tools/list")).status == 404
        caller.connection = "made-up"
        assert (await caller.post("tools/list")).status == 404


async def test_a_long_run_is_a_task_that_can_be_cancelled(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        caller = WebCaller(face, extensions={TASKS: {}})
        made = await caller.tool("zot", {"prompt": "!stall-mid"})
        assert made["resultType"] == "task"
        assert (await caller.call("tasks/get", taskId=made["taskId"]))["status"] == "working"
        assert (await caller.call("tasks/cancel", taskId=made["taskId"])).keys() == {"resultType", "_meta"}
        await until(lambda: not any(one.worker.busy for one in face.daemon.sessions.pool.sessions))
        assert (await caller.call("tasks/get", taskId=made["taskId"]))["status"] == "cancelled"
        error = frames(await caller.post("tasks/get", taskId="none#1"))[0]["error"]
        assert error["code"] == -32602


async def task_once(caller: WebCaller, task: str, status: str) -> dict[str, Any]:
    """Ask for a task, as clients do, until it has this status."""
    async with asyncio.timeout(PATIENCE_S):
        while (found := await caller.call("tasks/get", taskId=task))["status"] != status:
            await asyncio.sleep(0.02)
    return found


async def test_a_task_that_asks_is_answered_by_an_update(tmp_path: Path) -> None:
    async with faced(tmp_path, policy=("bash:sleep *=allow", "bash=ask")) as face:
        caller = WebCaller(face, elicitation={}, extensions={TASKS: {}})
        script = (
            '!script call bash {"command": "sleep 4"} ;; --- ;; call bash {"command": "touch made"} ;; --- ;; say ok'
        )
        made = await caller.tool("zot", {"prompt": script, "cwd": str(tmp_path)})
        task = made["taskId"]
        asked = await task_once(caller, task, "input_required")
        [key] = asked["inputRequests"]
        answer = {key: {"action": "accept", "content": {"decision": "allow_once"}}}
        await caller.call("tasks/update", taskId=task, inputResponses=answer)
        done = await task_once(caller, task, "completed")
        assert structured(done["result"])["text"] == "ok"
        assert (tmp_path / "made").exists()


async def test_a_session_of_another_agent_is_continued_without_naming_it(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text('[agents.coder]\nprovider = "lab"\n')
    async with faced(tmp_path) as face:
        caller = WebCaller(face)
        await caller.tool("zot", {"prompt": "!echo one", "session": "s", "agent": "coder"})
        assert structured(await caller.tool("zot", {"prompt": "!echo two", "session": "s"}))["text"] == "two"
        other = await caller.tool("zot", {"prompt": "!echo x", "session": "s", "agent": "default"})
        assert "belongs to the agent" in other["structuredContent"]["text"]


async def test_a_subscription_is_acknowledged_and_ends_with_the_daemon(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        caller = WebCaller(face)
        listening = asyncio.ensure_future(caller.post("subscriptions/listen", notifications={"toolsListChanged": True}))
        await asyncio.wait({listening}, timeout=0.2)
    answer = frames(await listening)[0]
    assert answer["method"] == "notifications/subscriptions/acknowledged"
    assert answer["params"]["notifications"] == {}


# Attacks.


async def test_hosts_origins_and_tokens_are_checked(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        caller = WebCaller(face)
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {"_meta": meta()}}).encode()
        headers = caller.headers("tools/list", {})
        assert (await face.ask("POST", "/mcp", body=body, headers=headers)).status == 200
        assert (await face.ask("POST", "/mcp", body=body, headers=headers, host="evil.example")).status == 421
        assert (
            await face.ask("POST", "/mcp", body=body, headers={**headers, "Origin": "http://evil.example"})
        ).status == 403
        assert (
            await face.ask("POST", "/mcp", body=body, headers={**headers, "Authorization": "Bearer no"})
        ).status == 401
        assert (
            await face.ask("POST", "/mcp", body=body, headers={**headers, "Content-Type": "text/plain"})
        ).status == 415
        assert (await face.ask("POST", f"/mcp?token={face.token}", body=body, headers=headers)).status == 400
        assert (await face.ask("GET", "/mcp", headers=headers)).status == 405


async def test_a_body_that_is_too_long_is_refused(tmp_path: Path) -> None:
    async with faced(tmp_path, limits=Limits(body=2000)) as face:
        assert (await WebCaller(face).post("tools/list", padding="x" * 3000)).status == 413


@pytest.mark.parametrize(
    "headers",
    [{"Mcp-Method": "tools/call"}, {"MCP-Protocol-Version": "1999-01-01"}, {"Mcp-Name": "zot_reply"},
     {"Mcp-Name": "=?base64?!!?="}],
)  # fmt: skip
async def test_headers_that_disagree_with_the_body_are_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async with faced(tmp_path) as face:
        caller = WebCaller(face)
        method = "tools/list" if "Mcp-Method" in headers else "tools/call"
        answer = await caller.post(method, headers, name="zot", arguments={"prompt": "!echo x"})
        assert (answer.status, frames(answer)[0]["error"]["code"]) == (400, -32020)
        encoded = {"Mcp-Name": "=?base64?em90?="}
        assert (await caller.post("tools/call", encoded, name="zot", arguments={"prompt": "!echo x"})).status == 200


async def test_roles_and_bound_sessions_hold(tmp_path: Path) -> None:
    async with faced(tmp_path, policy=("bash=ask",)) as face:
        viewer = WebCaller(face, scoped(face, "viewer", "view"))
        assert frames(await viewer.post("tools/list"))[0]["result"]["tools"]
        refused = frames(await viewer.post("tools/call", name="zot", arguments={"prompt": "!echo x"}))[0]
        assert "role prompt" in refused["error"]["message"]
        prompter = WebCaller(face, scoped(face, "prompter", "prompt"), elicitation={})
        denied = structured(await prompter.tool("zot", {"prompt": "!bash touch made", "cwd": str(tmp_path)}))["denied"]
        assert "no user could be asked" in denied[0]
        asked = await WebCaller(face, elicitation={}).tool("zot", {"prompt": "!bash touch made", "cwd": str(tmp_path)})
        answer = {key: {"action": "accept", "content": {"decision": "allow_once"}} for key in asked["inputRequests"]}
        watcher = WebCaller(face, scoped(face, "watcher", "prompt", "view"), elicitation={})
        stolen = frames(await watcher.post("tools/call", name="zot", arguments={"prompt": "x"},
                                           requestState=asked["requestState"], inputResponses=answer))[-1]  # fmt: skip
        assert "role approve" in stolen["error"]["message"]
        bound = WebCaller(face, scoped(face, "bound", "prompt", sessions=("mine",)))
        assert structured(await bound.tool("zot", {"prompt": "!echo x", "session": "mine"}))["text"] == "x"
        for arguments in ({"prompt": "!echo x"}, {"prompt": "!echo x", "session": "other"}):
            assert "error" in frames(await bound.post("tools/call", name="zot", arguments=arguments))[0]
        state = {"requestState": asked["requestState"]}
        assert "error" in frames(await bound.post("tools/call", name="zot", arguments={"prompt": "x"}, **state))[0]
        assert not (tmp_path / "made").exists()


async def test_many_connections_and_sessions_stay_bounded(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        first = WebCaller(face)
        await first.greet()
        for _ in range(256):
            await WebCaller(face).greet()
        assert (await first.post("tools/list")).status == 404


async def test_a_token_that_is_revoked_ends_its_calls(tmp_path: Path) -> None:
    async with faced(tmp_path) as face:
        caller = WebCaller(face, scoped(face, "leaving", "prompt"))
        calling = asyncio.ensure_future(caller.post("tools/call", name="zot", arguments={"prompt": "!stall-mid"}))
        pool = face.daemon.sessions.pool
        await until(lambda: any(one.worker.has_begun for one in pool.sessions))
        revoke(tokens_of(face), "leaving")
        assert (await calling).status == 202
        await until(lambda: not any(one.worker.busy for one in pool.sessions))
