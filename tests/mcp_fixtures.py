"""An MCP server with the fixtures that the conformance scenarios call, on the same core as zot's own.

python tests/mcp_fixtures.py [PORT]     serves http://127.0.0.1:PORT/mcp without a token until its input ends
"""

from __future__ import annotations

import asyncio
import hmac
import json
import os
import socket
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeAlias

import msgspec
import uvicorn

from zot.messages import timestamp
from zot.serve.mcp.server import McpExchange, McpService
from zot.serve.web.gate import Gate, Limits, Tokens
from zot.serve.web.mcp import McpEndpoint
from zot.serve.web.websocket import refuse
from zot.wire.daemon import OPERATOR
from zot.wire.jsonrpc import INTERNAL_ERROR, INVALID_PARAMS, RpcError
from zot.wire.mcp_server import TASKS, ServerDescription, missing_capability

Result: TypeAlias = Mapping[str, Any]

PNG = b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c4944415408d763f8cfc0000003010100c9fe92ef"
        "0000000049454e44ae426082"
    )
).decode()
WAV = b64encode(b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\0\0\0\0").decode()
_NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_EMPTY: dict[str, Any] = {"type": "object", "properties": {}}
_SCHEMA_2020 = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def text(said: str, **more: Any) -> Result:
    """Return a result of one text."""
    return {"content": [{"type": "text", "text": said}], **more}


def elicitation(message: str, schema: Mapping[str, Any]) -> dict[str, Any]:
    return {"method": "elicitation/create", "params": {"message": message, "requestedSchema": schema}}


def sampling(prompt: str, tokens: int) -> dict[str, Any]:
    message = {"role": "user", "content": {"type": "text", "text": prompt}}
    return {"method": "sampling/createMessage", "params": {"messages": [message], "maxTokens": tokens}}


ROOTS = {"method": "roots/list", "params": {}}


class Call(msgspec.Struct, rename="camel"):
    """A call of a tool, or of a prompt."""

    name: str
    arguments: dict[str, Any] = {}
    input_responses: dict[str, Any] | None = None
    request_state: str | None = None

    @property
    def responses(self) -> dict[str, Any]:
        return self.input_responses or {}

    def accepted(self, key: str) -> Mapping[str, Any] | None:
        """Return the user's input; None without a valid answer."""
        match self.responses.get(key):
            case {"action": "accept", "content": dict(content)}:
                return content
            case _:
                return None


class Task:
    """A call that continues after its answer."""

    def __init__(self, name: str, work: Awaitable[Result]) -> None:
        self.name = name
        self.begun = timestamp()
        self.questions: dict[str, dict[str, Any]] = {}
        self.answers: dict[str, asyncio.Future[Any]] = {}
        self.task = asyncio.ensure_future(work)

    async def ask(self, key: str, question: dict[str, Any]) -> Any:
        self.questions[key] = question
        self.answers[key] = asyncio.get_running_loop().create_future()
        return await self.answers[key]

    def answer(self, key: str, response: Any) -> None:
        if self.questions.pop(key, None) is not None:
            self.answers[key].set_result(response)

    def shown(self) -> dict[str, Any]:
        facts = {"taskId": self.name, "createdAt": self.begun, "lastUpdatedAt": timestamp(), "ttlMs": 600_000,
                 "pollIntervalMs": 100}  # fmt: skip
        if not self.task.done():
            if self.questions:
                return {**facts, "status": "input_required", "inputRequests": dict(self.questions)}
            return {**facts, "status": "working"}
        if self.task.cancelled():
            return {**facts, "status": "cancelled"}
        if (problem := self.task.exception()) is not None:
            return {**facts, "status": "failed", "error": {"code": INTERNAL_ERROR, "message": str(problem)}}
        return {**facts, "status": "completed", "result": self.task.result()}


class Fixtures(McpService):
    """Every fixture."""

    def __init__(self) -> None:
        changing = {"listChanged": True}
        capabilities: dict[str, Any] = {
            "tools": changing,
            "prompts": changing,
            "resources": {"subscribe": True},
            "logging": {},
            "completions": {},
        }
        description = ServerDescription("zot-fixtures", capabilities, extensions={TASKS: {}}, ttl_ms=1000)
        super().__init__(description, {
            "tools/list": self.tools_list, "tools/call": self.tools_call,
            "resources/list": self.resources_list, "resources/templates/list": self.templates_list,
            "resources/read": self.resources_read, "resources/subscribe": self.nothing,
            "resources/unsubscribe": self.nothing,
            "prompts/list": self.prompts_list, "prompts/get": self.prompts_get,
            "completion/complete": self.complete,
            "tasks/get": self.tasks_get, "tasks/update": self.tasks_update, "tasks/cancel": self.tasks_cancel,
        })  # fmt: skip
        self._key = os.urandom(32)
        self._tasks: dict[str, Task] = {}
        # The first tool must be one that any client may call without arguments.
        names = [name for name in vars(type(self)) if name.startswith("tool_")]
        self._tools: dict[str, tuple[Mapping[str, Any], Callable[[McpExchange, Call], Awaitable[Result]]]] = {
            name.removeprefix("tool_"): (_ARGUMENTS.get(name.removeprefix("tool_"), _EMPTY), getattr(self, name))
            for name in names
        }  # fmt: skip

    async def nothing(self, exchange: McpExchange) -> Result:
        return {}

    # Tools.

    async def tools_list(self, exchange: McpExchange) -> Result:
        return {"tools": [{"name": name, "description": f"The fixture {name}.", "inputSchema": schema}
                          for name, (schema, _) in self._tools.items()]}  # fmt: skip

    async def tools_call(self, exchange: McpExchange) -> Result:
        call = msgspec.json.decode(exchange.request.params, type=Call)
        if call.name not in self._tools:
            raise RpcError(INVALID_PARAMS, f"there is no tool {call.name!r}")
        return await self._tools[call.name][1](exchange, call)

    async def tool_test_simple_text(self, exchange: McpExchange, call: Call) -> Result:
        return text("This is a simple text response for testing.")

    async def tool_test_image_content(self, exchange: McpExchange, call: Call) -> Result:
        return {"content": [{"type": "image", "data": PNG, "mimeType": "image/png"}]}

    async def tool_test_audio_content(self, exchange: McpExchange, call: Call) -> Result:
        return {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]}

    async def tool_test_embedded_resource(self, exchange: McpExchange, call: Call) -> Result:
        found = {"uri": "test://embedded-resource", "mimeType": "text/plain",
                 "text": "This is an embedded resource content."}  # fmt: skip
        return {"content": [{"type": "resource", "resource": found}]}

    async def tool_test_multiple_content_types(self, exchange: McpExchange, call: Call) -> Result:
        found = {"uri": "test://mixed-content-resource", "mimeType": "application/json",
                 "text": json.dumps({"test": "data", "value": 123})}  # fmt: skip
        return {"content": [{"type": "text", "text": "Multiple content types test:"},
                            {"type": "image", "data": PNG, "mimeType": "image/png"},
                            {"type": "resource", "resource": found}]}  # fmt: skip

    async def tool_test_tool_with_logging(self, exchange: McpExchange, call: Call) -> Result:
        for said in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            exchange.log("info", said, logger="fixtures")
            await asyncio.sleep(0.05)
        return text("logged")

    async def tool_test_logging_tool(self, exchange: McpExchange, call: Call) -> Result:
        exchange.log("info", "only for those who asked", logger="fixtures")
        return text("logged")

    async def tool_test_error_handling(self, exchange: McpExchange, call: Call) -> Result:
        return text("This tool intentionally returns an error for testing", isError=True)

    async def tool_test_tool_with_progress(self, exchange: McpExchange, call: Call) -> Result:
        for value in (0, 50, 100):
            exchange.progress(f"{value} of 100", value=value, total=100)
            await asyncio.sleep(0.05)
        return text("done")

    async def tool_test_sampling(self, exchange: McpExchange, call: Call) -> Result:
        asked = sampling(call.arguments["prompt"], 100)
        answer = await exchange.ask(asked["method"], asked["params"])
        return text(f"LLM response: {json.dumps(answer)}", isError=answer is None)

    async def tool_test_elicitation(self, exchange: McpExchange, call: Call) -> Result:
        fields = {name: {"type": "string", "description": name} for name in ("username", "email")}
        schema = {"type": "object", "properties": fields, "required": [*fields]}
        answer = await exchange.ask("elicitation/create",
                                    {"message": call.arguments["message"], "requestedSchema": schema})  # fmt: skip
        return text(f"User response: {json.dumps(answer)}")

    async def tool_test_elicitation_sep1034_defaults(self, exchange: McpExchange, call: Call) -> Result:
        return await self._elicited(exchange, {
            "name": {"type": "string", "default": "John Doe"},
            "age": {"type": "integer", "default": 30},
            "score": {"type": "number", "default": 95.5},
            "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
            "verified": {"type": "boolean", "default": True},
        })  # fmt: skip

    async def tool_test_elicitation_sep1330_enums(self, exchange: McpExchange, call: Call) -> Result:
        options = ["option1", "option2", "option3"]
        titled = [
            {"const": f"value{n}", "title": f"{word} Option"} for n, word in enumerate(("First", "Second", "Third"), 1)
        ]
        return await self._elicited(exchange, {
            "untitledSingle": {"type": "string", "enum": options},
            "titledSingle": {"type": "string", "oneOf": titled},
            "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"],
                           "enumNames": ["Option One", "Option Two", "Option Three"]},
            "untitledMulti": {"type": "array", "items": {"type": "string", "enum": options}},
            "titledMulti": {"type": "array", "items": {"anyOf": titled}},
        })  # fmt: skip

    async def _elicited(self, exchange: McpExchange, fields: Mapping[str, Any]) -> Result:
        schema = {"type": "object", "properties": fields, "required": []}
        answer = await exchange.ask("elicitation/create", {"message": "Please fill in", "requestedSchema": schema})
        answer = answer or {"action": "cancel"}
        return text(f"Elicitation completed: action={answer['action']}, content={json.dumps(answer.get('content'))}")

    async def tool_json_schema_2020_12_tool(self, exchange: McpExchange, call: Call) -> Result:
        return text(json.dumps(call.arguments))

    async def tool_test_missing_capability(self, exchange: McpExchange, call: Call) -> Result:
        if "sampling" not in exchange.client.capabilities:
            raise missing_capability(sampling={})
        return text("the client has it")

    async def tool_test_trigger_tool_change(self, exchange: McpExchange, call: Call) -> Result:
        self.announce("tools")
        return text("changed")

    async def tool_test_trigger_prompt_change(self, exchange: McpExchange, call: Call) -> Result:
        self.announce("prompts")
        return text("changed")

    # Questions.

    def _asked(self, questions: Mapping[str, Any], state: str | None = None) -> Result:
        asked: dict[str, Any] = {"resultType": "input_required", "inputRequests": questions}
        return asked if state is None else {**asked, "requestState": self._sealed(state)}

    def _sealed(self, state: str) -> str:
        return f"{hmac.new(self._key, state.encode(), 'sha256').hexdigest()}:{state}"

    def _unsealed(self, call: Call) -> str:
        seal, _, state = (call.request_state or "").partition(":")
        if not hmac.compare_digest(seal.encode(), hmac.new(self._key, state.encode(), "sha256").hexdigest().encode()):
            raise RpcError(INVALID_PARAMS, "requestState was changed")
        return state

    async def tool_test_input_required_result_elicitation(self, exchange: McpExchange, call: Call) -> Result:
        match call.accepted("user_name"):
            case {"name": str(name)}:
                return text(f"Hello, {name}!")
            case _:
                return self._asked({"user_name": elicitation("What is your name?", _NAME)})

    async def tool_test_streaming_elicitation(self, exchange: McpExchange, call: Call) -> Result:
        return await self.tool_test_input_required_result_elicitation(exchange, call)

    async def tool_test_input_required_result_sampling(self, exchange: McpExchange, call: Call) -> Result:
        if (answer := call.responses.get("capital_question")) is None:
            return self._asked({"capital_question": sampling("What is the capital of France?", 100)})
        return text(json.dumps(answer))

    async def tool_test_input_required_result_list_roots(self, exchange: McpExchange, call: Call) -> Result:
        if (answer := call.responses.get("client_roots")) is None:
            return self._asked({"client_roots": ROOTS})
        return text(json.dumps(answer))

    async def tool_test_input_required_result_request_state(self, exchange: McpExchange, call: Call) -> Result:
        schema = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
        if call.request_state is None or call.accepted("confirm") is None:
            return self._asked({"confirm": elicitation("Please confirm", schema)}, "confirming")
        return text(f"state-ok: {self._unsealed(call)}")

    async def tool_test_input_required_result_tampered_state(self, exchange: McpExchange, call: Call) -> Result:
        return await self.tool_test_input_required_result_request_state(exchange, call)

    async def tool_test_input_required_result_multiple_inputs(self, exchange: McpExchange, call: Call) -> Result:
        wanted = {
            "user_name": elicitation("What is your name?", _NAME),
            "greeting": sampling("Generate a greeting", 50),
            "client_roots": ROOTS,
        }
        if left := {key: one for key, one in wanted.items() if key not in call.responses}:
            return self._asked(left, "several")
        return text(f"{self._unsealed(call)}: {json.dumps(call.responses)}")

    async def tool_test_input_required_result_multi_round(self, exchange: McpExchange, call: Call) -> Result:
        state = self._unsealed(call) if call.request_state is not None else ""
        if not state:
            return self._asked({"step1": elicitation("Step 1: What is your name?", _NAME)}, "begun")
        if (named := call.accepted("step1")) is not None:
            color = {"type": "object", "properties": {"color": {"type": "string"}}, "required": ["color"]}
            question = elicitation("Step 2: What is your favorite color?", color)
            return self._asked({"step2": question}, f"named {named['name']}")
        return text(f"{state}: {json.dumps(call.accepted('step2'))}")

    async def tool_test_input_required_result_capabilities(self, exchange: McpExchange, call: Call) -> Result:
        wanted = {"sampling": sampling("Say something", 10), "elicitation": elicitation("Who?", _NAME)}
        return self._asked({key: one for key, one in wanted.items() if key in exchange.client.capabilities}, "any")

    # Tasks.

    async def tool_greet(self, exchange: McpExchange, call: Call) -> Result:
        return text(f"Hello, {call.arguments.get('name')}!")

    async def tool_slow_compute(self, exchange: McpExchange, call: Call) -> Result:
        async def compute() -> Result:
            await asyncio.sleep(call.arguments.get("seconds", 0))
            return text(f"computed {call.arguments.get('label', '')}")

        return self._task(compute()) if exchange.client.has_tasks else await compute()

    async def tool_failing_job(self, exchange: McpExchange, call: Call) -> Result:
        async def fail() -> Result:
            await asyncio.sleep(0.2)
            return text("it failed", isError=True)

        return self._required(exchange, fail)

    async def tool_protocol_error_job(self, exchange: McpExchange, call: Call) -> Result:
        async def fail() -> Result:
            raise RuntimeError("broken")

        return self._required(exchange, fail)

    async def tool_confirm_delete(self, exchange: McpExchange, call: Call) -> Result:
        async def confirm() -> Result:
            answer = await self._tasks[name].ask("confirm", elicitation("Delete it?", _EMPTY))
            return text(f"answered {json.dumps(answer)}")

        name = os.urandom(8).hex()
        return self._required(exchange, confirm, name)

    async def tool_multi_input(self, exchange: McpExchange, call: Call) -> Result:
        async def gather() -> Result:
            asked = (self._tasks[name].ask(key, elicitation(f"{key}?", _NAME)) for key in ("first", "second"))
            return text(json.dumps(await asyncio.gather(*asked)))

        name = os.urandom(8).hex()
        return self._required(exchange, gather, name)

    async def tool_test_tool_with_task(self, exchange: McpExchange, call: Call) -> Result:
        if (named := call.accepted("user_name")) is None:
            return self._asked({"user_name": elicitation("What is your name?", _NAME)}, "naming")

        async def greet() -> Result:
            return text(f"Hello, {named['name']}!")

        return self._required(exchange, greet)

    def _required(self, exchange: McpExchange, work: Callable[[], Awaitable[Result]], name: str = "") -> Result:
        if not exchange.client.has_tasks:
            raise missing_capability(extensions={TASKS: {}})
        return self._task(work(), name)

    def _task(self, work: Awaitable[Result], name: str = "") -> Result:
        name = name or os.urandom(8).hex()
        made = self._tasks[name] = Task(name, work)
        return {"resultType": "task", **made.shown()}

    def _named(self, exchange: McpExchange) -> tuple[Task, dict[str, Any]]:
        if not exchange.client.has_tasks:
            raise missing_capability(extensions={TASKS: {}})
        params = msgspec.json.decode(exchange.request.params)
        if (found := self._tasks.get(params.get("taskId"))) is None:
            raise RpcError(INVALID_PARAMS, "there is no such task")
        return found, params

    async def tasks_get(self, exchange: McpExchange) -> Result:
        return self._named(exchange)[0].shown()

    async def tasks_update(self, exchange: McpExchange) -> Result:
        found, params = self._named(exchange)
        for key, response in params.get("inputResponses", {}).items():
            found.answer(key, response)
        return {}

    async def tasks_cancel(self, exchange: McpExchange) -> Result:
        found = self._named(exchange)[0].task
        found.cancel()
        await asyncio.wait({found})
        return {}

    # Resources, prompts, completion.

    async def resources_list(self, exchange: McpExchange) -> Result:
        names = (("static-text", "text/plain"), ("static-binary", "image/png"), ("watched-resource", "text/plain"))
        return {"resources": [{"uri": f"test://{name}", "name": name, "description": name, "mimeType": kind}
                              for name, kind in names]}  # fmt: skip

    async def templates_list(self, exchange: McpExchange) -> Result:
        return {"resourceTemplates": [{"uriTemplate": "test://template/{id}/data", "name": "template",
                                       "description": "A template.", "mimeType": "application/json"}]}  # fmt: skip

    async def resources_read(self, exchange: McpExchange) -> Result:
        uri = msgspec.json.decode(exchange.request.params)["uri"]
        match uri.split("/")[2:]:
            case ["static-text"] | ["watched-resource"]:
                said = "This is the content of the static text resource."
                found = {"uri": uri, "mimeType": "text/plain", "text": said}
            case ["static-binary"]:
                found = {"uri": uri, "mimeType": "image/png", "blob": PNG}
            case ["template", name, "data"]:
                said = json.dumps({"id": name, "templateTest": True, "data": f"Data for ID: {name}"})
                found = {"uri": uri, "mimeType": "application/json", "text": said}
            case _:
                raise RpcError(INVALID_PARAMS, "there is no such resource", {"uri": uri})
        return {"contents": [found]}

    async def prompts_list(self, exchange: McpExchange) -> Result:
        return {"prompts": [{"name": name, "description": name, "arguments":
                             [{"name": one, "description": one, "required": True} for one in arguments]}
                            for name, arguments in _PROMPTS.items()]}  # fmt: skip

    async def prompts_get(self, exchange: McpExchange) -> Result:
        call = msgspec.json.decode(exchange.request.params, type=Call)
        contents: list[dict[str, Any]]
        match call.name:
            case "test_simple_prompt":
                contents = [{"type": "text", "text": "This is a simple prompt for testing."}]
            case "test_prompt_with_arguments":
                one, two = call.arguments["arg1"], call.arguments["arg2"]
                contents = [{"type": "text", "text": f"Prompt with arguments: arg1='{one}', arg2='{two}'"}]
            case "test_prompt_with_embedded_resource":
                found = {"uri": call.arguments["resourceUri"], "mimeType": "text/plain",
                         "text": "Embedded resource content for testing."}  # fmt: skip
                contents = [{"type": "resource", "resource": found},
                            {"type": "text", "text": "Please process the embedded resource above."}]  # fmt: skip
            case "test_prompt_with_image":
                contents = [{"type": "image", "data": PNG, "mimeType": "image/png"},
                            {"type": "text", "text": "Please analyze the image above."}]  # fmt: skip
            case "test_input_required_result_prompt":
                if (given := call.accepted("user_context")) is None:
                    schema = {"type": "object", "properties": {"context": {"type": "string"}}, "required": ["context"]}
                    return self._asked({"user_context": elicitation("What context should the prompt use?", schema)})
                contents = [{"type": "text", "text": f"Use this: {given['context']}"}]
            case _:
                raise RpcError(INVALID_PARAMS, f"there is no prompt {call.name!r}")
        return {"messages": [{"role": "user", "content": one} for one in contents]}

    async def complete(self, exchange: McpExchange) -> Result:
        return {"completion": {"values": ["paris", "park", "party"], "total": 3, "hasMore": False}}


_ARGUMENTS: Mapping[str, Mapping[str, Any]] = {
    "test_sampling": {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
    "test_elicitation": {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
    "json_schema_2020_12_tool": _SCHEMA_2020,
    "greet": _NAME,
    "slow_compute": {
        "type": "object",
        "properties": {"seconds": {"type": "number"}, "label": {"type": "string"}},
    },
}
_PROMPTS: Mapping[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}


class OpenDoor:
    """Lets every local request in, as the operator: the scenarios bring no token."""

    def __init__(self, app: McpEndpoint, gate: Gate) -> None:
        self._app = app
        self._gate = gate

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        if (refusal := self._gate.refusal(scope)) is not None:
            await refuse(scope, send, refusal.status, refusal.message)
            return
        await self._app({**scope, "zot.grant": OPERATOR}, receive, send)


def main() -> None:
    """Serve until standard input ends, and print the address."""
    with TemporaryDirectory() as directory, socket.socket() as listener:
        listener.bind(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0))
        listener.listen(128)
        door = OpenDoor(McpEndpoint(Fixtures(), Limits()), Gate(Tokens(str(Path(directory) / "token"))))
        server = uvicorn.Server(uvicorn.Config(door, log_level="warning", lifespan="off", timeout_graceful_shutdown=1))

        async def serve() -> None:
            serving = asyncio.ensure_future(server.serve([listener]))
            await asyncio.to_thread(sys.stdin.read)
            server.should_exit = True
            await serving

        print(f"http://127.0.0.1:{listener.getsockname()[1]}/mcp", flush=True)
        asyncio.run(serve())


if __name__ == "__main__":
    main()
