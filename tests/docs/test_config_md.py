"""The configuration in docs/reference/config.md works, and every key that a file may have is described there."""

from __future__ import annotations

from pathlib import Path

import pytest

from shell import Shell
from zot.commands.config import _ANSWERS
from zot.config.config import resolve
from zot.config.file import AgentTable, DaemonSettings
from zot.config.flags import McpServer
from zot.errors import ConfigError
from zot.runtime.check import check

from .markdown import blocks

TEXT = (Path(__file__).parents[2] / "docs" / "reference" / "config.md").read_text()
[EXAMPLE] = blocks(TEXT, "toml")


def test_the_example_is_valid_as_written(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(EXAMPLE.text)
    config = resolve({"config_dir": str(tmp_path)}, {"ANTHROPIC_API_KEY": "k"})
    assert check(config) == "claude-sonnet-4-5"
    assert (config.max_steps, config.approval_timeout_s) == (20, 300.0)
    assert config.policy == ("read=allow", "bash:@git-read=allow", "*=ask")


def test_a_misspelled_key_is_named_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    path.write_text(EXAMPLE.text.replace("policy", "polcy"))
    with pytest.raises(ConfigError, match=rf"^{path}: \[agents\.default\] polcy: .*did you mean policy\?"):
        resolve({"config_dir": str(tmp_path)}, {})


@pytest.mark.parametrize(
    "key", [*AgentTable.__struct_fields__, *DaemonSettings.__struct_fields__, *McpServer.__struct_fields__]
)
def test_every_key_is_described(key: str) -> None:
    rows = [line.split("|")[1] for line in TEXT.splitlines() if line.startswith("| `")]
    assert any(f"`{key}`" in row for row in rows)


def test_the_output_of_zot_config_is_as_shown(shell: Shell) -> None:
    """The page leaves rows out, and has less room for names."""
    shell.home.mkdir()
    (shell.home / "config.toml").write_text(EXAMPLE.text)
    shell.env["ANTHROPIC_API_KEY"] = "k"
    [shown] = blocks(TEXT, "console")
    command, *rows = shown.text.rstrip("\n").split("\n")
    said = shell.run(*command.removeprefix("$ zot ").split())
    assert (said.err, said.code) == ("", 0)
    printed = [line.split() for line in said.out.replace(f"{shell.home}/", "").split("\n")]
    assert [row for row in rows if row != "..." and row.split() not in printed] == []


@pytest.mark.parametrize("subcommand", [f"zot config {word}".rstrip() for word in _ANSWERS])
def test_every_subcommand_is_described(subcommand: str) -> None:
    assert f"| `{subcommand}` |" in TEXT
