"""`zot config`: an agent's settings and the source of each; and `--agent`, which selects one."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from shell import Said, Shell
from zot.config.config import Config

FILE = """
[agents.default]
provider = "lab"
max_steps = 7

[agents.poet]
provider = "lab"
system_prompt = "Speak in verse."
policy = ["bash=deny"]
reasoning = "low"

[agents.far]
provider = "openai"
model = "gpt-4o"
base_url = "https://me:hunter2@example.com/v1?key=hunter2"

[daemon]
idle_s = 600
"""
DEFAULT = [{"source": "default", "name": ""}]


@pytest.fixture
def configured(shell: Shell) -> Shell:
    shell.home.mkdir()
    (shell.home / "config.toml").write_text(FILE)
    return shell


def settings(said: Said) -> dict[str, Any]:
    assert (said.err, said.code) == ("", 0)
    found: dict[str, Any] = json.loads(said.out)["settings"]
    return found


def flag(name: str) -> list[dict[str, str]]:
    return [{"source": "flag", "name": name}]


def table(shell: Shell, name: str) -> dict[str, str]:
    return {"source": "file", "name": f"{shell.home / 'config.toml'} [{name}]"}


# What counts, and why.


def test_every_setting_is_shown_with_where_it_comes_from(configured: Shell) -> None:
    words = ("--agent", "poet", "--no-tools", "--policy", "read=allow", "--ext-deadline", "tool=2", "--no-extensions")
    found = settings(configured.run("config", *words, "--json"))
    poet = table(configured, "agents.poet")
    assert {*found} == {*Config.__struct_fields__} - {"env"}
    told = {name: (one["value"], one["from"]) for name, one in found.items() if one["from"] != DEFAULT}
    assert told == {
        "agent": ("poet", flag("--agent")),
        "provider": ("lab", [poet]),
        "system_prompt": ("Speak in verse.", [poet]),
        "reasoning": ("low", [poet]),
        "tools": ([], flag("--no-tools")),
        "policy": (["read=allow", "bash=deny"], [*flag("--policy"), poet]),
        "ext_deadlines": ({"tool": 2.0}, flag("--ext-deadline")),
        "no_ext": (True, flag("--no-ext")),
    }
    assert {name: found[name]["value"] for name in ("model", "api", "base_url", "api_key", "cwd", "max_steps")} == {
        "model": "lab-1",
        "api": "anthropic",
        "base_url": "http://lab.invalid",
        "api_key": None,
        "cwd": str(configured.cwd),
        "max_steps": 50,
    }


def test_without_a_file_the_defaults_hold_and_the_output_says_so(shell: Shell) -> None:
    found = settings(shell.run("config", "--json"))
    assert {one["from"][0]["source"] for one in found.values()} == {"default"}
    said = shell.run("config")
    assert said.out.split("\n")[0].split() == ["SETTING", "VALUE", "FROM"]
    assert (said.err, said.code) == (f"zot: no config.toml in {shell.home}: the defaults apply\n", 0)


def test_people_get_a_table(configured: Shell) -> None:
    said = configured.run("config", "--max-steps", "3", "--policy=*=ask")
    rows = [line.split(maxsplit=2) for line in said.out.split("\n")]
    assert ["provider", "lab", f"{configured.home}/config.toml [agents.default]"] in rows
    assert ["max_steps", "3", "--max-steps"] in rows
    assert ["policy", '["*=ask"]', "--policy"] in rows
    assert ["system_prompt", "-", "default"] in rows
    assert (said.err, said.code) == ("", 0)


def test_settings_of_another_provider_are_ignored(configured: Shell) -> None:
    found = settings(configured.run("config", "--agent", "far", "--provider", "gemini", "--json"))
    assert (found["model"]["from"], found["base_url"]["from"]) == (DEFAULT, DEFAULT)
    assert found["base_url"]["value"] == "https://generativelanguage.googleapis.com"


def test_an_address_and_a_key_from_the_environment_are_shown_by_variable_name(configured: Shell) -> None:
    configured.env |= {"OPENAI_API_KEY": "sk-hunter2", "OPENAI_BASE_URL": "http://u:hunter2@localhost:9/v1"}
    said = configured.run("config", "--provider", "openai", "--json")
    found = settings(said)
    assert found["base_url"] == {
        "value": "http://localhost:9/v1",
        "from": [{"source": "environment", "name": "OPENAI_BASE_URL"}],
    }
    assert found["api_key"] == {"value": "set", "from": [{"source": "environment", "name": "OPENAI_API_KEY"}]}
    assert found["api"]["value"] == "chat"
    assert "hunter2" not in said.out


def test_no_secret_is_shown_wherever_it_is(configured: Shell) -> None:
    stored = configured.home / "auth.json"
    stored.write_text('{"anthropic": {"key": "sk-hunter2"}}')
    stored.chmod(0o600)
    kept = configured.run("config", "--provider", "anthropic", "--json")
    assert settings(kept)["api_key"] == {"value": "set", "from": [{"source": "file", "name": "auth.json"}]}
    given = configured.run("config", "--agent", "far", "--api-key", "sk-hunter2", "--json")
    assert settings(given)["api_key"] == {"value": "set", "from": flag("--api-key")}
    assert settings(given)["base_url"]["value"] == "https://example.com/v1"
    people = configured.run("config", "--agent", "far", "--api-key", "sk-hunter2")
    unknown = configured.run("config", "--agent", "far", "--provider", "acme", "--base-url", "http://u:hunter2@h")
    assert [said.code for said in (people, unknown)] == [0, 2]
    assert "hunter2" not in kept.out + given.out + people.out + unknown.out


def test_a_model_with_its_own_address_is_shown_with_it(configured: Shell) -> None:
    models = {"providers": {"openai": {"models": [{"id": "mine", "baseUrl": "http://localhost:9/v1"}]}}}
    (configured.home / "models.json").write_text(json.dumps(models))
    found = settings(configured.run("config", "--provider", "openai", "--model", "mine", "--json"))
    assert found["base_url"] == {
        "value": "http://localhost:9/v1", "from": [{"source": "file", "name": "models.json"}],
    }  # fmt: skip


def test_agents_are_listed(configured: Shell) -> None:
    said = configured.run("config", "agents", "--json")
    assert [tuple(json.loads(line).values()) for line in said.out.split("\n")[:-1]] == [
        ("default", "lab", None, None, False),
        ("poet", "lab", None, None, True),
        ("far", "openai", "gpt-4o", None, False),
    ]
    lines = configured.run("config", "agents").out.split("\n")
    assert [line.split() for line in lines[:2]] == [
        ["AGENT", "PROVIDER", "MODEL", "CWD", "POLICY"],
        ["default", "lab", "-", "-", "no"],
    ]


def test_the_daemon_has_settings_too(configured: Shell) -> None:
    found = settings(configured.run("config", "daemon", "--json"))
    assert found["idle_s"] == {"value": 600.0, "from": [table(configured, "daemon")]}  # though it is the default
    assert found["max_sessions"] == {"value": 0, "from": DEFAULT}


# Invalid settings.


def test_the_daemon_s_directory_comes_from_the_variable_unless_a_flag_is_given(configured: Shell) -> None:
    other = configured.user / "other"
    other.mkdir()
    (other / "config.toml").write_text("[daemon]\nidle_s = 7\n")
    configured.env["ZEROCLAW_CONFIG_DIR"] = str(other)
    said = configured.run("config", "daemon", "--json")
    assert (json.loads(said.out)["settings"]["idle_s"]["value"], said.code) == (7.0, 0)
    assert "ZEROCLAW_CONFIG_DIR" in said.err
    assert json.loads(configured.run("config", "check", "--json").out)["file"] == str(other / "config.toml")
    named = settings(configured.run("config", "daemon", "--config-dir", str(configured.home), "--json"))
    assert named["idle_s"]["value"] == 600.0


def test_a_file_is_checked(configured: Shell) -> None:
    path = configured.home / "config.toml"
    said = configured.run("config", "check")
    assert said == (f"{path}: valid, with 3 agents: default, poet, far\n", "", 0)
    path.write_text('[agents.a]\nlock = 1\n[agents.b]\npolcy = []\n[daemon]\nlog_level = "loud"')
    problems = [
        "[agents.a] lock must be true or false, not a whole number",
        "[agents.b] polcy: unknown setting; did you mean policy?",
        "[daemon] log_level cannot be 'loud'; use one of: debug, error, info, warning",
    ]
    said = configured.run("config", "check")
    assert said == ("", "".join(f"zot: {path}: {problem}\n" for problem in problems), 3)
    said = configured.run("config", "check", "--json")
    assert json.loads(said.out) == {"ok": False, "file": str(path), "agents": [], "problems": problems, "warnings": []}
    assert (said.err, said.code) == ("", 3)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[agents.a]\nlock = \n", "Invalid value (at line 2, column 8)"),
        (
            '[agents.a]\npolicy = ["rm"]',
            "[agents.a] policy[0]: 'rm' is not a rule; write TOOL[:PATTERN]=allow, =deny or =ask, such as 'bash=ask'",
        ),
    ],
    ids=["no TOML", "no rule"],
)
def test_a_file_that_cannot_be_used_says_where(configured: Shell, text: str, problem: str) -> None:
    path = configured.home / "config.toml"
    path.write_text(text)
    assert configured.run("config", "check") == ("", f"zot: {path}: {problem}\n", 3)
    assert configured.run("config") == ("", f"zot: {path}: {problem}\n", 1)


def test_rules_for_tools_that_zot_does_not_have_are_found(configured: Shell) -> None:
    path = configured.home / "config.toml"
    path.write_text('[agents.a]\npolicy = ["bsh=ask"]')
    problem = "[agents.a] policy[0]: 'bsh=ask': no tool is named 'bsh'; did you mean bash?"
    assert configured.run("config", "check") == ("", f"zot: {path}: {problem}\n", 3)
    path.write_text('[agents.a]\npolicy = ["search=ask"]')
    said = configured.run("config", "check")
    assert (said.out, said.code) == (f"{path}: valid, with 2 agents: default, a\n", 0)
    assert said.err.startswith(f"zot: {path}: warning: [agents.a] policy[0]: 'search=ask': zot has no tool 'search'")


def test_a_path_that_is_not_a_file_is_an_error_and_a_missing_file_is_not(shell: Shell) -> None:
    assert shell.run("config", "check") == ("no config.toml: the defaults apply\n", "", 0)
    path = shell.home / "config.toml"
    path.mkdir(parents=True)
    assert shell.run("config", "check") == ("", f"zot: {path}: Is a directory\n", 3)


@pytest.mark.parametrize("words", [("dance",), ("agents", "poet"), ("--frobnicate",)])
def test_wrong_usage_is_exit_code_two(shell: Shell, words: tuple[str, ...]) -> None:
    said = shell.run("config", *words)
    assert (said.out, said.code) == ("", 2)


# Who answers.


def test_an_agent_that_is_named_answers(configured: Shell) -> None:
    out, err, _ = configured.run("prompt", "--agent", "poet", "--with-skills")
    assert out.startswith("Speak in verse.")
    assert err.startswith("zot: --with-skills has no effect: ")
    denied = configured.run("--json", "!bash echo hi", "--agent", "poet", "--no-session")
    assert "not run: the policy of this session denies bash here" in denied.out
    allowed = configured.run("--json", "!bash echo hi", "--no-session")
    assert '"text":"hi\\n"' in allowed.out


@pytest.mark.parametrize("command", [("-p", "hello"), ("--json", "hello"), ("rpc",), ("config",), ("prompt",)])
def test_an_agent_that_is_not_there_answers_nothing(configured: Shell, command: tuple[str, ...]) -> None:
    out, err, code = configured.run(*command, "--agent", "pirate")
    assert (err, code) == ("zot: no agent 'pirate' in config.toml; known: default, poet, far\n", 1)
    assert "assistant" not in out


def test_a_session_continues_with_the_named_agent_or_with_its_own(configured: Shell) -> None:
    def say(*words: str) -> tuple[str, bool]:
        """Return the reasoning level of the request, and whether the prompt asks for verse."""
        record = configured.cwd / "asked"
        said = configured.run("-p", "!echo hi", "--session", "s", "--record", str(record), *words)
        assert (said.out, said.err, said.code) == ("hi\n", "", 0)
        configurations = re.findall(r'"reasoning":"(\w+)"', configured.run("sessions", "export", "s").out)
        asked = record.read_text()
        record.unlink()
        return configurations[-1], "Speak in verse." in asked

    assert say("--reasoning", "high") == ("high", False)
    assert say() == ("high", False)
    assert say("--agent", "poet") == ("low", True)
    assert say("--agent", "poet", "--reasoning", "medium") == ("medium", True)
    assert say() == ("medium", True)


def test_a_session_keeps_its_agent_s_rules_for_every_later_process(configured: Shell) -> None:
    assert configured.run("-p", "!echo hi", "--agent", "poet", "--session", "s").out == "hi\n"
    gone_on = configured.run("--json", "!bash echo hi", "--session", "s")
    assert "not run: the policy of this session denies bash here" in gone_on.out
