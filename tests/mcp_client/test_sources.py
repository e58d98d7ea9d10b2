"""Sources of MCP servers: settings, config.toml, flags, and the project's file once the user trusts it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from zot.config.config import Config, checked, resolve
from zot.config.flags import McpServer
from zot.config.trust import TrustStore
from zot.errors import ConfigError, ProtocolError, UsageError
from zot.mcp.listing import check_tool, tool_name
from zot.mcp.project_servers import project_file
from zot.mcp.server_settings import find_servers
from zot.mcp.source import McpSource
from zot.mcp.tool_cache import MAX_TTL_S, CachedList, OfferedTool, ToolCache
from zot.messages import ToolSpec
from zot.wire.mcp import ListedTool


class Project:
    """A project with a file of servers."""

    def __init__(self, top: Path, servers: object) -> None:
        self.home = top / "home"
        self.home.mkdir(mode=0o700)
        self.cwd = str(top)
        self.env = {"ZOT_HOME": str(self.home), "PATH": "/bin", "TOKEN": "t", "OPENAI_API_KEY": "k"}
        Path(project_file(self.cwd)).write_text(json.dumps({"mcpServers": servers}))

    def found(self, **settings: object) -> dict[str, McpSource]:
        config = Config(provider="lab", env=self.env, **settings)  # type: ignore[arg-type]  # Settings of a test.
        return {one.name: one for one in find_servers(config, self.cwd)}


def test_the_projects_servers_need_trust_in_their_file(tmp_path: Path) -> None:
    project = Project(tmp_path, {"docs": {"command": "docs", "args": ["a"]}})
    assert project.found()["docs"].problem.endswith("is not trusted; look at it, then: zot mcp trust")
    assert project.found(trust_project=True)["docs"].runs
    TrustStore(str(project.home)).trust(project_file(project.cwd))
    assert project.found()["docs"].argv == ("docs", "a")
    with open(project_file(project.cwd), "a") as file:
        file.write(" ")
    assert not project.found()["docs"].runs


def test_a_bad_entry_is_skipped_alone(tmp_path: Path) -> None:
    entries = {"good": {"command": "x", "type": "stdio"}, "web": {"url": "ftp://x", "type": "http"}, "no": 7}
    found = Project(tmp_path, {**entries, "a__b": {"command": "x"}, "off": {"command": "x", "disabled": True}}).found(
        trust_project=True
    )
    assert {name for name, one in found.items() if one.runs} == {"good"}
    assert "must begin with http" in found["web"].problem
    assert "its entry is invalid" in found["no"].problem
    assert "no usable name" in found["a__b"].problem
    assert not found["off"].enabled


@pytest.mark.parametrize("text", ["{", "[]", '{"mcpServers": {"a": }}', "\xff", "[" * 100_000])
def test_a_damaged_file_is_reported(tmp_path: Path, text: str) -> None:
    project = Project(tmp_path, {})
    Path(project_file(project.cwd)).write_text(text)
    [one] = project.found(trust_project=True).values()
    assert "it is damaged" in one.problem


def test_a_file_with_too_much_in_it_is_refused(tmp_path: Path) -> None:
    project = Project(tmp_path, {f"s{number}": {"command": "x"} for number in range(101)})
    [one] = project.found(trust_project=True).values()
    assert one.problem == "it has more than 100 servers"
    Path(project_file(project.cwd)).write_bytes(b" " * (1024 * 1024 + 1))
    [one] = project.found(trust_project=True).values()
    assert "longer than" in one.problem


def test_variables_are_expanded_and_zots_keys_never_for_a_project(tmp_path: Path) -> None:
    given = {"command": "${BIN:-run}", "args": ["${TOKEN}", "$TOKEN"], "env": {"A": "x${TOKEN}y"}}
    project = Project(tmp_path, {"a": given, "b": {"command": "x", "args": ["${OPENAI_API_KEY}"]}})
    found = project.found(trust_project=True, mcp={"c": McpServer(command="x", args=("${OPENAI_API_KEY}",), cwd="sub")})
    assert (found["a"].argv, found["a"].env["A"]) == (("run", "t", "$TOKEN"), "xty")
    assert found["b"].problem == "the variable OPENAI_API_KEY is not set"
    assert (found["c"].argv, found["c"].cwd) == (("x", "k"), str(tmp_path / "sub"))


def test_settings_win_over_the_project_and_come_in_order(tmp_path: Path) -> None:
    project = Project(tmp_path, {"b": {"command": "theirs"}, "a": {"command": "x"}})
    found = project.found(trust_project=True, mcp={"b": McpServer(command="mine")})
    assert ([*found], found["b"].argv) == (["a", "b"], ("mine",))


def test_config_toml_has_servers_for_every_agent_and_flags_add_to_them(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(
        '[mcp.files]\ncommand = "f"\ntimeout_s = 5\n[agents.other]\nprovider = "lab"\n'
    )
    place = {"config_dir": str(tmp_path)}
    assert resolve(place, {}).mcp == {"files": McpServer(command="f", timeout_s=5.0)}
    flags = (("more", McpServer(command="m", args=("a b",))), ("files", McpServer(command="g")))
    both = resolve({**place, "agent": "other", "mcp": flags}, {}).mcp
    assert both == {"files": McpServer(command="g"), "more": McpServer(command="m", args=("a b",))}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('[mcp.x]\ncmd = "f"', "[mcp.x] cmd: unknown setting"),
        ("[mcp.x]\nargs = []", "[mcp.x] command: missing"),
        ('[mcp."a b"]\ncommand = "x"', "is not a valid server name"),
        ("mcp = 3", "[mcp] is not a table"),
        ('[mcp.x]\ncommand = "f"\ntimeout_s = 0', "[mcp.x] timeout_s"),
    ],
)
def test_a_wrong_table_is_named(tmp_path: Path, text: str, problem: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(ConfigError) as raised:
        resolve({"config_dir": str(tmp_path)}, {})
    assert problem in str(raised.value)


def test_the_flag_is_parsed_and_checked() -> None:
    from zot.config.flags import mcp_server

    assert mcp_server("a=run 'x y' z") == ("a", McpServer(command="run", args=("x y", "z")))
    for wrong in ("run", "=run", "a=", "a__b=x", "a_=x", "a='x", "é=x", "-a=x", "x" * 33 + "=y"):
        with pytest.raises(ValueError, match=r"expected NAME=COMMAND|is not a valid server name"):
            mcp_server(wrong)


def test_the_sdk_takes_tables() -> None:
    config = checked({"provider": "lab", "mcp": {"a": {"command": "x", "args": ["y"]}}})
    assert config.mcp == {"a": McpServer(command="x", args=("y",))}
    assert checked({"model": "m"}, config).mcp == config.mcp
    with pytest.raises(ConfigError, match="comand"):
        checked({"provider": "lab", "mcp": {"a": {"comand": "x"}}})


def test_names_for_the_model_are_valid_short_and_distinct() -> None:
    names = [tool_name("s", name) for name in ("a", "a b", "a/b", "a_b", "x" * 100, "x" * 101, "é")]
    assert len({*names}) == len(names)
    assert all(len(name) <= 64 and name.isascii() and name.startswith("mcp__s__") for name in names)
    assert names[0] == "mcp__s__a"


@pytest.mark.parametrize(
    "tool",
    [
        ListedTool("", {}),
        ListedTool("x" * 257, {}),
        ListedTool("x", {"type": "string"}),
        ListedTool("x", {"description": "x" * 70_000}),
    ],
)
def test_a_tool_that_cannot_be_offered_is_refused(tool: ListedTool) -> None:
    with pytest.raises(ProtocolError):
        check_tool("s", tool)


def test_schemas_have_no_invisible_text_for_the_model() -> None:
    hidden = {
        "title": "a\u200bb",
        "properties": {"title": {"description": "c\u202ed", "$comment": "e\x1bf", "enum": ["g\u200bh"]}},
    }
    seen = {"title": "ab", "properties": {"title": {"description": "cd", "$comment": "ef", "enum": ["g\u200bh"]}}}
    assert check_tool("s", ListedTool("x", hidden)).spec.schema == {"type": "object", **seen}


def test_a_long_description_is_cut() -> None:
    assert len(check_tool("s", ListedTool("x", {}, "d" * 10_000)).spec.description) == 4_001


def test_the_cache_expires_and_survives_damage(tmp_path: Path) -> None:
    clock = [1000.0]
    cache = ToolCache(str(tmp_path), now=lambda: clock[0])
    tool = OfferedTool("x", ToolSpec("mcp__s__x", "", {}), read_only=True)
    cache.put("d", CachedList("2026-07-28", (tool,), 0.0), 10.0)
    found = cache.get("d")
    assert found is not None
    assert (found.tools, cache.is_current(found)) == ((tool,), True)
    clock[0] += 11
    assert not cache.is_current(found)
    cache.put("e", CachedList("", (), 0.0), 1e18)
    clock[0] -= 100
    long = cache.get("e")
    assert long is not None
    assert long.expires_at <= 1011 + MAX_TTL_S
    assert not cache.is_current(long)  # The clock went back: it cannot be trusted.
    (tmp_path / "d.json").write_bytes(b"{")
    assert cache.get("d") is None
    assert ToolCache(None).get("d") is None


def test_another_configuration_is_another_entry_of_the_cache() -> None:
    one = McpSource("s", ("x",), {"A": "1", "PATH": "p"}, frozenset({"A"}), "/")
    assert one.digest == McpSource("s", ("x",), {"A": "1", "PATH": "q"}, frozenset({"A"}), "/").digest
    assert one.digest != McpSource("s", ("x",), {"A": "2", "PATH": "p"}, frozenset({"A"}), "/").digest
    assert one.digest != McpSource("s", ("y",), {"A": "1", "PATH": "p"}, frozenset({"A"}), "/").digest


def test_an_unknown_flag_value_is_wrong_usage() -> None:
    from zot.config import flags
    from zot.config.config import AGENT_FLAGS

    with pytest.raises(UsageError, match="--mcp"):
        flags.parse(["--mcp", "nonsense"], AGENT_FLAGS)
