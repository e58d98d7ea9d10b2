"""An editor that talks to the real `zot acp`: every frame it receives is checked against the protocol's own models."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import jsonschema_rs

from harness import Zot, environment

if TYPE_CHECKING:
    from pydantic import TypeAdapter

    from forked import ForkServer

Frame: TypeAlias = dict[str, Any]

#: The model of each answer, by the method.
ANSWERS = {
    "initialize": "InitializeResponse",
    "authenticate": "AuthenticateResponse",
    "logout": "LogoutResponse",
    "session/new": "NewSessionResponse",
    "session/load": "LoadSessionResponse",
    "session/resume": "ResumeSessionResponse",
    "session/fork": "ForkSessionResponse",
    "session/list": "ListSessionsResponse",
    "session/close": "CloseSessionResponse",
    "session/delete": "DeleteSessionResponse",
    "session/prompt": "PromptResponse",
    "session/set_mode": "SetSessionModeResponse",
    "session/set_config_option": "SetSessionConfigOptionResponse",
}
REQUESTS = {
    "session/update": "SessionNotification",
    "session/request_permission": "RequestPermissionRequest",
    "elicitation/create": "CreateElicitationRequest",
    "fs/read_text_file": "ReadTextFileRequest",
    "fs/write_text_file": "WriteTextFileRequest",
}
#: In the published schema, but not in the models of the Python package.
NEWER = {"notice", "compaction_update"}


def check(name: str, value: Any) -> None:
    """Check a value against the named model, which must have every field of the value.

    The path of a copy of the published schema.json in ACP_SCHEMA makes it an oracle, too.
    """
    if (published := _published(name)) is not None:
        published.validate(value)
    if not (name == "SessionNotification" and value["update"]["sessionUpdate"] in NEWER):
        value, model = _without_names(value), _model(name)
        assert model.dump_python(model.validate_python(value), mode="json", by_alias=True, exclude_unset=True) == value


@cache
def _model(name: str) -> TypeAdapter[Any]:
    # They take a tenth of the collection: loaded by the worker that needs them.
    from acp import schema
    from pydantic import TypeAdapter

    return TypeAdapter(getattr(schema, name))


def _without_names(value: Any) -> Any:
    """Return ``value`` without the name of a tool, which the models of the Python package do not know."""
    match value:
        case {"update": {"sessionUpdate": "tool_call", "name": _} as card}:
            return {**value, "update": {key: one for key, one in card.items() if key != "name"}}
        case {"toolCall": {"name": _} as card}:
            return {**value, "toolCall": {key: one for key, one in card.items() if key != "name"}}
        case _:
            return value


@cache
def _published(name: str) -> jsonschema_rs.Validator | None:
    if (path := os.environ.get("ACP_SCHEMA")) is None:
        return None
    definitions = json.loads(Path(path).read_text())["$defs"]
    return (
        jsonschema_rs.validator_for({"$ref": f"#/$defs/{name}", "$defs": definitions}) if name in definitions else None
    )


class Editor(Zot):
    """A client of `zot acp` in ``cwd``; the journal is in ``cwd/home``."""

    def __init__(self, *flags: str, cwd: Path, fork_server: ForkServer, env: dict[str, str] | None = None) -> None:
        provider = () if "--provider" in flags else ("--provider", "lab")
        variables = environment({"ZOT_HOME": str(cwd / "home"), **(env or {})})
        self.cwd = cwd
        self.process = fork_server.fork(["acp", *provider, *flags], cwd, variables)
        self.frames: list[Frame] = []
        self._unread = bytearray()
        self._lines: list[bytes] = []
        self._asked: dict[int, str] = {}
        #: Unsaved text by path, whether it opens other files, whether it saves, and what it was asked for.
        self.buffers: dict[str, str] = {}
        self.opens = self.saves = True
        self.accessed: list[tuple[str, str]] = []

    def read(self, *, within_s: float = 15.0) -> Frame:
        frame: Frame = json.loads(self.read_line(within_s=within_s))
        assert frame["jsonrpc"] == "2.0"
        if "method" in frame:
            if frame["method"] in REQUESTS:
                check(REQUESTS[frame["method"]], frame["params"])
            else:
                assert frame["method"] == "$/cancel_request"
        elif "result" in frame:
            check(ANSWERS[self._asked.pop(frame["id"])], frame["result"])
        else:
            check("Error", frame["error"])
        self.frames.append(frame)
        if frame.get("method") in ("fs/read_text_file", "fs/write_text_file"):
            self._access(frame["method"], frame["id"], frame["params"])
        return frame

    def _access(self, method: str, number: int, params: Frame) -> None:
        """Answer as an editor does: a buffer counts, and a change is saved."""
        path = params["path"]
        self.accessed.append((method.removeprefix("fs/"), path))
        answer: Frame = {"error": {"code": -32603, "message": "not in the project"}}
        if method == "fs/read_text_file" and (path in self.buffers or (self.opens and Path(path).is_file())):
            answer = {"result": {"content": self.buffers.get(path) or Path(path).read_text()}}
        elif method == "fs/write_text_file" and self.saves:
            if path in self.buffers:
                self.buffers[path] = params["content"]
            Path(path).write_text(params["content"])
            answer = {"result": {}}
        self.send({"jsonrpc": "2.0", "id": number, **answer})

    def ask_for(self, method: str, **params: Any) -> int:
        """Send a request and return its id."""
        number = len(self._asked) + 1000 + len(self.frames)
        while number in self._asked:
            number += 1
        self._asked[number] = method
        self.send({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
        return number

    def tell(self, method: str, **params: Any) -> None:
        """Send a notification."""
        self.send({"jsonrpc": "2.0", "method": method, "params": params})

    def answer_of(self, number: int) -> Frame:
        """Return the answer to a request; the frames before it are in ``frames``."""
        while (frame := self.read()).get("id") != number or "method" in frame:
            pass
        return frame

    def call(self, method: str, **params: Any) -> Any:
        """Return the result of a request."""
        answer = self.answer_of(self.ask_for(method, **params))
        assert "result" in answer, answer
        return answer["result"]

    def refused(self, method: str, **params: Any) -> Frame:
        """Return the error of a request."""
        error: Frame = self.answer_of(self.ask_for(method, **params))["error"]
        return error

    def initialize(self, **capabilities: Any) -> Any:
        return self.call("initialize", protocolVersion=1, clientCapabilities=capabilities)

    def new(self, **capabilities: Any) -> str:
        """Initialize, open a session in ``cwd`` and return its id."""
        self.initialize(**capabilities)
        session_id: str = self.call("session/new", cwd=str(self.cwd), mcpServers=[])["sessionId"]
        return session_id

    def start(self, session_id: str, text: str, **more: Any) -> int:
        """Send a prompt and return the id of the request."""
        return self.ask_for("session/prompt", sessionId=session_id, prompt=[{"type": "text", "text": text}], **more)

    def prompt(self, session_id: str, text: str) -> tuple[str, list[Frame]]:
        """Return the stop reason of a prompt, and its updates."""
        before = len(self.frames)
        answer = self.answer_of(self.start(session_id, text))
        assert "result" in answer, answer
        return answer["result"]["stopReason"], updates(self.frames[before:])

    def until_asked(self) -> Frame:
        """Return the next approval request."""
        while (frame := self.read()).get("method") != "session/request_permission":
            pass
        return frame

    def decide(self, request: Frame, option: str | None) -> None:
        """Answer an approval request; None for cancelled."""
        outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
        self.send({"jsonrpc": "2.0", "id": request["id"], "result": {"outcome": outcome}})

    def leave(self) -> list[Frame]:
        """End the input, return the remaining messages, and check that the process exited in order."""
        self.hang_up()
        frames = self.rest()
        assert self.wait() == 0, self.errors()
        return frames


def updates(frames: Sequence[Frame]) -> list[Frame]:
    """Return the session updates among frames."""
    return [frame["params"]["update"] for frame in frames if frame.get("method") == "session/update"]


def of_kind(found: Sequence[Frame], kind: str) -> list[Frame]:
    """Return the updates of a kind."""
    return [one for one in found if one["sessionUpdate"] == kind]


def said(found: Sequence[Frame], kind: str = "agent_message_chunk") -> str:
    """Return the joined text of the chunks of a kind."""
    return "".join(one["content"]["text"] for one in of_kind(found, kind))
