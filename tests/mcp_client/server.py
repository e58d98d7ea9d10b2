"""A small MCP server for the tests: both generations of the protocol, and everything a bad server may do.

Its argument selects its behaviour at the start or on a tool call; it writes all it receives to the file HEARD.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

MODE = sys.argv[1] if len(sys.argv) > 1 else "good"
STATELESS = "2026-07-28"
HEARD = os.environ.get("HEARD")
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
TEXT = {"type": "object", "properties": {"text": {"type": "string", "description": "What\u202e to\u200b say"}}}
TOOLS: list[dict[str, Any]] = [
    {"name": "echo", "description": "Say it\x1b[31m again.", "inputSchema": TEXT},
    {"name": "look", "inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": True}},
    {"name": "a tool/with a strange name", "inputSchema": {}},
    {"name": "broken", "inputSchema": "none"},
    {"name": "list", "inputSchema": {"type": "array"}},
]


CAPABILITIES: dict[str, Any] = {"tools": {"listChanged": True}}
if MODE == "rich":
    CAPABILITIES |= {"prompts": {}, "resources": {}}
if MODE == "crowd":
    TOOLS = [
        {"name": f"tool{number}", "description": f"{'Sends mail' if number == 7 else 'Counts'} x{number} " + "y" * 900,
         "inputSchema": TEXT} for number in range(100)
    ]  # fmt: skip
FORM: dict[str, Any] = {
    "message": "Who are\x1b you?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "title": "Name", "minLength": 2},
            "age": {"type": "integer", "minimum": 0, "default": 7},
            "color": {"type": "string", "enum": ["red", "green"], "enumNames": ["Red", "Green"]},
        },
        "required": ["name"],
    },
}


def say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def text(*lines: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": line} for line in lines]}


def answer(request: dict[str, Any], result: dict[str, Any]) -> None:
    is_new = "io.modelcontextprotocol/protocolVersion" in request.get("params", {}).get("_meta", {})
    say({"id": request["id"], "result": {**({"resultType": "complete"} if is_new else {}), **result}})


def ask(method: str, params: dict[str, Any]) -> dict[str, Any]:
    say({"id": "mine", "method": method, "params": params})
    for message in messages():
        if message.get("id") == "mine":
            return message
    sys.exit(0)


def messages() -> Iterator[dict[str, Any]]:
    for line in sys.stdin:
        if HEARD:
            with open(HEARD, "a") as heard:
                heard.write(line)
        yield json.loads(line)


def greet(request: dict[str, Any]) -> None:
    if request["method"] == "server/discover":
        if MODE in ("old", "asks-old", "form-old", "lies"):
            say({"id": request["id"], "error": {"code": -32601, "message": "what?"}})
        elif MODE == "exits-at-discover":
            sys.exit(1)
        elif MODE != "silent-at-discover":
            answer(request, {"supportedVersions": [STATELESS], "capabilities": CAPABILITIES})
    else:
        version = "1999-01-01" if MODE == "lies" else "2025-11-25"
        answer(request, {"protocolVersion": version, "capabilities": CAPABILITIES, "serverInfo": {"name": "s"}})


def call(request: dict[str, Any]) -> None:
    params = request["params"]
    said = params.get("arguments", {}).get("text", "")
    match MODE:
        case "never-answers":
            time.sleep(60)
        case "dies":
            sys.stderr.write("out of cheese\n")
            sys.exit(3)
        case "floods":
            while True:
                say({"method": "notifications/message", "params": {"data": "x" * 200}})
        case "floods-with-nonsense":
            while True:
                sys.stdout.write("nonsense\n")
        case "huge":
            answer(request, text("x" * 10_000_000))
        case "endless-line":
            sys.stdout.write("x" * 40_000_000)
            sys.stdout.flush()
            time.sleep(60)
        case "wrong-ids":
            for wrong in (9999, "x", None, request["id"]):
                say({"id": wrong, "result": text(f"for {wrong!r}")})
        case "leaves-children":
            subprocess.Popen(["sleep", "60"], stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
            answer(request, text("done"))
            sys.exit(0)
        case "wrong-result":
            answer(request, {"content": 7})
        case "progress":
            for number in range(6):
                token = params["_meta"]["progressToken"]
                body = {"progressToken": token, "progress": number, "message": f"step {number}"}
                say({"method": "notifications/progress", "params": body})
                time.sleep(float(said))
            answer(request, text("at last"))
        case "asks-old":
            asked = [ask(method, {}) for method in ("elicitation/create", "roots/list", "sampling/createMessage")]
            answer(request, text(*(json.dumps(one.get("result", one.get("error"))) for one in asked)))
        case "asks" if "inputResponses" in params:
            answer(request, text(json.dumps([params["inputResponses"], params["requestState"]])))
        case "asks" | "asks-forever":
            wanted = {"q": {"method": "elicitation/create", "params": {"message": "your key?"}}}
            result = {"resultType": "input_required", "inputRequests": wanted, "requestState": "here"}
            say({"id": request["id"], "result": result})
        case "changes":
            TOOLS.append({"name": "later", "inputSchema": {}})
            say({"method": "notifications/tools/list_changed"})
            answer(request, text("done"))
        case "form-old":
            answer(request, text(json.dumps(ask("elicitation/create", FORM)["result"])))
        case "form" if "inputResponses" in params:
            answer(request, text(json.dumps(params["inputResponses"]["q"])))
        case "form":
            wanted = {"q": {"method": "elicitation/create", "params": FORM}}
            say({"id": request["id"], "result": {"resultType": "input_required", "inputRequests": wanted}})
        case "samples":
            wanted = {"q": {"method": "sampling/createMessage", "params": {}}}
            say({"id": request["id"], "result": {"resultType": "input_required", "inputRequests": wanted}})
        case "many":
            image = {"type": "image", "data": PIXEL, "mimeType": "image/png"}
            others = [{"type": "image", "data": "!"}, {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"}]
            link = {"type": "resource_link", "uri": "file:///a", "name": "a"}
            inner = {"type": "resource", "resource": {"uri": "file:///b", "text": "inside"}}
            answer(request, {"content": [image, *others, link, inner]})
        case "structured":
            answer(request, {"content": [], "structuredContent": {"sum": 3}})
        case "environment":
            answer(request, text(json.dumps(dict(os.environ))))
        case _:
            answer(request, {**text(f"{params['name']}: {said}"), "isError": said == "fail"})


def main() -> None:
    if MODE == "never-starts":
        time.sleep(60)
    while MODE == "floods-its-log":
        sys.stderr.write("x" * 1_000_000)
    while MODE == "endless-at-start":
        sys.stdout.write("x" * 1_000_000)
    if MODE == "exits":
        sys.exit("no such thing")
    for message in messages():
        match message.get("method"):
            case "server/discover" | "initialize":
                greet(message)
            case "tools/list":
                answer(message, {"tools": TOOLS, **({"ttlMs": 0} if MODE == "stale" else {})})
                if MODE == "restless":
                    say({"method": "notifications/tools/list_changed"})
            case "prompts/list":
                wanted = [{"name": "what", "required": True}, {"name": "how"}]
                answer(
                    message,
                    {"prompts": [{"name": "review", "description": "Look", "arguments": wanted}, {"name": "/"}]},
                )
            case "prompts/get":
                said = f"Review {message['params']['arguments']}"
                answer(message, {"messages": [{"role": "user", "content": {"type": "text", "text": said}}]})
            case "resources/list":
                listed = [{"uri": uri, "name": "A\x1b note"} for uri in ("note://a", "note://a b", "note://\u202e")]
                answer(message, {"resources": listed})
            case "resources/read":
                answer(message, {"contents": [{"uri": message["params"]["uri"], "text": "the note"}]})
            case "tools/call":
                call(message)
            case _:
                pass


main()
