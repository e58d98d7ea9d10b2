"""The agents that config.toml names: one reading of it, all of it checked, and another one when it has changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from zot.config.config import Config, resolve
from zot.config.configured_agents import AgentConfigs
from zot.config.file import DaemonSettings
from zot.errors import ConfigError, InvalidConfigFile, NoSuchAgent, UsageError

TWO = """
[agents.default]
provider = "lab"
max_steps = 7

[agents.careful]
model = "claude-sonnet-4-5"
policy = ["bash=ask"]
approval_timeout_s = 5
cwd = "~/work"
max_cost = 1.5
"""


def written(directory: Path, text: str) -> str:
    (directory / "config.toml").write_text(text)
    return str(directory)


def test_without_a_file_there_is_the_default_agent(tmp_path: Path) -> None:
    for directory in (None, str(tmp_path), str(tmp_path / "nowhere")):
        agents = AgentConfigs.load(directory)
        assert (agents.names, agents.file.path, agents.file.daemon) == (("default",), "", DaemonSettings())
        assert agents.config("default", env={}) == Config(env={})
        assert not agents.has_policy("default")


def test_each_agent_has_its_own_settings_and_none_of_the_default_one(tmp_path: Path) -> None:
    agents, env = AgentConfigs.load(written(tmp_path, TWO)), {"HOME": "/home/me"}
    assert agents.names == ("default", "careful")
    assert agents.config("default", env=env) == Config(provider="lab", max_steps=7, env=env)
    assert agents.config("careful", env=env) == Config(
        agent="careful",
        model="claude-sonnet-4-5",
        policy=("bash=ask",),
        approval_timeout_s=5.0,
        cwd="/home/me/work",
        max_cost=1.5,
        env=env,
    )


def test_flags_win_over_the_file_and_a_model_belongs_to_its_provider(tmp_path: Path) -> None:
    agents = AgentConfigs.load(written(tmp_path, TWO))
    config = agents.config("careful", {"provider": "lab", "cwd": "/srv", "policy": ("read=deny",)}, {})
    assert (config.provider, config.model, config.cwd) == ("lab", None, "/srv")
    assert config.policy == ("read=deny", "bash=ask")
    with pytest.raises(UsageError, match="--session needs a name"):
        agents.config("careful", {"session": ""}, {})


def test_an_unknown_agent_is_an_error_that_lists_the_known_ones(tmp_path: Path) -> None:
    home = written(tmp_path, TWO)
    with pytest.raises(NoSuchAgent) as of_snapshot:
        AgentConfigs.load(home).config("bold")
    with pytest.raises(NoSuchAgent) as of_flags:
        resolve({"agent": "bold", "config_dir": home})
    said = "no agent 'bold' in config.toml; known: default, careful"
    assert (str(of_snapshot.value), str(of_flags.value)) == (said, said)


def test_the_default_agent_replaces_an_unknown_one_only_on_request(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    env = {"ZOT_HOME": written(tmp_path, TWO)}
    assert resolve({"agent": "bold"}, env, or_default=True) == Config(provider="lab", max_steps=7, env=env)
    assert caplog.messages == ["no agent 'bold' in config.toml: the default agent answers"]


@pytest.mark.parametrize(
    ("policy", "has"),
    [("", False), ("policy = []", False), ('policy = ["*=allow"]', True)],
    ids=["no", "empty", "some"],
)
def test_an_agent_has_a_policy_if_it_has_rules(tmp_path: Path, policy: str, has: bool) -> None:
    agents = AgentConfigs.load(written(tmp_path, f"[agents.guest]\n{policy}\n"))
    assert (agents.has_policy("guest"), agents.has_policy("default")) == (has, False)


def test_every_problem_is_reported_even_in_agents_that_are_not_used(tmp_path: Path) -> None:
    home = written(
        tmp_path,
        """
        [agents.a]
        tools = "all"
        [agents.b]
        max_steps = 0
        colour = "red"
        [agents.c]
        provider = "acme"
        [daemon]
        listen = ["localhost"]
        """,
    )
    with pytest.raises(InvalidConfigFile) as caught:
        AgentConfigs.load(home)
    problems = caught.value.problems
    assert [" ".join(problem.replace(":", "").split()[:2]) for problem in problems] == [
        "[agents.a] tools", "[agents.b] max_steps", "[agents.b] colour", "[agents.c] provider", "[daemon] listen",
    ]  # fmt: skip
    assert problems[3].startswith("[agents.c] provider: unknown provider 'acme'; known: anthropic, ")
    assert (caught.value.path, str(caught.value)) == (
        f"{home}/config.toml",
        f"{home}/config.toml: {'; '.join(problems)}",
    )


def test_invalid_rules_and_apis_are_reported_with_their_place(tmp_path: Path) -> None:
    home = written(
        tmp_path,
        """
        [agents.a]
        policy = ["*=ask", "bash"]
        [agents.b]
        provider = "gemini"
        api = "chat"
        [agents.c]
        api = "chat"
        """,
    )
    with pytest.raises(InvalidConfigFile) as caught:
        AgentConfigs.load(home)
    assert caught.value.problems == (
        "[agents.a] policy[1]: 'bash' is not a rule; write TOOL[:PATTERN]=allow, =deny or =ask, such as 'bash=ask'",
        "[agents.b] api: gemini does not speak 'chat'; it speaks: gemini",
        "[agents.c] api: anthropic does not speak 'chat'; it speaks: anthropic",
    )


def test_reading_again_leaves_the_previous_settings_unchanged(tmp_path: Path) -> None:
    agents = AgentConfigs.load(written(tmp_path, TWO))
    before = agents.config("careful", env={})
    written(tmp_path, '[agents.bold]\nprovider = "lab"\n[daemon]\nmax_sessions = 2')
    later = agents.reloaded()
    assert (later.names, later.file.daemon) == (("default", "bold"), DaemonSettings(max_sessions=2))
    assert (agents.names, agents.config("careful", env={})) == (("default", "careful"), before)


def test_a_failed_reading_leaves_the_previous_settings_in_use(tmp_path: Path) -> None:
    agents = AgentConfigs.load(written(tmp_path, TWO))
    for broken in ("[agents", "[agents.x]\nlock = 1", '[agents.x]\npolicy = ["rm"]'):
        written(tmp_path, broken)
        with pytest.raises(ConfigError, match=r"config\.toml: "):
            agents.reloaded()
    assert agents.config("careful", env={}).policy == ("bash=ask",)
    (tmp_path / "config.toml").unlink()
    assert agents.reloaded() == AgentConfigs.load(str(tmp_path))


def test_the_daemon_has_its_own_table(tmp_path: Path) -> None:
    home = written(
        tmp_path,
        """
        [daemon]
        max_sessions = 200
        idle_s = 60
        listen = ["ws://127.0.0.1:7777", "wss://[::1]:7778/zot"]
        grace_s = 0
        server_version = "0.8.1"
        log_level = "debug"
        """,
    )
    assert AgentConfigs.load(home).file.daemon == DaemonSettings(
        max_sessions=200,
        idle_s=60.0,
        listen=("ws://127.0.0.1:7777", "wss://[::1]:7778/zot"),
        grace_s=0.0,
        server_version="0.8.1",
        log_level="debug",
    )


@pytest.mark.parametrize(
    "address",
    [
        "",
        "localhost:1",
        "http://h:1",
        "ws://h",
        "ws://:1",
        "ws://h:65536",
        "ws://u:p@h:1",
        "ws://h:1/?token=t",
        "ws://h:1 ",
    ],
)
def test_an_invalid_listen_address_is_refused_without_quoting_it(tmp_path: Path, address: str) -> None:
    home = written(tmp_path, f'[daemon]\nlisten = ["ws://h:1", "{address}"]')
    with pytest.raises(InvalidConfigFile) as caught:
        AgentConfigs.load(home)
    assert caught.value.problems == (
        "[daemon] listen: expected addresses such as ws://127.0.0.1:7777, without a user, a query or a token",
    )
