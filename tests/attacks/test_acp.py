"""A hostile repository or model in an editor, whose cards must show the command that runs; and a hostile editor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from editor import Editor
from zot.wire.acp import ToolCards


@pytest.mark.parametrize("one", ["\x1b", "\x9b", "\u200b", "\u202e", "\u2066", "\u3164", "\u00a0", "\r", "\U000e0041"])
@pytest.mark.parametrize(
    ("tool", "argument"), [("bash", "command"), ("write", "path"), ("skill", "name"), ("of-an-extension", "path")]
)
def test_the_title_of_a_call_shows_every_character(tool: str, argument: str, one: str) -> None:
    args: dict[str, Any] = {argument: f"rm{one}x\nls"}
    card = ToolCards(lambda: "/w").call("1", tool, args)
    assert one not in card["title"]
    assert f"{ord(one):x}" in card["title"] or "\\r" in card["title"]
    assert card["title"].endswith("x\nls")
    assert card["rawInput"] == args  # Programs get the arguments unchanged.


def test_only_the_choice_for_this_request_approves(editors: Callable[..., Editor]) -> None:
    editor = editors("--policy", "bash=ask")
    number = editor.start(editor.new(), "!bash touch made")
    request = editor.until_asked()["id"]
    allowed = {"outcome": {"outcome": "selected", "optionId": "allow_once"}}
    for wrong in (request + 1, str(request), None, [request], request + 0.5):
        editor.send({"jsonrpc": "2.0", "id": wrong, "result": allowed})
    editor.send({"jsonrpc": "2.0", "id": request, "error": {"code": 1, "message": "no"}, "result": allowed})
    unknown = {"outcome": {"outcome": "selected", "optionId": "allow_everything"}}
    for result in (unknown, allowed):  # The first answer counts, and it is none of the choices.
        editor.send({"jsonrpc": "2.0", "id": request, "result": result})
    assert editor.answer_of(number)["result"]["stopReason"] == "end_turn"
    assert not (editor.cwd / "made").exists()


def test_an_id_in_use_is_refused_and_its_prompt_continues(editors: Callable[..., Editor]) -> None:
    editor = editors()
    session = editor.new()
    number = editor.start(session, "!stall-mid")
    for method in ("session/prompt", "session/list"):
        params = {"sessionId": session, "prompt": [{"type": "text", "text": "!echo two"}]}
        editor.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        assert editor.answer_of(number)["error"]["code"] == -32600
    editor.tell("$/cancel_request", requestId=[number])
    editor.tell("$/cancel_request", requestId=str(number))
    editor.call("session/list")
    editor.tell("$/cancel_request", requestId=number)
    assert editor.answer_of(number)["result"]["stopReason"] == "cancelled"
    assert editor.leave() == []
