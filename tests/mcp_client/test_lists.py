"""Tools, prompts and resources of servers: deferred, found, run as commands, read, changed while a session runs."""

from __future__ import annotations

import asyncio
import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from daemons import running
from harness import Zot
from ui.terminal.stage import stage as terminal
from zot.config.flags import McpServer
from zot.errors import NoSuchCommand, UserError
from zot.mcp.servers import McpServers
from zot.messages import TextBlock
from zot.panels import ResourceInfo
from zot.sdk.runtime import Runtime
from zot.tools.base import ToolContext

from .stage import SERVER, McpStage


async def test_many_tools_are_found_when_they_are_needed(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "crowd") as stage:
        await stage.prompt("say hi")
        servers: McpServers = stage.mcp_servers()
        while not servers.is_deferring:
            await stage.prompt("say hi")
        offered = [
            name for name in stage.session.agent._offered() if name not in ("bash", "edit", "read", "write", "skill")
        ]
        assert offered == ["find_tools"]
        text, is_error = (await stage.find("send mail"))[0]
        assert (is_error, text.split("\n")[1].partition(":")[0]) == (False, "mcp__s__tool7")
        assert stage.offered() == ["mcp__s__tool7"]
        assert await stage.call("x", "mcp__s__tool7") == ("tool7: x", False)
        assert (await stage.find("xylophone"))[0] == ("No tool fits. The servers are: s (100 tools)", False)
        assert [*stage.session.agent._offered()][-2:] == ["find_tools", "mcp__s__tool7"]
    async with McpStage(tmp_path, "crowd", mcp={"s": stage.server("crowd")}, mcp_share=1.0) as all_of_them:
        assert len(all_of_them.offered()) == 100


async def test_a_prompt_of_a_server_is_a_command(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "rich") as stage:
        await stage.learn()
        assert [one.name for one in await stage.session.commands()] == ["s:review"]
        answer = await stage.session.run_command("s:review", "a b c")
        assert (answer.extension, answer.action) == ("mcp:s", "prompt")
        assert answer.prompt == "Review {'what': 'a', 'how': 'b c'}"
        with pytest.raises(UserError, match=r"needs what: <what> \[how\]"):
            await stage.session.run_command("s:review", "")
        for unknown in ("s:other", "t:review", "review"):
            with pytest.raises(NoSuchCommand):
                await stage.session.run_command(unknown, "")


async def test_the_model_reads_resources(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "rich") as stage:
        await stage.learn()
        tool = stage.session.agent._offered()["read_mcp_resource"]
        context = ToolContext(str(tmp_path), {})
        assert await tool.run({"server": "s", "uri": "@s:note://a"}, context) == (TextBlock("the note"),)
        [listed] = await tool.run({"server": "s"}, context)
        assert isinstance(listed, TextBlock)
        assert listed.text.startswith("note://a  A\\x1b note\n")
        with pytest.raises(Exception, match="there is no server 't'; there are: s"):
            await tool.run({"server": "t", "uri": "x"}, context)


RICH = McpServer(command=sys.executable, args=(SERVER, "rich"))
FOUND = [{"mention": "@s:note://a", "title": "A note"}]


async def test_resources_that_a_prompt_can_mention_are_listed(tmp_path: Path, zot: Any) -> None:
    async with McpStage(tmp_path, mcp={"s": RICH}) as stage:
        await stage.learn()
        assert stage.session.resources() == [ResourceInfo("@s:note://a", "A note")]
        assert "a resource is not offered: the address 'note://a b' cannot be mentioned" in stage.log_of()
    # The next session knows them from the cache, on each surface.
    env = {"ZOT_HOME": str(tmp_path)}
    server = shlex.join([RICH.command, *RICH.args])
    process: Zot = zot("--provider", "lab", "--mcp", f"s={server}", env=env)
    assert process.ask({"type": "get_resources"})["data"] == {"resources": FOUND}
    async with Runtime(provider="lab", cwd=str(tmp_path), env=env, mcp={"s": RICH}) as runtime:
        assert runtime.resources() == [ResourceInfo("@s:note://a", "A note")]
    async with running(tmp_path, mcp={"s": RICH}) as daemon:
        caller = await daemon.caller()
        await caller.get("initialize", protocolVersion=1)
        await caller.get("session/new", agentAlias="default", sessionId="s")
        found: Any = []
        while not found:  # It has a cache of its own, which the first prompt fills in the background.
            await caller.get("session/prompt", sessionId="s", prompt="hi")
            found = (await caller.get("session/resources", sessionId="s"))["resources"]
        assert found == FOUND
    async with terminal(tmp_path, mcp={"s": RICH}, env=env) as person:
        await person.sees("ready")
        await person.until(lambda: bool(person.app.composer.resources))
        editor = person.app.editor
        editor.insert("look at @s:no")
        await person.until(lambda: editor.offers)
        await person.pilot.press("tab")
        assert editor.text == "look at @s:note://a "


async def test_a_server_that_always_reports_changes_is_asked_rarely(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "restless") as stage:
        told = 0

        def count() -> None:
            nonlocal told
            told += 1

        stage.mcp_servers().attach(count)
        await stage.learn()
        for _ in range(5):  # Each call takes in what the server has sent before.
            await stage.call()
        assert stage.methods().count("tools/list") <= 3
        assert told <= 3


async def test_tools_that_appear_during_a_session_come_last(tmp_path: Path) -> None:
    async with McpStage(tmp_path, "changes") as stage:
        await stage.learn()
        before = stage.offered()
        await stage.call()
        await stage.until_known("mcp__s__later")
        assert stage.offered() == [*before, "mcp__s__later"]
        [listening] = [one for one in stage.heard() if one["method"] == "subscriptions/listen"]
        assert listening["params"]["notifications"] == {"toolsListChanged": True}


async def test_the_state_of_servers_is_visible(tmp_path: Path) -> None:
    async with McpStage(tmp_path) as stage:
        servers = {"b": stage.server("good"), "a": stage.server("exits"), "off": stage.server("good", enabled=False)}
        async with McpStage(tmp_path, mcp=servers) as second:
            assert [(one.name, one.state) for one in second.session.state().mcp] == [
                ("a", "idle"), ("b", "idle"), ("off", "disabled")]  # fmt: skip
            await second.prompt("say hi")
            await second.until_known("mcp__b__echo")
            while second.session.state().mcp[0].state != "failed":
                await asyncio.sleep(0.005)
            a, b, _ = second.session.state().mcp
            assert "exited with 1: no such thing" in a.problem
            assert (b.state, b.tools, b.revision) == ("running", 3, "2026-07-28")
            assert any(event["type"] == "reconfigured" for event in second.events)


async def test_an_agent_has_the_servers_that_its_patterns_name(tmp_path: Path) -> None:
    async with McpStage(tmp_path) as stage:
        servers = {"files": stage.server("good"), "mail": stage.server("good")}
        async with McpStage(tmp_path, mcp=servers, mcp_servers=("f*",)) as second:
            assert [(one.name, one.state) for one in second.session.state().mcp] == [
                ("files", "idle"), ("mail", "disabled")]  # fmt: skip


async def test_requests_have_the_same_prefix_whatever_connects_first(tmp_path: Path) -> None:
    """The tools of a request are byte-equal for every order of the servers, and later ones are appended."""
    async with McpStage(tmp_path) as stage:
        servers = {name: stage.server("good") for name in ("b", "a", "c")}
    bodies = []
    for home, order in ((tmp_path / "x", "abc"), (tmp_path / "y", "cba")):
        for names in order[:2], order:
            async with McpStage(home, mcp={name: servers[name] for name in names}) as one:
                await one.prompt("say hi")
                for name in names:
                    await one.until_known(f"mcp__{name}__echo")
        async with McpStage(home, mcp=servers) as one:
            bodies.append(json.dumps([tool.spec.schema for tool in one.session.agent._offered().values()]))
    assert bodies[0] == bodies[1]
