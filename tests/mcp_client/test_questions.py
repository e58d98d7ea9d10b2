"""Questions of servers to the user: shown on every surface, answered once, and declined without a user."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from daemons import running
from harness import Zot
from ui.terminal.stage import stage as terminal
from zot.config.flags import McpServer
from zot.errors import ProtocolError, UserError
from zot.events import QuestionChoice, QuestionField, QuestionRequest, ToolResult
from zot.questions import checked, typed
from zot.sdk.runtime import Runtime
from zot.wire.mcp import Elicitation, question_of

from .stage import SERVER, McpStage

CALL = "!script call mcp__s__echo {} ;; --- ;; say done"
SERVERS = {"s": McpServer(command=sys.executable, args=(SERVER, "form"))}


class Asked(McpStage):
    """A session whose subscriber can answer."""

    can_answer = True

    async def question(self) -> dict[str, Any]:
        """Call the tool and return the question that it leads to."""
        await self.learn()
        self.session.prompt(CALL)
        await self.until(lambda: any(event["type"] == "question_request" for event in self.events))
        return next(event for event in self.events if event["type"] == "question_request")

    def answer(self, question: Mapping[str, Any], action: str, **content: Any) -> None:
        self.session.worker.questions.answer(question["id"], action, content)

    async def outcome(self) -> Any:
        """The server's answer, after the run."""
        await self.session.worker.finish()
        [result] = [event for event in self.events if event["type"] == "tool_result"]
        return json.loads(result["content"][0]["text"])


@pytest.mark.parametrize("mode", ["form", "form-old"])
async def test_the_answer_reaches_the_server_with_defaults(tmp_path: Path, mode: str) -> None:
    async with Asked(tmp_path, mode) as stage:
        question = await stage.question()
        assert (question["origin"], question["message"]) == ("mcp:s", "Who are\\x1b you?")
        assert question["call"] == next(event["id"] for event in stage.events if event["type"] == "tool_call")
        assert [field["name"] for field in question["fields"]] == ["name", "age", "color"]
        assert stage.session.state().questions[0].id == question["id"]
        with pytest.raises(UserError, match="at least 2 characters"):
            stage.answer(question, "accept", name="x")
        with pytest.raises(UserError, match="no field 'other'"):
            stage.answer(question, "accept", name="Ann", other=1)
        stage.answer(question, "accept", name="Ann", color="red")
        with pytest.raises(UserError, match="is waiting"):
            stage.answer(question, "decline")
        assert await stage.outcome() == {"action": "accept", "content": {"name": "Ann", "age": 7, "color": "red"}}
        assert stage.session.state().questions == ()
        [answer] = [event for event in stage.events if event["type"] == "question_answer"]
        assert answer == {"type": "question_answer", "id": question["id"], "action": "accept"}


async def test_a_refusal_an_expiry_and_a_lost_client_are_answers_too(tmp_path: Path) -> None:
    async with Asked(tmp_path, "form") as stage:
        stage.answer(await stage.question(), "decline")
        assert await stage.outcome() == {"action": "decline"}
    async with Asked(tmp_path, "form", approval_timeout_s=0.01) as stage:
        await stage.question()
        assert await stage.outcome() == {"action": "cancel"}
    async with Asked(tmp_path, "form") as stage:
        await stage.question()
        stage.can_answer = False  # The client has hung up.
        stage.session.worker.approver_left()
        assert await stage.outcome() == {"action": "decline"}


async def test_an_abort_ends_the_question_with_the_run(tmp_path: Path) -> None:
    async with Asked(tmp_path, "form") as stage:
        question = await stage.question()
        stage.session.abort()
        await stage.session.worker.finish()
        kinds = [(event["type"], event.get("action")) for event in stage.events][-4:]
        assert kinds == [("question_answer", "aborted"), ("tool_result", None), ("turn_end", None), ("done", None)]
        with pytest.raises(UserError, match="is waiting"):
            stage.answer(question, "accept", name="Ann")


async def test_a_client_of_zot_rpc_answers(tmp_path: Path, zot: Any) -> None:
    server = shlex.join([sys.executable, SERVER, "form"])
    process: Zot = zot("--provider", "lab", "--mcp", f"s={server}")
    process.send({"type": "hello", "features": ["questions"]}, {"type": "prompt", "message": "hi"})
    process.until(type="done")
    while True:  # The server is asked for its tools in the background.
        process.send({"type": "prompt", "message": CALL})
        frames = process.until(type="turn_end", stop="tool_use")
        frame = process.read()
        if frame["type"] == "question_request":
            break
        process.until(type="done")
    assert frames
    state = process.ask({"type": "get_state", "id": "s"})
    assert [one["id"] for one in state["data"]["questions"]] == [frame["id"]]
    refused = process.ask({"type": "answer", "request": frame["id"], "action": "accept", "id": "a"})
    assert (refused["success"], refused["error"]) == (False, "name is required")
    process.send({"type": "answer", "request": frame["id"], "action": "accept", "content": {"name": "Ann"}})
    frames = process.until(type="done")
    [result] = [one for one in frames if one["type"] == "tool_result"]
    assert json.loads(result["content"][0]["text"])["content"] == {"name": "Ann", "age": 7}


async def test_a_client_of_the_daemon_answers_and_another_finds_the_question(tmp_path: Path) -> None:
    async with running(tmp_path, mcp=SERVERS) as daemon:
        caller = await daemon.caller()
        await caller.get("initialize", protocolVersion=1, features=["events", "questions"])
        await caller.get("session/new", agentAlias="default", sessionId="s")
        asked: list[dict[str, Any]] = []
        while not asked:
            number = caller.call("session/prompt", sessionId="s", prompt=CALL)
            while not asked:
                frame = await caller.read()
                if frame.get("id") == number:
                    break
                event = frame.get("params", {}).get("event", {})
                asked = [event] if event.get("type") == "question_request" else []
        other = await daemon.caller()
        state = await other.get("session/state", sessionId="s")
        assert [one["id"] for one in state["questions"]] == [asked[0]["id"]]
        code, why = await other.error(
            "session/answer", sessionId="s", requestId=asked[0]["id"], action="accept", content={}
        )
        assert (code, why) == (-32602, "name is required")
        await other.get("session/answer", sessionId="s", requestId=asked[0]["id"], action="decline")
        await caller.answer(number)
        assert '"action":"decline"' in json.dumps(caller.heard, separators=(",", ":"))


async def test_a_program_that_embeds_zot_answers(tmp_path: Path) -> None:
    env = {"ZOT_HOME": str(tmp_path)}
    async with Runtime(provider="lab", cwd=str(tmp_path), env=env, mcp=SERVERS, questions=True) as runtime:
        said = ""
        while "Ann" not in said:
            async for event in runtime.prompt(CALL):
                if isinstance(event, QuestionRequest):
                    runtime.answer(event.id, "accept", {"name": "Ann"})
                if isinstance(event, ToolResult):
                    said = str(event.content)


async def test_the_terminal_asks_field_by_field(tmp_path: Path) -> None:
    async with McpStage(tmp_path, mcp=SERVERS) as before:
        await before.prompt("say hi")
        await before.until_known("mcp__s__echo")
    async with terminal(tmp_path, mcp=SERVERS, env={"ZOT_HOME": str(tmp_path)}) as person:
        await person.sees("ready")
        await person.says(CALL)
        await person.decides("mcp:s asks", "y")
        await person.sees("Name")
        await person.pilot.press(*"A", "enter")
        await person.sees("at least 2 characters")
        await person.pilot.press(*"Ann", "enter")
        await person.sees("age (default: 7)")
        await person.pilot.press("8", "enter")
        await person.sees("leave it out")
        await person.pilot.press("down", "enter")
        await person.sees('"color": "green"')
        await person.idle()


def test_only_flat_questions_are_asked() -> None:
    def asked(**properties: Any) -> Elicitation:
        return Elicitation("?", requested_schema={"type": "object", "properties": properties})

    many = {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}, "minItems": 1}
    one = {"type": "string", "oneOf": [{"const": "a", "title": "A"}, {"const": "b"}]}
    question = question_of("s", asked(many=many, one=one))
    assert question.fields == (
        QuestionField("many", "choices", choices=(QuestionChoice("a", "A"),), minimum=1),
        QuestionField("one", "choice", choices=(QuestionChoice("a", "A"), QuestionChoice("b"))),
    )
    for wrong in ({"type": "object"}, {"type": "array"}, 7, {"type": "string", "enum": 7}):
        with pytest.raises(ProtocolError):
            question_of("s", asked(x=wrong))
    assert question_of("s", Elicitation("go", mode="url", url="https://x/y")).url == "https://x/y"
    for elicitation in (Elicitation("go", mode="url", url="javascript:x"), Elicitation("go", mode="else")):
        with pytest.raises(ProtocolError):
            question_of("s", elicitation)


FIELDS = (
    QuestionField("flag", "boolean", required=True),
    QuestionField("size", "number", minimum=0, maximum=2),
    QuestionField("some", "choices", choices=(QuestionChoice("a", "Ay"), QuestionChoice("b")), maximum=1),
)


@pytest.mark.parametrize(
    "content",
    [{}, {"flag": 1}, {"flag": True, "size": 3}, {"flag": True, "size": True}, {"flag": True, "size": float("inf")},
     {"flag": True, "some": ["a", "b"]}, {"flag": True, "some": ["c"]}, {"flag": True, "some": "a"}],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_refused(content: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        checked(FIELDS, content)


def test_typed_text_becomes_a_value() -> None:
    flag, size, some = FIELDS
    assert [typed(flag, "Yes"), typed(size, " 1.5 "), typed(some, "Ay"), typed(some, " ")] == [True, 1.5, ["a"], None]
    for field, text in ((flag, "maybe"), (size, "inf"), (size, "x"), (some, "c")):
        with pytest.raises(UserError):
            typed(field, text)
