"""Every method of the daemon works as documented, in both spellings."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from daemons import Caller, running
from zot.wire.daemon import METHODS

Call: TypeAlias = tuple[str, dict[str, Any], int | None]

#: Spelled as the host protocol is, on every connection.
HOST = {"request_id": "r", "session_id": "chat", "prompt": "!echo hi"}
#: One call of each method, in an order in which all make sense, and the error of those that cannot be done here.
CALLS: list[Call] = [
    ("initialize", {"protocolVersion": 1}, None),
    ("session/new", {"agentAlias": "default", "sessionId": "s"}, None),
    ("session/prompt", {"sessionId": "s", "prompt": "!echo hi", "promptId": "p"}, None),
    ("session/prompt", {"sessionId": "s", "prompt": "!bash true"}, None),
    ("session/steer", {"sessionId": "s", "prompt": "!stall"}, None),
    ("session/take_back", {"sessionId": "s", "promptId": "none"}, -32602),
    ("session/aside", {"sessionId": "s", "question": "!echo aside", "promptId": "q"}, None),
    ("session/cancel", {"sessionId": "s"}, None),
    ("session/approve", {"sessionId": "s", "requestId": "none", "decision": "reject_once"}, -32602),
    ("session/answer", {"sessionId": "s", "requestId": "none", "action": "decline"}, -32602),
    ("session/attach", {"sessionId": "s", "after": 0}, None),
    ("session/list", {"agentAlias": "default"}, None),
    ("session/list-acp", {"limit": 1}, None),
    ("session/messages", {"sessionId": "s", "beforeIndex": 2}, None),
    ("session/state", {"sessionId": "s"}, None),
    ("session/context", {"sessionId": "s"}, None),
    ("session/fork", {"sessionId": "s", "newSessionId": "t", "messages": 2}, None),
    ("session/configure", {"sessionId": "s", "overrides": {"reasoning": "low"}}, None),
    ("session/models", {"sessionId": "s"}, None),
    ("session/allowed", {"sessionId": "s"}, None),
    ("session/forget", {"sessionId": "s", "tool": "bash"}, -32602),
    ("session/dismiss", {"sessionId": "s", "name": "none"}, -32602),
    ("session/lock", {"sessionId": "s", "locked": True}, None),
    ("session/reload", {"sessionId": "s"}, None),
    ("session/commands", {"sessionId": "s"}, None),
    ("session/resources", {"sessionId": "s"}, None),
    ("session/run_command", {"sessionId": "s", "name": "none"}, -32602),
    ("session/panel_key", {"sessionId": "s", "panelId": "none", "key": "enter"}, -32602),
    ("session/panel_close", {"sessionId": "s", "panelId": "none"}, -32602),
    ("session/git_branch", {"sessionId": "s"}, None),
    ("session/extensions", {"sessionId": "s"}, None),
    ("session/files", {"sessionId": "s", "query": "x", "limit": 3}, None),
    ("session/image", {"sessionId": "s", "callId": "none"}, -32602),
    ("session/rename", {"sessionId": "s", "title": "a title"}, None),
    ("session/compact", {"sessionId": "s"}, None),
    ("session/undo_compact", {"sessionId": "s"}, None),
    ("session/rewind", {"sessionId": "s", "messages": 2, "files": True, "preview": True}, None),
    ("session/clear", {"sessionId": "s"}, None),
    ("session/detach", {"sessionId": "s"}, None),
    ("session/close", {"sessionId": "s"}, None),
    ("session/kill", {"sessionId": "t"}, None),
    ("session/delete", {"sessionId": "t"}, None),
    ("agents/list", {}, None),
    ("agents/status", {}, None),
    ("status", {}, None),
    ("health", {}, None),
    ("tui/list", {}, None),
    ("cost/query", {"agent": "default"}, None),
    ("audit/recent", {"limit": 2}, None),
    ("logs/subscribe", {}, None),
    ("sessions/watch", {}, None),
    ("config/list", {"prefix": "x"}, None),
    ("config/sections", {}, None),
    ("config/templates", {}, None),
    ("config/reload", {}, None),
    ("host/respond", HOST, None),
    ("host/delivered", {"requestId": "r"}, None),
    ("daemon/stop", {"graceS": 0.5}, None),
]


def snake(value: Any) -> Any:
    """Return parameters as released clients spell them."""
    if isinstance(value, dict):
        return {
            re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", key): snake(inner) for key, inner in value.items()
        }
    return value


def keys(method: str, *, spells_snake: bool) -> tuple[set[str], set[str]]:
    """Return which keys the answer to a method has, and which it must have."""
    fields = msgspec.structs.fields(METHODS[method].result)
    named = [(field.name if spells_snake else field.encode_name, field.default) for field in fields]
    return {name for name, _ in named}, {name for name, default in named if default is not msgspec.UNSET}


async def called(caller: Caller, call: Call, *, spells_snake: bool) -> None:
    """Call a method, and check that it is answered as it is declared."""
    method, params, code = call
    answer = await caller.ask(method, **(snake(params) if spells_snake else params))
    if code is not None:
        assert answer["error"]["code"] == code, answer
        return
    known, needed = keys(method, spells_snake=spells_snake)
    assert needed <= answer["result"].keys() <= known, answer


@pytest.mark.parametrize("spells_snake", [False, True])
async def test_every_method_can_be_called(tmp_path: Path, spells_snake: bool) -> None:
    assert METHODS.keys() == {name for name, _, _ in CALLS}
    async with running(tmp_path) as daemon:
        caller = await daemon.stranger()
        for call in CALLS:
            await called(caller, call, spells_snake=spells_snake)
