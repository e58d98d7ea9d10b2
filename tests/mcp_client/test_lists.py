"""Tools, prompts and resources of servers: deferred, found, run as commands, read, changed while a session runs."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from zot.errors import NoSuchCommand, UserError
from zot.mcp.servers import McpServers
from zot.messages import TextBlock
from zot.tools.base import ToolContext

from .stage import McpStage


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
        assert await tool.run({"server": "s"}, context) == (TextBlock("note://a  A note"),)
        with pytest.raises(Exception, match="there is no server 't'; there are: s"):
            await tool.run({"server": "t", "uri": "x"}, context)


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
