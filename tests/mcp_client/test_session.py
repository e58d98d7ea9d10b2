"""MCP servers in a session: found, started when they are needed, called, and ended."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness import MARK as RUN_MARK
from harness import environment
from optional import needs
from tools.shells import MARK, left
from zot.config.config import Config
from zot.config.flags import McpServer
from zot.errors import ToolFailed
from zot.messages import CallBlock, ImageBlock, TextBlock
from zot.tools.base import ToolContext, ToolFailedWithOutput

from .stage import SERVER, McpStage

STRANGE = "mcp__s__a_tool_with_a_strange_name_c056ab82"


@pytest.mark.parametrize("mode", ["good", "old", "exits-at-discover"])
async def test_a_server_of_either_generation_is_called(tmp_path: Path, mode: str) -> None:
    async with McpStage(tmp_path, mode) as stage:
        await stage.learn()
        assert await stage.call("hello") == ("echo: hello", False)
        assert await stage.call("fail") == ("echo: fail", True)
        assert stage.methods().count("initialize") == (mode != "good")
    await stage.until_left(0)


async def test_the_protocol_generation_of_a_server_is_remembered(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "old") as stage:
        await stage.learn()
    async with McpStage(tmp_path, mcp={"s": stage.server("old")}) as third:
        before = len(stage.heard())
        assert await third.call("x") == ("echo: x", False)
        assert stage.methods()[before] == "initialize"


async def test_the_first_request_does_not_wait_and_later_ones_have_the_tools(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "never-starts") as stage:
        await stage.prompt("say hi")
        assert stage.offered() == []
    await stage.until_left(0)


async def test_tools_from_the_cache_start_no_server(tmp_path: Path) -> None:
    async with McpStage(tmp_path) as stage:
        await stage.learn()
        server = stage.server("good")
    async with McpStage(tmp_path, mcp={"s": server}) as again:
        assert "mcp__s__echo" in again.offered()
        await again.prompt("say hi")
        assert left(stage.mark) == []
        assert await again.call("now") == ("echo: now", False)
        assert len(left(stage.mark)) == 1


async def test_an_outdated_list_is_offered_and_asked_for_again(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "stale") as stage:
        await stage.learn()
        server = stage.server("stale")
    before = stage.methods().count("tools/list")
    async with McpStage(tmp_path, mcp={"s": server}) as again:
        assert "mcp__s__echo" in again.offered()
        await again.prompt("say hi")
        while stage.methods().count("tools/list") == before:
            await asyncio.sleep(0.005)


async def test_the_model_sees_clean_names_in_order(tmp_path: Path) -> None:
    async with McpStage(tmp_path) as stage:
        await stage.learn()
        assert stage.offered() == [STRANGE, "mcp__s__echo", "mcp__s__look"]
        specs = {name: tool.spec for name, tool in stage.session.agent._offered().items()}
        assert specs["mcp__s__echo"].description == "Say it[31m again."
        assert specs["mcp__s__echo"].schema["properties"]["text"]["description"] == "What to say"
        assert specs[STRANGE].schema == {"type": "object"}
        assert await stage.call("x", STRANGE) == ("a tool/with a strange name: x", False)
        assert stage.log_of().count("a tool is not offered") == 2


async def test_the_order_is_the_same_whichever_server_answers_first(tmp_path: Path) -> None:
    async def order(*names: str) -> list[str]:
        async with McpStage(tmp_path / "-".join(names)) as stage:
            servers = {name: stage.server("good") for name in names}
            async with McpStage(stage.home, mcp=servers) as first:
                await first.prompt("say hi")
                for name in names:
                    await first.until_known(f"mcp__{name}__echo")
            async with McpStage(stage.home, mcp=servers) as second:
                return second.offered()

    assert await order("b", "a") == await order("a", "b")


async def test_tools_found_later_come_last(tmp_path: Path) -> None:
    async with McpStage(tmp_path) as stage:
        servers = {"z": stage.server("good")}
        async with McpStage(tmp_path, mcp=servers) as first:
            await first.prompt("say hi")
            await first.until_known("mcp__z__echo")
        async with McpStage(tmp_path, mcp={**servers, "a": stage.server("good")}) as second:
            before = second.offered()
            await second.prompt("say hi")
            await second.until_known("mcp__a__echo")
            assert second.offered()[: len(before)] == before
            assert before[0].startswith("mcp__z__")


async def test_only_wanted_tools_are_offered(tmp_path: Path) -> None:
    async with McpStage(tmp_path) as stage:
        some = {"s": stage.server("good", tools=("e*",))}
        async with McpStage(tmp_path, mcp=some) as session:
            await session.learn()
            assert session.offered() == ["mcp__s__echo"]
        async with McpStage(tmp_path, mcp=some, tools=("read", "mcp__s__look")) as session:
            assert session.offered() == []
        async with McpStage(tmp_path, mcp=some, tools=()) as session:
            assert session.mcp_servers() is None


async def test_a_policy_decides_about_calls(tmp_path: Path) -> None:
    async with McpStage(tmp_path, policy=("mcp__s__echo=deny",)) as stage:
        await stage.learn()
        text, failed = await stage.call("hello")
        assert failed
        assert "denies mcp__s__echo" in text
        assert "tools/call" not in stage.methods()


async def test_an_approval_shows_all_arguments(tmp_path: Path) -> None:
    async with McpStage(tmp_path, policy=("*=ask",)) as stage:
        await stage.learn()
        question = stage.session.agent.approver.judge(
            CallBlock("1", "mcp__s__echo", {"text": "all of it"}), {"text": "all of it"}
        )
        assert question is not None
        assert not isinstance(question, str)
        assert question.args == {"text": "all of it"}


async def test_only_calls_declared_read_only_run_in_parallel(tmp_path: Path) -> None:
    async with McpStage(tmp_path) as stage:
        await stage.learn()
        tools = stage.session.agent._offered()
        assert (tools["mcp__s__look"].read_only, tools["mcp__s__echo"].read_only) == (True, False)


async def test_images_links_and_structured_content(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "many") as stage:
        await stage.learn()
        tool = stage.session.agent._offered()["mcp__s__echo"]
        text, image = await tool.run({}, ToolContext("/", {}))
        assert isinstance(image, ImageBlock)
        assert image.mime_type == "image/png"
        assert isinstance(text, TextBlock)
        assert text.text == (
            "[image left out: it is not valid base64]\n[audio left out]\n[resource file:///a]\n"
            "[resource file:///b]\ninside"
        )
    async with McpStage(tmp_path, "structured") as stage:
        await stage.learn()
        assert json.loads((await stage.call())[0]) == {"sum": 3}


async def test_a_failed_call_keeps_its_content(tmp_path: Path) -> None:
    async with McpStage(tmp_path) as stage:
        await stage.learn()
        with pytest.raises(ToolFailedWithOutput, match="echo: fail"):
            await stage.session.agent._offered()["mcp__s__echo"].run({"text": "fail"}, ToolContext("/", {}))


async def test_progress_extends_the_deadline_and_is_shown(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "progress", timeout_s=0.6) as stage:
        await stage.learn()
        assert await stage.call("0.3") == ("at last", False)
        shown = [event["text"] for event in stage.events if event["type"] == "tool_progress"]
        assert shown[0] == "step 0"


async def test_an_aborted_call_is_cancelled_at_the_server(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "progress") as stage:
        await stage.learn()
        stage.session.prompt('!script call mcp__s__echo {"text": "0.1"} ;; --- ;; say done')
        await stage.until(lambda: any(event["type"] == "tool_progress" for event in stage.events))
        stage.session.abort()
        await stage.session.worker.finish()
        while "notifications/cancelled" not in stage.methods():
            await asyncio.sleep(0.005)
        [called] = [one for one in stage.heard() if one["method"] == "tools/call"]
        [cancelled] = [one for one in stage.heard() if one["method"] == "notifications/cancelled"]
        assert cancelled["params"]["requestId"] == called["id"]


async def test_questions_of_a_server_are_answered_at_once(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "asks-old") as stage:
        await stage.learn()
        text, _ = await stage.call()
        declined, roots, refused = (json.loads(line) for line in text.split("\n"))
        assert declined == {"action": "decline"}
        assert roots == {"roots": [{"uri": f"file://{tmp_path}"}]}
        assert refused["message"] == "zot does not call models for servers: sampling/createMessage is refused"
    async with McpStage(tmp_path, "asks") as stage:
        await stage.learn()
        assert json.loads((await stage.call())[0]) == [{"q": {"action": "decline"}}, "here"]
    async with McpStage(tmp_path, "asks-forever") as stage:
        await stage.learn()
        assert await stage.call() == ("the MCP server s failed: asked 32 times for input", True)
    async with McpStage(tmp_path, "samples") as stage:
        await stage.learn()
        assert "zot does not call models for servers" in (await stage.call())[0]


async def test_a_server_gets_a_clean_environment(tmp_path: Path) -> None:
    env = {
        "ZOT_HOME": str(tmp_path),
        "PATH": os.environ["PATH"],
        "AWS_SECRET": "s",
        "ANTHROPIC_API_KEY": "k",
        "LANG": "C",
    }
    async with McpStage(tmp_path, "environment", env=env) as stage:
        await stage.learn()
        seen = json.loads((await stage.call())[0])
        assert {name for name in seen if name != "LC_CTYPE"} == {"PATH", "LANG", MARK, RUN_MARK, "HEARD"}


async def test_a_long_result_is_spilled(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "huge") as stage:
        await stage.learn()
        text, failed = await stage.call()
        assert not failed
        assert len(text) < 60_000
        path = text.partition("the complete output is in ")[2].partition(" ")[0]
        assert os.path.getsize(path) == 10_000_000


@needs("bwrap")
async def test_a_locked_server_runs_in_the_sandbox(tmp_path: Path) -> None:
    home, project = tmp_path / "home", tmp_path / "project"
    project.mkdir()
    (project / "server.py").write_text(Path(SERVER).read_text())
    marks = {MARK: tmp_path.name, RUN_MARK: os.environ.get(RUN_MARK, "")}
    inside = McpServer(command=sys.executable, args=(str(project / "server.py"), "environment"), env=marks)
    async with McpStage(home, mcp={"s": inside}, cwd=str(project), lock=True) as locked:
        await locked.learn()
        seen = json.loads((await locked.call())[0])
        assert seen["TMPDIR"] == "/tmp"
        assert f"starting {sys.executable} in the sandbox of --lock\n" in locked.log_of()
        assert MARK in seen
    elsewhere = McpServer(command=sys.executable, args=(SERVER,), cwd="/")
    async with McpStage(home, mcp={"s": elsewhere}, cwd=str(project), lock=True) as locked:
        [one] = locked.mcp_servers().servers
        with pytest.raises(ToolFailed, match="under --lock a server runs in"):
            await one.refresh()
    outside = McpServer(command=sys.executable, args=(SERVER,))
    async with McpStage(home, mcp={"s": outside}, cwd=str(project), lock=True) as locked:
        [one] = locked.mcp_servers().servers
        with pytest.raises(
            ToolFailed, match=r"exited with 2: .*\(in the sandbox of --lock, which shows few directories"
        ):
            await one.refresh()
        assert locked.log_of().count("exited with 2") == 2  # One line for each attempt: it may be an old server.


def test_a_session_without_servers_loads_no_module_of_mcp(tmp_path: Path) -> None:
    code = (
        "import asyncio, sys\n"
        "from zot import Runtime\n"
        "async def main():\n"
        "    async with Runtime(provider='lab') as runtime:\n"
        "        async for event in runtime.prompt('hi'): pass\n"
        "asyncio.run(main())\n"
        "print(sorted(name for name in sys.modules if 'mcp' in name))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment({}), capture_output=True, text=True, timeout=30,
        check=True,
    )  # fmt: skip
    assert done.stdout == "[]\n"


def test_secrets_of_servers_are_not_in_the_repr_of_a_config() -> None:
    server = McpServer(command="x", args=("hunter2",), env={"TOKEN": "hunter2"})
    assert "hunter2" not in repr(Config(provider="lab", mcp={"s": server}))
