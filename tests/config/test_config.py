"""Files, environment and flags become one Config; errors name the place of the setting."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from zot.config.auth_file import AuthEntry, check, store
from zot.config.config import AGENT_FLAGS, SECRET_NAMES, Config, checked, resolve, tool_environment, zot_home
from zot.config.credentials import find
from zot.config.flags import parse
from zot.config.vendors import VENDORS
from zot.errors import ConfigError, UsageError
from zot.runtime.open import OpenRequest, open_unrecorded
from zot.runtime.provider_choice import models_of
from zot.runtime.shared import SharedResources

EVERYTHING = """
[agents.default]
provider = "lab"
model = "lab-1"
base_url = "http://localhost:1"
system_prompt = "Be brief."
reasoning = "low"
max_steps = 7
max_cost = 2
max_tokens_total = 1000
auto_compact = false
compact_at = 50000
tools = ["read", "bash"]

[agents.other]
model = "not this one"
"""


def write(directory: Path, text: str | bytes) -> str:
    path = directory / "config.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_without_a_file_the_defaults_hold(tmp_path: Path) -> None:
    env = {"HOME": str(tmp_path)}
    assert resolve({}, env) == Config(env=env)
    assert resolve({}, {}) == Config(env={})


def test_a_file_is_read_from_the_home_of_zot(tmp_path: Path) -> None:
    write(tmp_path, EVERYTHING)
    env = {"ZOT_HOME": str(tmp_path)}
    assert resolve({}, env) == Config(
        provider="lab",
        model="lab-1",
        base_url="http://localhost:1",
        system_prompt="Be brief.",
        reasoning="low",
        max_steps=7,
        max_cost=2.0,
        max_tokens_total=1000,
        auto_compact=False,
        compact_at=50_000,
        tools=("read", "bash"),
        env=env,
    )


def test_a_flag_wins_over_the_file(tmp_path: Path) -> None:
    write(tmp_path, EVERYTHING)
    settings, _ = parse(["--model", "m", "--max-steps=3", "--no-tools", "--reasoning", "high"], AGENT_FLAGS)
    config = resolve(settings, {"ZOT_HOME": str(tmp_path)})
    assert (config.model, config.max_steps, config.tools, config.reasoning) == ("m", 3, (), "high")
    assert (config.provider, config.system_prompt) == ("lab", "Be brief.")


def test_rules_given_as_flags_come_before_those_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, '[agents.default]\npolicy = ["bash:rm *=deny", "bash=ask"]')
    env = {"ZOT_HOME": str(tmp_path)}
    settings, _ = parse(["--policy", "read=deny", "--policy=bash:ls=allow"], AGENT_FLAGS)
    assert resolve(settings, env).policy == ("read=deny", "bash:ls=allow", "bash:rm *=deny", "bash=ask")
    assert resolve({}, env).policy == ("bash:rm *=deny", "bash=ask")


@pytest.mark.parametrize("seconds", ["inf", "nan", "1e300", "0", "-1"])
def test_a_deadline_too_large_for_the_clock_is_refused(tmp_path: Path, seconds: str) -> None:
    write(tmp_path, f"[agents.default]\napproval_timeout_s = {seconds}")
    with pytest.raises(ConfigError, match="approval_timeout_s"):
        resolve({}, {"ZOT_HOME": str(tmp_path)})
    with pytest.raises(ConfigError, match="approval_timeout_s"):
        checked({"approval_timeout_s": float(seconds)})
    with pytest.raises(ConfigError, match="--approval-timeout"):
        parse(["--approval-timeout", seconds], AGENT_FLAGS)


def test_model_and_address_of_the_file_belong_to_its_provider(tmp_path: Path) -> None:
    write(tmp_path, EVERYTHING)
    config = resolve({"provider": "anthropic"}, {"ZOT_HOME": str(tmp_path)})
    assert (config.provider, config.model, config.base_url, config.max_steps) == ("anthropic", None, None, 7)


def test_a_named_directory_wins_over_home(tmp_path: Path) -> None:
    for name in ("home", "named", "empty"):
        (tmp_path / name).mkdir()
    write(tmp_path / "home", '[agents.default]\nmodel = "home"')
    write(tmp_path / "named", '[agents.default]\nmodel = "named"')
    env = {"ZOT_HOME": str(tmp_path / "home")}
    models = [resolve({"config_dir": str(tmp_path / name)}, env).model for name in ("named", "empty")]
    assert models == ["named", None]


def test_no_tools_wins_over_a_list_of_tools(tmp_path: Path) -> None:
    settings, _ = parse(["--tools", "read, bash,,", "--no-tools"], AGENT_FLAGS)
    assert settings["tools"] == ("read", "bash")
    assert resolve(settings, {}).tools == ()


def test_keeping_nothing_is_the_default() -> None:
    settings, _ = parse(["--no-session"], AGENT_FLAGS)
    assert resolve(settings, {}) == Config(env={})


@pytest.mark.parametrize("flag", ["--no-ext", "--no-extensions"])
def test_both_spellings_of_no_extensions_mean_it(flag: str) -> None:
    settings, _ = parse([flag, "-e", "a", "--ext", "b", "--ext-deadline", "tool=2"], AGENT_FLAGS)
    assert resolve(settings, {}) == Config(no_ext=True, ext=("a", "b"), ext_deadlines={"tool": 2.0}, env={})


def test_an_unknown_deadline_or_one_that_is_not_a_time_is_refused() -> None:
    with pytest.raises(UsageError, match="unknown deadline 'nap'; known: hello, ready"):
        parse(["--ext-deadline", "nap=2"], AGENT_FLAGS)
    with pytest.raises(UsageError, match="'x' is not a number of seconds"):
        parse(["--ext-deadline", "hello=x"], AGENT_FLAGS)


@pytest.mark.parametrize("flag", ["--no-skill", "--no-skills"])
def test_both_spellings_of_no_skills_mean_it(flag: str) -> None:
    settings, _ = parse([flag], AGENT_FLAGS)
    assert resolve(settings, {}) == Config(no_skill=True, env={})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[agents", "Expected ']' at the end of a table declaration (at end of document)"),
        ("a = 1", "a: unknown setting"),
        ("[daemons]", "daemons: unknown setting; did you mean daemon?"),
        ("model = 'x'", "model belongs to an agent: write it below [agents.default]"),
        ("agents = 1", "[agents] is not a table: write [agents.NAME]"),
        ("[agents]\nother = 1", "[agents.other] is not a table"),
        ("daemon = 1", "[daemon] is not a table"),
        ("[agents.other]\nlock = 1", "[agents.other] lock must be true or false, not a whole number"),
        ("[agents.default]\nmodle = 'x'", "[agents.default] modle: unknown setting; did you mean model?"),
        ("[agents.default]\nmax_steps = 'x'", "[agents.default] max_steps must be a whole number, not a string"),
        ("[agents.default]\nmax_steps = 0", "[agents.default] max_steps must be a whole number of at least 1"),
        ("[agents.default]\nmax_cost = 0", "[agents.default] max_cost must be a number above 0"),
        ("[agents.default]\nmax_cost = 1e400", "[agents.default] max_cost must be a number of at most 1000000000"),
        ("[agents.default]\nmax_cost = nan", "[agents.default] max_cost must be a number above 0"),
        (
            "[agents.default]\nmax_tokens_total = 0",
            "[agents.default] max_tokens_total must be a whole number of at least 1",
        ),
        (
            "[agents.default]\nreasoning = 'much'",
            "[agents.default] reasoning cannot be 'much'; use one of: high, low, medium, off",
        ),
        (
            "[agents.x]\next_deadlines = { nap = 1 }",
            "[agents.x] a key of ext_deadlines cannot be 'nap'; use one of: "
            "command, hello, intercept, ready, shutdown, silence, terminate, tool",
        ),
        ("[agents.x]\next_deadlines = { tool = 0 }", "[agents.x] ext_deadlines[...] must be a number above 0"),
        ("[agents.default]\ntools = 'bash'", "[agents.default] tools must be a list, not a string"),
        ("[agents.default]\ntools = [1]", "[agents.default] tools[0] must be a string, not a whole number"),
        (
            "[agents.x]\ncwd = 'here'",
            "[agents.x] cwd: expected a path that begins with / or ~/",
        ),
        (
            "[agents.x]\napi_key = 'sk-1'",
            "[agents.x] api_key: a key does not belong in this file: run `zot login PROVIDER`, or set the provider's "
            "variable",
        ),
        ("[daemon]\nmax_sessions = -1", "[daemon] max_sessions must be a whole number of at least 0"),
        ("[daemon]\nidle = 1", "[daemon] idle: unknown setting; did you mean idle_s?"),
        ("[daemon]\ngrace_s = 1e300", "[daemon] grace_s must be a number of at most 31622400"),
        ("[daemon]\nserver_version = ''", "[daemon] server_version must be a string that is not empty"),
        (
            "[daemon]\nlog_level = 'loud'",
            "[daemon] log_level cannot be 'loud'; use one of: debug, error, info, warning",
        ),
        ('[agents."a\\nb"]\nlock = 1', "[agents.a\\nb] lock must be true or false, not a whole number"),
        ("a = " + "[" * 10_000, "nested too deeply"),
        (
            "[agents.a]\nlock = 1\nmodle = ''\n[agents.b]\nmax_steps = 0\n[daemon]\nidle_s = 0",
            "[agents.a] lock must be true or false, not a whole number; "
            "[agents.a] modle: unknown setting; did you mean model?; "
            "[agents.b] max_steps must be a whole number of at least 1; [daemon] idle_s must be a number above 0",
        ),
        (b"\xff", "not UTF-8, at byte 0"),
    ],
)
def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path: Path, text: str | bytes, problem: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        resolve({}, {"ZOT_HOME": str(tmp_path)})
    assert str(caught.value) == f"{path}: {problem}"


def test_a_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    write(tmp_path, b"\xef\xbb\xbf[agents.default]\nmax_steps = 3")
    assert resolve({}, {"ZOT_HOME": str(tmp_path)}).max_steps == 3


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.toml").mkdir()
    with pytest.raises(ConfigError, match=r"config\.toml: Is a directory$"):
        resolve({}, {"ZOT_HOME": str(tmp_path)})


@pytest.mark.parametrize(
    ("env", "home"),
    [
        ({}, None),
        ({"HOME": ""}, None),
        ({"ZOT_HOME": "/z", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/z"),
        ({"ZOT_HOME": "", "XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/zot"),
    ],
)
def test_the_home_of_zot_is_found(env: dict[str, str], home: str | None) -> None:
    assert zot_home(env) == home


@pytest.mark.parametrize(
    ("platform", "home"), [("linux", "/h/.local/state/zot"), ("darwin", "/h/Library/Application Support/zot")]
)
def test_the_home_follows_the_system_s_convention(platform: str, home: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    assert zot_home({"HOME": "/h"}) == home


def test_a_config_is_shown_without_its_secrets() -> None:
    config = Config(api_key="sk-secret", env={"ANTHROPIC_API_KEY": "sk-other"}, model="m")
    assert "sk-" not in repr(config) + str(config) + f"{config}"
    assert "model='m'" in repr(config)


def test_tools_see_the_environment_without_our_secrets() -> None:
    env = {"PATH": "/bin", **dict.fromkeys(SECRET_NAMES, "secret")}
    assert tool_environment(env) == {"PATH": "/bin"}


def test_the_environment_is_the_given_one_or_that_of_the_process() -> None:
    assert Config(env={"A": "b"}).environment == {"A": "b"}
    assert Config().environment is os.environ


def test_every_flag_sets_something_that_there_is() -> None:
    known = {*Config.__struct_fields__, "config_dir", "no_tools", "no_ext", "no_skill", "no_session"}
    assert {flag.key for flag in AGENT_FLAGS} <= known


PROVIDERS = ("ANTHROPIC", "OPENAI", "GEMINI", "GOOGLE", "DEEPSEEK", "KIMI", "MOONSHOT", "OPENROUTER", "OLLAMA", "GROQ",
             "MISTRAL", "XAI")  # fmt: skip


@pytest.mark.parametrize("name", ["ZOTCORE_RPC_TOKEN", *(f"{provider}_API_KEY" for provider in PROVIDERS)])
def test_no_key_of_any_provider_reaches_a_tool(name: str) -> None:
    assert tool_environment({"PATH": "/bin", name: "secret"}) == {"PATH": "/bin"}


def test_a_rule_about_an_unknown_tool_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    rules = ("search=deny", "*=ask", "bash=deny", "mcp__files__write=ask", "find_tools=allow")
    open_unrecorded(OpenRequest(config=Config(provider="lab", policy=rules, env={})), SharedResources())
    assert caplog.messages == [
        "policy: zot has no tool 'search', so the rule applies only if an extension adds it; "
        "zot has bash, edit, read, skill, write"
    ]


@pytest.mark.parametrize("tool", ["Bash", "bsh", "bahs", "bassh", "bush"])
def test_a_rule_about_a_misspelt_tool_is_refused_unless_an_extension_may_have_it(
    tool: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = Config(provider="lab", policy=(f"{tool}=ask",), env={"ZOT_HOME": str(tmp_path)})
    with pytest.raises(ConfigError, match=f"no tool is named '{tool}'; did you mean bash\\?"):
        open_unrecorded(OpenRequest(config=config), SharedResources())
    (tmp_path / "extensions").mkdir()
    open_unrecorded(OpenRequest(config=config), SharedResources())
    assert caplog.messages[0].endswith("did you mean bash?")


@pytest.mark.parametrize("tool", ["reader", "edit_file", "webread", "skill_list", "rewrite"])
def test_a_rule_about_the_tool_of_an_extension_is_accepted(tool: str) -> None:
    open_unrecorded(OpenRequest(config=Config(provider="lab", policy=(f"{tool}=ask",), env={})), SharedResources())


@pytest.mark.parametrize(
    ("env", "provider"),
    [
        ({}, "anthropic"),
        ({"OPENAI_API_KEY": "k"}, "openai"),
        ({"GOOGLE_API_KEY": "k"}, "gemini"),
        ({"XAI_API_KEY": "k", "DEEPSEEK_API_KEY": "k"}, "deepseek"),
        ({"XAI_API_KEY": "k", "OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"}, "anthropic"),
        ({"OPENAI_API_KEY": "", "MISTRAL_API_KEY": "k"}, "mistral"),
        ({"ANTHROPIC_BASE_URL": "http://localhost:1", "OPENAI_API_KEY": "k"}, "anthropic"),
        ({"OLLAMA_API_KEY": "k"}, "anthropic"),
    ],
)
def test_the_first_provider_with_a_key_is_the_default(tmp_path: Path, env: dict[str, str], provider: str) -> None:
    env = {"ZOT_HOME": str(tmp_path), **env}
    assert resolve({}, env).provider == provider
    assert checked({"env": env}).provider == provider
    assert checked({"max_steps": 3}, Config(env=env)).provider == provider
    assert Config(env=env, base_url="http://localhost:1").provider == "anthropic"
    assert resolve({"provider": "lab"}, env).provider == "lab"
    for tied in ({"api_key": "k"}, {"base_url": "http://localhost:1"}, {"api": "anthropic"}):
        assert resolve(tied, env).provider == "anthropic"
    write(tmp_path, "[agents.default]\nprovider = 'groq'")
    assert resolve({}, env).provider == "groq"


def test_an_inaccessible_home_is_an_error_and_not_an_empty_one(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.symlink_to(home)
    env, reason = {"ZOT_HOME": str(home)}, "Too many levels of symbolic links"
    with pytest.raises(ConfigError, match=f"^{home}/config.toml: {reason}$"):
        resolve({"provider": "lab"}, env)
    with pytest.raises(ConfigError, match=f"^{home}/auth.json: {reason}$"):
        check(str(home))
    with pytest.raises(ConfigError, match=f"^{home}/auth.json: {reason}$"):
        find(VENDORS["anthropic"], None, env)
    with pytest.raises(ConfigError, match=f"^{home}/models.json: {reason}$"):
        models_of(Config(provider="lab", env=env))


def test_a_stored_key_makes_its_provider_the_default(tmp_path: Path) -> None:
    env = {"ZOT_HOME": str(tmp_path)}
    store(str(tmp_path), "groq", AuthEntry(command="echo k"))
    store(str(tmp_path), "openai", AuthEntry(key="k", base_url="http://localhost:1"))
    (tmp_path / "auth.json").write_text((tmp_path / "auth.json").read_text().replace("{", '{"anthropic": {}, ', 1))
    assert resolve({}, env).provider == "groq"
    assert resolve({}, {**env, "XAI_API_KEY": "k"}).provider == "groq"
    assert resolve({}, {**env, "KIMI_API_KEY": "k"}).provider == "kimi"
    (tmp_path / "auth.json").write_text("damaged")
    assert resolve({}, env).provider == "anthropic"


def test_a_model_in_the_file_belongs_to_the_provider_that_is_the_default(tmp_path: Path) -> None:
    env = {"ZOT_HOME": str(tmp_path), "OPENAI_API_KEY": "k"}
    write(tmp_path, "[agents.default]\nmodel = 'gpt-5'")
    assert resolve({}, env).model == "gpt-5"
    assert resolve({"provider": "openai"}, env).model == "gpt-5"
    assert resolve({"provider": "anthropic"}, env).model is None
