from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from zot.providers.lab.script import Script, demo
from zot.providers.lab.transport import LabTransport

from .talk import CHAT, GEMINI_WHOLE, OWN_TOOLS, RESPONSES, Clock, body, read_all, said, send, tool, user


def playing() -> LabTransport:
    return LabTransport(demo(), sleep=Clock())


async def turn(
    transport: LabTransport, messages: list[dict[str, Any]], tools: Sequence[dict[str, Any]] = OWN_TOOLS
) -> tuple[str, list[dict[str, Any]]]:
    """Ask once without streaming; return the stop reason and the content."""
    reply = json.loads(await read_all(await send(transport, body(*messages, tools=tools, stream=False))))
    return reply["stop_reason"], reply["content"]


async def run(prompt: str, cwd: Path, tools: Sequence[dict[str, Any]] = OWN_TOOLS) -> tuple[list[str], str]:
    """Be an agent: run the calls until there are none. Return the names of the tools and the last text."""
    transport, messages, names = playing(), [user(prompt)], []
    for _ in range(10):
        stop, content = await turn(transport, messages, tools)
        calls = [block for block in content if block["type"] == "tool_use"]
        names += [call["name"] for call in calls]
        if stop != "tool_use":
            return names, "".join(block["text"] for block in content if block["type"] == "text")
        results = [{"type": "tool_result", "tool_use_id": call["id"], "content": use(call, cwd)} for call in calls]
        messages += [{"role": "assistant", "content": content}, {"role": "user", "content": results}]
    raise AssertionError("it never ends")


def use(call: dict[str, Any], cwd: Path) -> str:
    """Execute a call in ``cwd``."""
    arguments: dict[str, Any] = call["input"]
    path = cwd / str(arguments.get("path", "."))
    match call["name"]:
        case "write":
            path.write_text(arguments["content"])
            return "written"
        case "read":
            return path.read_text()
        case "edit":
            [edit] = arguments["edits"]
            before = path.read_text()
            assert before.count(edit["oldText"]) == 1
            path.write_text(before.replace(edit["oldText"], edit["newText"]))
            return "edited"
        case "Bash":
            assert arguments.keys() == {"command", "description"}
            return use({"name": "bash", "input": arguments}, cwd)
        case "bash":
            command = ["/bin/sh", "-c", arguments["command"]]
            return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout
        case other:
            raise AssertionError(other)


def test_the_built_in_script_would_pass_every_check() -> None:
    path = Path(__file__).parents[3] / "src/zot/providers/lab/demo.lab"
    checked = Script.parse(path.read_text(), "demo.lab")
    assert checked == demo()


async def test_any_prompt_gets_a_demonstration_that_leaves_no_file(tmp_path: Path) -> None:
    names, text = await run("hello", tmp_path)
    assert names == ["write", "read", "edit", "bash", "bash"]
    assert text.startswith("Done: ")
    assert list(tmp_path.iterdir()) == []


SHELL = {
    "name": "Bash",
    "input_schema": {
        "type": "object",
        "properties": {"command": {"type": "string"}, "description": {"type": "string"}, "timeout": {"type": "number"}},
        "required": ["command", "description"],
    },
}


async def test_the_demonstration_uses_the_shell_of_another_agent(tmp_path: Path) -> None:
    # The same names as zot's, but other arguments.
    others = [tool("write", "filePath", "content"), tool("read", "filePath"), tool("edit", "filePath")]
    names, text = await run("hello", tmp_path, [*others, SHELL])
    assert names == ["Bash"] * 4
    assert text.startswith("Done: ")
    assert list(tmp_path.iterdir()) == []


async def test_a_command_runs_in_the_shell_of_another_agent(tmp_path: Path) -> None:
    assert await run("!bash touch a b", tmp_path, [tool("KillShell", "id"), SHELL]) == (["Bash"], "finished.")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("prompt", ["!bash ls", "!loop ls", "hello"])
async def test_a_request_without_a_shell_tool_is_answered_with_that_reason(tmp_path: Path, prompt: str) -> None:
    names, text = await run(prompt, tmp_path, [tool("Read", "file"), tool("BashOutput", "id")])
    assert names == []
    assert text.endswith("I cannot run a command: the request offers no shell tool; it offers only Read, BashOutput.")


async def test_a_malformed_call_is_one_of_the_shell_that_is_offered() -> None:
    _, content = await turn(playing(), [user("!bad-args")], [SHELL])
    assert [(block["name"], block["input"]) for block in content] == [("Bash", '{"command": "echo hi')]


def offered(name: str, required: str, **properties: object) -> dict[str, Any]:
    return {"name": name, "parameters": {"type": "object", "properties": properties, "required": required.split()}}


TEXT, FLAG, COUNT = {"type": "string"}, {"type": "boolean"}, {"type": "integer"}

#: The shell tools of agents, and what a call of each must look like.
SHELLS: list[tuple[dict[str, Any], Any]] = [
    (offered("shell", "command", command={"type": "array"}), {"command": ["sh", "-c", "ls"]}),
    (offered("exec_command", "cmd", cmd=TEXT, tty=FLAG, workdir=TEXT), {"cmd": "ls"}),
    (
        offered("run_shell_command", "command bg", command={"type": "STRING"}, bg={"type": "BOOLEAN"}),
        {"command": "ls", "bg": False},
    ),
    (
        offered(
            "my-terminal",
            "script mode cwd timeout_ms n env list d",
            script={"type": ["string", "null"]},
            mode={"enum": ["once"]},
            cwd=TEXT,
            timeout_ms=COUNT,
            n={"type": "integer", "minimum": 3},
            env={"type": "object"},
            list={"type": "array"},
            d={"default": 7},
        ),
        {"script": "ls", "mode": "once", "cwd": ".", "timeout_ms": 60000, "n": 3, "env": {}, "list": [], "d": 7},
    ),
    ({"name": "bash"}, {"command": "ls"}),
    ({"name": "Bash", "parameters": None}, {"command": "ls"}),
]


@pytest.mark.parametrize(("function", "arguments"), SHELLS, ids=[function["name"] for function, _ in SHELLS])
@pytest.mark.parametrize("api", ["responses", "chat", "gemini"])
async def test_a_call_fits_the_schema_of_the_shell_tool(api: str, function: dict[str, Any], arguments: Any) -> None:
    others = {"type": "function", "name": "shell_history", "parameters": {}}
    declared = {"type": "function", **function}
    request: dict[str, Any]
    match api:
        case "responses":
            target, request = RESPONSES, {"model": "m", "input": "!bash ls", "tools": [others, declared]}
        case "chat":
            tools = [{"type": "function", "function": {"name": "x"}}, {"type": "function", "function": function}]
            target, request = CHAT, {"model": "m", "messages": [user("!bash ls")], "tools": tools}
        case _:
            said_ = [{"role": "user", "parts": [{"text": "!bash ls"}]}]
            target, request = GEMINI_WHOLE, {"contents": said_, "tools": [{"functionDeclarations": [function]}]}
    answer = json.loads(await read_all(await send(playing(), json.dumps(request).encode(), target=target)))
    assert (function["name"], arguments) == call_in(answer)


def call_in(answer: dict[str, Any]) -> tuple[str, Any]:
    """The name and the arguments of the call in the answer of any API."""
    if "candidates" in answer:
        call = answer["candidates"][0]["content"]["parts"][-1]["functionCall"]
        return call["name"], call["args"]
    found = answer["output"][-1] if "output" in answer else answer["choices"][0]["message"]["tool_calls"][0]["function"]
    return found["name"], json.loads(found["arguments"])


async def test_the_edit_scene_takes_words_or_quotes(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("line 10\nline 11\n")
    assert await run("!edit a.txt 'line 10' 'LINE TEN'", tmp_path) == (["edit"], "I have edited it.")
    assert await run("!edit a.txt 11 eleven", tmp_path) == (["edit"], "I have edited it.")
    assert (tmp_path / "a.txt").read_text() == "LINE TEN\nline eleven\n"


async def test_a_file_is_written_and_read(tmp_path: Path) -> None:
    assert await run("!write b.txt some words", tmp_path) == (["write"], "I have written it.")
    assert await run("!read b.txt", tmp_path) == (["read"], "I have read it.")
    assert (tmp_path / "b.txt").read_text() == "some words"


async def test_a_request_without_tools_gets_a_summary() -> None:
    assert await said(playing(), body("x" * 123, tools=False)) == "Summary: 123 characters of conversation."


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("!say 3 Hello", "Hello"),
        ("!echo a\nb", "a\nb"),
        ("!think", "answer"),
        ("!slow 3 0.05", "w0 w1 w2 "),
        ("!flood 3", "..."),
        ("!bytes é", "é"),
        ("!usage 1 2 3 4", "counted"),
        ("!length", "This goes on and"),
        ("!status 401", "status 401"),
        ("!limit 1", "status 429"),
        ("!no-end", "half an"),
        ("!error", "ab"),
        ('!script say "x"', "x"),
    ],
)
async def test_a_scene_says(prompt: str, text: str) -> None:
    assert await said(playing(), body(prompt)) == text


async def test_slow_deltas_are_paced() -> None:
    clock = Clock()
    await said(LabTransport(demo(), sleep=clock), body("!slow 3 0.05"))
    assert clock.slept == [0.05] * 3


async def test_help_lists_every_scene() -> None:
    text = await said(playing(), body("!help"))
    words = [scene.word for scene in demo().scenes if scene.word]
    assert [line.split()[0] for line in text.split("\n") if line.startswith("!")] == words


async def test_an_unknown_scene_gets_the_list() -> None:
    text = await said(playing(), body("!nonsense"))
    assert text.startswith("There is no such scene.")
    assert "!help" in text


def test_the_built_in_script_needs_no_event_loop() -> None:
    with pytest.raises(RuntimeError):
        asyncio.get_running_loop()
    assert demo().name == "demo.lab"
